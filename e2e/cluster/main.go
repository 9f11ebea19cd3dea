// Command cluster brings up a real Kubernetes cluster on this machine, from the Go
// modules and Debian packages that it is made of, breaks it on purpose, and takes it
// down without a trace. The README beside it is the manual.
package main

import (
	"errors"
	"fmt"
	"os"
)

const usage = `usage: cluster COMMAND

  up [--nodes 2]                   bring the cluster up, or repair it; print how to use it
  down                             end it and put the machine back as it was
  status                           one line per part
  env                              shell exports: KUBECONFIG, PATH, DALSEGNO_CLUSTER_DIR, DALSEGNO_AUDIT_LOG
  build [kube|helm|pause|kwok]...  build what is not in the cache; print the paths

  image push NAME:TAG --rootfs DIR [--layer DIR]... [--entrypoint a,b] [--user UID] [--workdir DIR]
                                   make an image, push it, print its reference by digest
  image base python                make (once) the root of a minimal Python; print the directory
  volume add                       one more PersistentVolume on n1; print its name

  stop COMPONENT                   kill it: registry, etcd, apiserver, controller-manager, scheduler, coredns
  start COMPONENT                  start it again and wait until it answers
  node kill nI                     power loss
  node start nI                    power on again
  node restart-kubelet nI          kill the kubelet and start it; containers go on
  node exec nI -- CMD...           run a command in the node's namespaces
  link down nI | link up nI        pull the node's network cable, plug it in
  container-pids nI NAMESPACE POD CONTAINER
                                   the machine's pids of the container's processes

The state lies in DALSEGNO_CLUSTER_DIR (/var/tmp/dalsegno-cluster), binaries in the user's cache.
`

// errUsage is a command line that means nothing.
var errUsage = errors.New("usage")

func main() {
	code, err := run(os.Args[1:])
	switch {
	case errors.Is(err, errUsage):
		fmt.Fprint(os.Stderr, usage)
		code = 2
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		code = 1
	}
	os.Exit(code)
}

// run is the whole program; the exit code counts only without an error.
func run(args []string) (int, error) {
	if len(args) == 0 {
		return 0, errUsage
	}
	if err := useAdminPath(); err != nil {
		return 0, err
	}
	name, args := args[0], args[1:]
	switch name { // the two halves of starting a process need no cluster
	case "internal-exec":
		return 0, execRecorded(args)
	case "internal-node-init":
		return 0, nodeInit(args)
	case "help", "-h", "--help":
		fmt.Print(usage)
		return 0, nil
	}
	c, err := openCluster()
	if err != nil {
		return 0, err
	}
	if name == "node" && len(args) > 0 && args[0] == "exec" {
		return c.execCommand(args[1:])
	}
	command, known := commands[name]
	if !known {
		return 0, errUsage
	}
	if command.changes {
		if err := c.lock(); err != nil {
			return 0, err
		}
	}
	return 0, command.run(c, args)
}

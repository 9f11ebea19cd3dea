// Command cluster starts a real Kubernetes cluster on this machine, built from Go modules
// and Debian packages, breaks it on purpose, and removes it without a trace. The README
// is the manual.
package main

import (
	"errors"
	"fmt"
	"os"
)

const usage = `usage: cluster COMMAND

  up [--nodes 2]                   start or repair the cluster; print how to use it
  down                             stop the cluster and revert all changes of the machine
  status                           print one line per part
  env                              print shell exports: KUBECONFIG, PATH, DALSEGNO_CLUSTER_DIR, DALSEGNO_AUDIT_LOG
  build [kube|helm|pause|kwok]...  build what is not in the cache; print the paths

  image push NAME:TAG --rootfs DIR [--layer DIR]... [--entrypoint a,b] [--user UID] [--workdir DIR]
                                   build an image, push it, print its reference by digest
  image base python                build (once) the root of a minimal Python; print the directory
  volume add                       add a PersistentVolume on n1; print its name

  stop COMPONENT                   kill a component: registry, etcd, apiserver, controller-manager, scheduler, coredns
  start COMPONENT                  start a component and wait until it is ready
  node kill nI                     cut the node's power
  node start nI                    switch the node's power on
  node restart-kubelet nI          kill and start the kubelet; containers keep running
  node exec nI -- CMD...           run a command in the node's namespaces
  link down nI | link up nI        disconnect or connect the node's network cable
  container-pids nI NAMESPACE POD CONTAINER
                                   print the machine's pids of the container's processes

The state is in DALSEGNO_CLUSTER_DIR (/var/tmp/dalsegno-cluster), the binaries are in the user's cache.
`

// errUsage is returned for an invalid command line.
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

// run executes the command line. The exit code is valid only without an error.
func run(args []string) (int, error) {
	if len(args) == 0 {
		return 0, errUsage
	}
	if err := useAdminPath(); err != nil {
		return 0, err
	}
	name, args := args[0], args[1:]
	switch name { // the commands of new processes need no cluster
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

package main

import (
	"flag"
	"fmt"
	"strings"
)

// commands maps the name of a command to its function, which gets the remaining
// arguments. A command that changes the cluster holds the cluster's lock.
var commands = map[string]struct {
	changes bool
	run     func(c *Cluster, args []string) error
}{
	"up":             {true, upCommand},
	"down":           {true, withArgs(0, func(c *Cluster, _ []string) error { return c.down() })},
	"status":         {false, withArgs(0, func(c *Cluster, _ []string) error { return c.status() })},
	"env":            {false, withArgs(0, envCommand)},
	"build":          {false, (*Cluster).buildAll},
	"image":          {false, imageCommand},
	"volume":         {true, withArgs(1, volumeCommand)},
	"stop":           {true, withArgs(1, func(c *Cluster, args []string) error { return c.stopComponent(args[0]) })},
	"start":          {true, withArgs(1, startCommand)},
	"node":           {true, withArgs(2, nodeCommand)},
	"link":           {true, withArgs(2, linkCommand)},
	"container-pids": {false, withArgs(4, containerPidsCommand)},
}

func withArgs(n int, run func(*Cluster, []string) error) func(*Cluster, []string) error {
	return func(c *Cluster, args []string) error {
		if len(args) != n {
			return errUsage
		}
		return run(c, args)
	}
}

func upCommand(c *Cluster, args []string) error {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	nodes := flags.Int("nodes", 2, "minimum number of nodes")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return errUsage
	}
	return c.up(*nodes)
}

func envCommand(c *Cluster, _ []string) error {
	if !exists(c.kubeconfig()) {
		return fmt.Errorf("no cluster in %s", c.Dir)
	}
	fmt.Print(c.environment())
	return nil
}

func startCommand(c *Cluster, args []string) error {
	if err := c.startComponent(args[0]); err != nil {
		return err
	}
	if err := c.awaitComponent(args[0]); err != nil {
		return err
	}
	if _, ok := c.running("apiserver"); ok && args[0] == "etcd" {
		return c.awaitComponent("apiserver")
	}
	return nil
}

func nodeCommand(c *Cluster, args []string) error {
	n, err := c.nodeByName(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "kill":
		return c.killNode(n)
	case "start":
		return sequence(
			func() error { return c.startNode(n) },
			func() error { return c.joinNode(n) },
			func() error { return c.awaitNodes([]Node{n}, startTime) },
		)
	case "restart-kubelet":
		return sequence(
			func() error { return c.restartKubelet(n) },
			func() error { return c.awaitNodes([]Node{n}, startTime) },
		)
	}
	return errUsage
}

// execCommand runs a command in a node and returns its exit code.
func (c *Cluster) execCommand(args []string) (int, error) {
	if len(args) < 3 || args[1] != "--" {
		return 0, errUsage
	}
	n, err := c.nodeByName(args[0])
	if err != nil {
		return 0, err
	}
	return c.nodeExec(n, args[2:])
}

func linkCommand(c *Cluster, args []string) error {
	n, err := c.nodeByName(args[1])
	if err != nil {
		return err
	}
	switch args[0] {
	case "up", "down":
		return setLink(n, args[0] == "up")
	}
	return errUsage
}

func containerPidsCommand(c *Cluster, args []string) error {
	n, err := c.nodeByName(args[0])
	if err != nil {
		return err
	}
	pids, err := c.containerPids(n, args[1], args[2], args[3])
	if err != nil {
		return err
	}
	if len(pids) == 0 {
		return fmt.Errorf("no container %s of pod %s/%s runs on %s", args[3], args[1], args[2], args[0])
	}
	for _, pid := range pids {
		fmt.Println(pid)
	}
	return nil
}

func volumeCommand(c *Cluster, args []string) error {
	if args[0] != "add" {
		return errUsage
	}
	name, err := c.addVolume()
	if err == nil {
		fmt.Println(name)
	}
	return err
}

func imageCommand(_ *Cluster, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "base" && args[1] == "python":
		dir, err := pythonBase()
		if err == nil {
			fmt.Println(dir)
		}
		return err
	case len(args) > 1 && args[0] == "push":
		image, spec, err := parsePush(args[1:])
		if err != nil {
			return err
		}
		reference, err := push(image, spec)
		if err == nil {
			fmt.Println(reference)
		}
		return err
	}
	return errUsage
}

// parsePush parses NAME:TAG and the flags, in any order.
func parsePush(args []string) (string, ImageSpec, error) {
	var spec ImageSpec
	flags := flag.NewFlagSet("image push", flag.ContinueOnError)
	layer := func(dir string) error {
		spec.Layers = append(spec.Layers, dir)
		return nil
	}
	flags.Func("rootfs", "directory that becomes a layer", layer)
	flags.Func("layer", "directory that becomes a layer", layer)
	flags.Func("entrypoint", "program and arguments, separated by commas", func(s string) error {
		spec.Entrypoint = strings.Split(s, ",")
		return nil
	})
	flags.StringVar(&spec.User, "user", "", "uid")
	flags.StringVar(&spec.WorkDir, "workdir", "/", "working directory")
	var names []string
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return "", spec, errUsage
		}
		if args = flags.Args(); len(args) > 0 {
			names, args = append(names, args[0]), args[1:]
		}
	}
	if len(names) != 1 {
		return "", spec, errUsage
	}
	return names[0], spec, nil
}

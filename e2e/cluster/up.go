package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// up starts the cluster with at least this number of nodes. It starts only the parts that
// are not running, so a partly dead cluster is repaired and keeps its data. If that fails,
// the cluster is removed and started anew, once.
func (c *Cluster) up(count int) error {
	if count < 1 || count > maxNodes {
		return fmt.Errorf("a cluster has 1 to %d nodes, not %d", maxNodes, count)
	}
	if err := c.claimBridge(); err != nil {
		return err
	}
	used := exists(c.path("pki"))
	if used && len(c.nodes()) >= count && c.unhealthy() == nil {
		fmt.Printf("the cluster is up and healthy: %d nodes, %s\n", len(c.nodes()), c.Dir)
		return sequence(c.installSelf, c.printHints)
	}
	if err := sequence(ensurePackages, c.createDirs, c.installPrograms); err != nil {
		return err
	}
	err := c.start(max(count, len(c.nodes())))
	if err != nil && used {
		fmt.Printf("the repair failed, starting a new cluster: %v\n", err)
		err = sequence(
			c.down,
			c.createDirs,
			c.installPrograms,
			func() error { return c.start(count) },
		)
	}
	if err != nil {
		return err
	}
	return c.printHints()
}

// createDirs creates the state's directories. A new cluster starts with empty logs, so that
// the audit log has only its own entries.
func (c *Cluster) createDirs() error {
	if !exists(c.path("pki")) {
		if err := errors.Join(os.RemoveAll(c.path("log")), os.RemoveAll(c.auditLog())); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "libexec", "log", "nodes"} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pki", "run"} {
		if err := os.MkdirAll(c.path(dir), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// start starts all parts. The API server takes longest, so it starts first, and the nodes
// boot in parallel.
func (c *Cluster) start(count int) error {
	var nodes []Node
	for i := 1; i <= count; i++ {
		nodes = append(nodes, c.node(i))
	}
	return sequence(
		func() error {
			return step("keys, certificates, configuration and mount points", func() error {
				return sequence(
					func() error { return c.ensurePKI(nodes) },
					c.writeFiles,
					c.saveSysctls,
					func() error { return c.saveControllers(cgroupBase) },
					// Before the nodes boot in parallel, because they share the record of created directories.
					func() error { return c.createMountPoints(privateDirs) },
				)
			})
		},
		func() error {
			return step("bridge, etcd and API server started", func() error {
				return sequence(c.ensureBridge, c.starterOf("registry"), c.starterOf("etcd"), c.starterOf("apiserver"))
			})
		},
		func() error {
			return step(fmt.Sprintf("%d nodes booted, pause image in the registry", count), func() error {
				all := []func() error{func() error {
					return sequence(func() error { return c.awaitComponent("registry") }, c.pushPause)
				}}
				for _, n := range nodes {
					all = append(all, func() error { return c.startNode(n) })
				}
				return parallel(all...)
			})
		},
		func() error {
			return step("API server ready", func() error {
				return sequence(func() error { return c.awaitComponent("etcd") }, func() error { return c.awaitComponent("apiserver") })
			})
		},
		func() error {
			return step("controllers, scheduler, DNS and kubelets started", func() error { return c.startClients(nodes) })
		},
		func() error {
			return step("nodes and control plane ready", func() error {
				return sequence(
					func() error { return c.awaitNodes(nodes, time.Now()) },
					func() error { return c.awaitComponent("controller-manager") },
					func() error { return c.awaitComponent("scheduler") },
					func() error { return c.awaitComponent("coredns") },
					c.awaitServiceAccount,
				)
			})
		},
	)
}

// starterOf returns a function that starts a component without waiting for it.
func (c *Cluster) starterOf(name string) func() error {
	return func() error { return c.startComponent(name) }
}

// startClients starts everything that needs the API server.
func (c *Cluster) startClients(nodes []Node) error {
	all := []func() error{c.starterOf("controller-manager"), c.starterOf("scheduler"), c.starterOf("coredns")}
	for _, n := range nodes {
		all = append(all, func() error { return c.joinNode(n) })
	}
	return sequence(append(all, c.ensureVolumes)...)
}

// writeFiles writes the configuration of the programs outside the nodes.
func (c *Cluster) writeFiles() error {
	data := struct{ State, BridgeIP, RegistryAddress string }{c.Dir, bridgeIP, registryAddress}
	for _, name := range []string{"registry.yaml", "Corefile", "audit-policy.yaml"} {
		if err := renderFile(name, c.path(name), data); err != nil {
			return err
		}
	}
	return nil
}

// printHints prints how to use the cluster. The last line is for eval.
func (c *Cluster) printHints() error {
	fmt.Printf("kubectl, helm and cluster are in %s: export PATH=%s:$PATH\n", c.path("bin"), c.path("bin"))
	fmt.Printf("export KUBECONFIG=%s\n", c.kubeconfig())
	return nil
}

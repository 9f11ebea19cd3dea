package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// up brings the cluster to life with at least so many nodes. It starts whatever does
// not run; what lives on is left alone, so a half-dead cluster is repaired with its
// data. If that fails, it is taken down and started from nothing, once.
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
		return steps(c.installSelf, c.hints)
	}
	if err := steps(ensurePackages, c.makeDirs, c.installPrograms); err != nil {
		return err
	}
	err := c.start(max(count, len(c.nodes())))
	if err != nil && used {
		fmt.Printf("could not be repaired, starting again from nothing: %v\n", err)
		err = steps(
			c.down,
			c.makeDirs,
			c.installPrograms,
			func() error { return c.start(count) },
		)
	}
	if err != nil {
		return err
	}
	return c.hints()
}

// makeDirs makes the directories of the state. A new cluster starts with empty logs:
// whoever counts lines in the audit log counts those of this cluster.
func (c *Cluster) makeDirs() error {
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

// start is the order of things: what takes long, the API server, starts first, and
// the nodes boot beside it.
func (c *Cluster) start(count int) error {
	var nodes []Node
	for i := 1; i <= count; i++ {
		nodes = append(nodes, c.node(i))
	}
	return steps(
		func() error {
			return step("keys, certificates, configuration and mount points", func() error {
				return steps(
					func() error { return c.ensurePKI(nodes) },
					c.writeFiles,
					c.saveSysctls,
					func() error { return c.saveControllers(cgroupBase) },
					// Once, before the nodes boot side by side: they share what is remembered of them.
					func() error { return c.makeMountPoints(privateDirs) },
				)
			})
		},
		func() error {
			return step("bridge, etcd and API server started", func() error {
				return steps(c.ensureBridge, c.begin("registry"), c.begin("etcd"), c.begin("apiserver"))
			})
		},
		func() error {
			return step(fmt.Sprintf("%d nodes booted, pause image in the registry", count), func() error {
				all := []func() error{func() error {
					return steps(func() error { return c.awaitComponent("registry") }, c.pushPause)
				}}
				for _, n := range nodes {
					all = append(all, func() error { return c.startNode(n) })
				}
				return parallel(all...)
			})
		},
		func() error {
			return step("API server ready", func() error {
				return steps(func() error { return c.awaitComponent("etcd") }, func() error { return c.awaitComponent("apiserver") })
			})
		},
		func() error {
			return step("controllers, scheduler, DNS and kubelets started", func() error { return c.join(nodes) })
		},
		func() error {
			return step("nodes Ready, cluster answers", func() error {
				return steps(
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

// begin starts a component without waiting for it.
func (c *Cluster) begin(name string) func() error {
	return func() error { return c.startComponent(name) }
}

// join starts everything that needs an API server.
func (c *Cluster) join(nodes []Node) error {
	all := []func() error{c.begin("controller-manager"), c.begin("scheduler"), c.begin("coredns")}
	for _, n := range nodes {
		all = append(all, func() error { return c.joinNode(n) })
	}
	return steps(append(all, c.ensureVolumes)...)
}

// writeFiles writes the configuration of what runs outside the nodes.
func (c *Cluster) writeFiles() error {
	data := struct{ State, BridgeIP, RegistryAddress string }{c.Dir, bridgeIP, registryAddress}
	for _, name := range []string{"registry.yaml", "Corefile", "audit-policy.yaml"} {
		if err := render(name, c.path(name), data); err != nil {
			return err
		}
	}
	return nil
}

// hints prints how to use the cluster; the last line is meant for eval.
func (c *Cluster) hints() error {
	fmt.Printf("kubectl, helm and cluster are in %s: export PATH=%s:$PATH\n", c.path("bin"), c.path("bin"))
	fmt.Printf("export KUBECONFIG=%s\n", c.kubeconfig())
	return nil
}

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// nodePrograms are the programs of every node, in the order in which they start.
var nodePrograms = []string{"containerd", "kubelet", "kube-proxy"}

// writeNodeFiles creates the node's directory and the configuration of its programs.
func (c *Cluster) writeNodeFiles(n Node) error {
	for _, dir := range []string{"cni", "logs", "manifests", "kubelet", "opt", "volume-plugins", "certs.d/" + registryHost} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(n.path("resolv.conf"), nil, 0o644); err != nil {
		return err
	}
	conf := c.nodeConf(n)
	for name, file := range map[string]string{
		"containerd.toml": "containerd.toml",
		"hosts.toml":      "certs.d/" + registryHost + "/hosts.toml",
		"pods.conflist":   "cni/10-pods.conflist",
		"kubelet.yaml":    "kubelet.yaml",
		"kube-proxy.yaml": "kube-proxy.yaml",
	} {
		if err := renderFile(name, n.path(file), conf); err != nil {
			return err
		}
	}
	return nil
}

// startNode switches a node on, or starts its missing parts. It needs no API server.
func (c *Cluster) startNode(n Node) error {
	return sequence(
		func() error { return c.writeNodeFiles(n) },
		func() error { return createCgroups(n) },
		func() error { return c.powerOn(n) },
		func() error { return c.connectNode(n) },
		func() error { return c.startContainerd(n) },
	)
}

// startContainerd starts containerd and waits for its socket. Without the wait, the
// kubelet would fail at first and back off.
func (c *Cluster) startContainerd(n Node) error {
	if err := c.startInNode(n, "containerd", "containerd", "--config", n.path("containerd.toml")); err != nil {
		return err
	}
	name := n.Name + ".containerd"
	err := waitFor(30*time.Second, name, func() (bool, error) {
		if _, ok := c.running(name); !ok {
			return false, fmt.Errorf("the process has ended; the end of its log:\n%s", c.logTail(name))
		}
		return dial(n.Socket()) == nil, nil
	})
	return err
}

func (c *Cluster) startKubelet(n Node) error {
	return c.startInNode(n, "kubelet", c.program("kubelet"),
		"--config="+n.path("kubelet.yaml"), "--kubeconfig="+c.path("pki", n.Name+".kubeconfig"),
		"--root-dir="+n.path("kubelet"), "--hostname-override="+n.Name, "--node-ip="+n.IP())
}

// joinNode starts the node's clients of the API server.
func (c *Cluster) joinNode(n Node) error {
	return sequence(
		func() error { return c.startKubelet(n) },
		func() error {
			return c.startInNode(n, "kube-proxy", c.program("kube-proxy"), "--config="+n.path("kube-proxy.yaml"))
		},
	)
}

// killNode cuts the node's power. Only the node's disk, its directory, stays.
func (c *Cluster) killNode(n Node) error {
	r, err := c.record(n.Name)
	if err == nil {
		err = r.kill()
	}
	if err != nil && !errors.Is(err, errGone) {
		return err
	}
	return disconnectNode(n)
}

// restartKubelet kills only the kubelet and starts it again. Containers keep running.
func (c *Cluster) restartKubelet(n Node) error {
	r, err := c.record(n.Name + ".kubelet")
	if err == nil {
		err = r.kill()
	}
	if err != nil && !errors.Is(err, errGone) {
		return err
	}
	return c.startKubelet(n)
}

// kubeletStarts is how often awaitNodes starts a kubelet that has ended.
const kubeletStarts = 30

// awaitNodes waits up to 60 s until the API server reports all nodes as Ready with a
// lease renewed after the given time. A status from before that time may be outdated. A
// kubelet that has ended is started again, as a machine's init system does: it ends if
// containerd still restores the containers from before a power loss.
func (c *Cluster) awaitNodes(nodes []Node, since time.Time) error {
	a, err := c.api()
	if err != nil {
		return err
	}
	starts := map[string]int{}
	return waitFor(60*time.Second, "nodes to be Ready", func() (bool, error) {
		for _, n := range nodes {
			if _, ok := c.running(n.Name + ".kubelet"); !ok {
				if starts[n.Name]++; starts[n.Name] > kubeletStarts {
					return false, fmt.Errorf("the kubelet of %s has ended; the end of its log:\n%s", n.Name, c.logTail(n.Name+".kubelet"))
				}
				time.Sleep(200 * time.Millisecond)
				return false, c.startKubelet(n)
			}
			renewed, err := a.leaseRenewed(n)
			if err != nil || !renewed.After(since) {
				return false, nil // the API server may be busy; the limit decides
			}
		}
		ready, err := a.readyNodes()
		return err == nil && !slices.ContainsFunc(nodes, func(n Node) bool { return !ready[n.Name] }), nil
	})
}

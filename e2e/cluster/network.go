package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ensureBridge makes the bridge between the machine (the control plane) and the nodes.
//
// Its MAC is fixed. A bridge otherwise takes the lowest of its ports' addresses and
// changes it when a node goes; the other nodes would then lose the API server until
// their ARP entries expire, and all nodes would be NotReady at once.
func (c *Cluster) ensureBridge() error {
	if err := c.claimBridge(); err != nil {
		return err
	}
	if exists("/sys/class/net/" + bridgeName) {
		return command("ip", "link", "set", bridgeName, "up")
	}
	return steps(
		func() error { return command("ip", "link", "add", bridgeName, "address", bridgeMAC, "type", "bridge") },
		func() error { return command("ip", "link", "set", "dev", bridgeName, "alias", c.Dir) },
		func() error { return command("ip", "address", "add", bridgeIP+"/24", "dev", bridgeName) },
		func() error { return command("ip", "link", "set", bridgeName, "up") },
	)
}

// claimBridge refuses if the bridge belongs to a cluster with another state
// directory: names, addresses and ports are the same for all, so only one can run.
func (c *Cluster) claimBridge() error {
	alias, err := os.ReadFile("/sys/class/net/" + bridgeName + "/ifalias")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if owner := strings.TrimSpace(string(alias)); err == nil && owner != "" && owner != c.Dir {
		return fmt.Errorf("another cluster runs on this machine, with DALSEGNO_CLUSTER_DIR=%s", owner)
	}
	return err
}

// connectNode gives the running node its network: a veth pair to the bridge, and
// routes to and from its pods.
func (c *Cluster) connectNode(n Node) error {
	r, ok := c.running(n.Name)
	if !ok {
		return fmt.Errorf("node %s does not run", n.Name)
	}
	if exists("/sys/class/net/" + n.Link()) {
		return setLink(n, true)
	}
	err := steps(
		func() error {
			return command("ip", "link", "add", n.Link(), "type", "veth",
				"peer", "name", "eth0", "address", n.MAC(), "netns", fmt.Sprint(r.Pid))
		},
		func() error { return command("ip", "link", "set", n.Link(), "master", bridgeName, "up") },
		func() error { return command("ip", "route", "replace", n.PodCIDR(), "via", n.IP()) },
	)
	if err != nil {
		return err
	}
	// One ip process with a batch, because every node knows the way to all others' pods.
	batch := []string{
		"link set lo up",
		"address add " + n.IP() + "/24 dev eth0",
		"link set eth0 up",
		"route add default via " + bridgeIP,
	}
	for i := 1; i <= maxNodes; i++ {
		if other := c.node(i); i != n.Index {
			batch = append(batch, "route add "+other.PodCIDR()+" via "+other.IP())
		}
	}
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(batch, "\n"))
	return c.inNode(n, func() error {
		if err := finish(cmd); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
}

// setLink plugs the node's cable in or out, on the bridge's side.
func setLink(n Node, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return command("ip", "link", "set", n.Link(), state)
}

// disconnectNode removes what a node had in the machine's network. The kernel does
// it too when the node's namespace goes, but later, and only for the veth.
func disconnectNode(n Node) error {
	if exists("/sys/class/net/" + n.Link()) {
		// It may vanish by itself at this moment.
		if err := command("ip", "link", "delete", n.Link()); err != nil && exists("/sys/class/net/"+n.Link()) {
			return err
		}
	}
	return nil
}

// removeBridge takes the bridge and the routes over it away.
func (c *Cluster) removeBridge() error {
	if !exists("/sys/class/net/" + bridgeName) {
		return nil
	}
	return command("ip", "link", "delete", bridgeName)
}

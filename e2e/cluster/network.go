package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ensureBridge creates the bridge between the machine (the control plane) and the nodes.
//
// The bridge's MAC is fixed. Otherwise the bridge would take the lowest address of its
// ports and change it when a node is lost. The other nodes would then lose the API server
// until their ARP entries expire, and all nodes would be NotReady at once.
func (c *Cluster) ensureBridge() error {
	if err := c.claimBridge(); err != nil {
		return err
	}
	if exists("/sys/class/net/" + bridgeName) {
		return runProgram("ip", "link", "set", bridgeName, "up")
	}
	return sequence(
		func() error {
			return runProgram("ip", "link", "add", bridgeName, "address", bridgeMAC, "type", "bridge")
		},
		func() error { return runProgram("ip", "link", "set", "dev", bridgeName, "alias", c.Dir) },
		func() error { return runProgram("ip", "address", "add", bridgeIP+"/24", "dev", bridgeName) },
		func() error { return runProgram("ip", "link", "set", bridgeName, "up") },
	)
}

// claimBridge fails if the bridge belongs to a cluster with another state directory. All
// clusters use the same names, addresses and ports, so only one can run.
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

// connectNode connects a running node to the network: it creates a veth pair to the
// bridge, and routes to and from the node's pods.
func (c *Cluster) connectNode(n Node) error {
	r, ok := c.running(n.Name)
	if !ok {
		return fmt.Errorf("node %s does not run", n.Name)
	}
	if exists("/sys/class/net/" + n.Link()) {
		return setLink(n, true)
	}
	err := sequence(
		func() error {
			return runProgram("ip", "link", "add", n.Link(), "type", "veth",
				"peer", "name", "eth0", "address", n.MAC(), "netns", fmt.Sprint(r.Pid))
		},
		func() error { return runProgram("ip", "link", "set", n.Link(), "master", bridgeName, "up") },
		func() error { return runProgram("ip", "route", "replace", n.PodCIDR(), "via", n.IP()) },
	)
	if err != nil {
		return err
	}
	// One ip process with a batch, because every node has routes to the pods of all others.
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
		if err := runCmd(cmd); err != nil {
			return err
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
}

// setLink connects or disconnects the node's cable on the bridge's side.
func setLink(n Node, up bool) error {
	state := "down"
	if up {
		state = "up"
	}
	return runProgram("ip", "link", "set", n.Link(), state)
}

// disconnectNode removes the node's link. The kernel also removes it when the node's
// namespace ends, but later.
func disconnectNode(n Node) error {
	if exists("/sys/class/net/" + n.Link()) {
		// The kernel may remove it at the same moment.
		if err := runProgram("ip", "link", "delete", n.Link()); err != nil && exists("/sys/class/net/"+n.Link()) {
			return err
		}
	}
	return nil
}

// removeBridge removes the bridge and, with it, the routes over it.
func (c *Cluster) removeBridge() error {
	if !exists("/sys/class/net/" + bridgeName) {
		return nil
	}
	return runProgram("ip", "link", "delete", bridgeName)
}

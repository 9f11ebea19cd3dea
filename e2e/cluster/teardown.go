package main

import (
	"errors"
	"os"
)

// leftovers are what `cluster down` leaves in the state directory on purpose: the
// logs of the last cluster, and the lock that this command holds.
var leftovers = map[string]bool{"log": true, "audit.log": true, "lock": true}

// down ends everything that the records name and takes back every change to the
// machine. It goes on after an error and reports all of them; what it could not do,
// the next down does.
func (c *Cluster) down() error {
	if err := c.claimBridge(); err != nil {
		return err
	}
	nodes := c.nodes()
	err := errors.Join(
		step("processes ended", c.killAll),
		step("links and routes removed", func() error {
			var err error
			for _, n := range nodes {
				err = errors.Join(err, disconnectNode(n))
			}
			return errors.Join(err, c.removeBridge())
		}),
		step("control groups, settings and mount points put back", func() error {
			var err error
			for _, n := range nodes {
				err = errors.Join(err, removeCgroups(n))
			}
			if err == nil { // groups of ours that are left would pass for somebody else's
				err = c.restoreControllers(cgroupBase)
			}
			return errors.Join(err, c.restoreSysctls(), c.removeMountPoints())
		}),
	)
	if err != nil {
		return err // the records and the nodes' directories stay, so that down can be tried again
	}
	return step("state removed", c.removeState)
}

// killAll ends the recorded processes: first the nodes, whose inits take everything
// in them along, then the control plane in any order.
func (c *Cluster) killAll() error {
	records, err := c.records()
	nodes, rest := splitNodes(records)
	return errors.Join(err, killEach(nodes), killEach(rest))
}

func killEach(records []Record) error {
	var all []func() error
	for _, r := range records {
		all = append(all, func() error {
			if err := r.kill(); err != nil && !errors.Is(err, errGone) {
				return err
			}
			return nil
		})
	}
	return parallel(all...)
}

// splitNodes tells the inits of nodes (n1) from everything else (etcd, n1.kubelet).
func splitNodes(records []Record) (nodes, rest []Record) {
	for _, r := range records {
		if len(r.Name) == 2 && r.Name[0] == 'n' {
			nodes = append(nodes, r)
		} else {
			rest = append(rest, r)
		}
	}
	return nodes, rest
}

func (c *Cluster) removeState() error {
	entries, err := os.ReadDir(c.Dir)
	for _, entry := range entries {
		if !leftovers[entry.Name()] {
			err = errors.Join(err, os.RemoveAll(c.path(entry.Name())))
		}
	}
	return err
}

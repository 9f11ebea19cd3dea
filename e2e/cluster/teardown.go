package main

import (
	"errors"
	"os"
)

// keptEntries are the entries of the state directory that `cluster down` keeps: the logs
// of the last cluster, and the lock that this command holds.
var keptEntries = map[string]bool{"log": true, "audit.log": true, "lock": true}

// down ends all recorded processes and reverts all changes of the machine. It continues
// after an error and reports all errors. The next down retries what has failed.
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
		step("control groups, settings and mount points restored", func() error {
			var err error
			for _, n := range nodes {
				err = errors.Join(err, removeCgroups(n))
			}
			if err == nil { // remaining groups of ours would count as groups of others
				err = c.restoreControllers(cgroupBase)
			}
			return errors.Join(err, c.restoreSysctls(), c.removeMountPoints())
		}),
	)
	if err != nil {
		return err // the records and the nodes' directories stay, so that down can be retried
	}
	return step("state removed", c.removeState)
}

// killAll ends the recorded processes: first the nodes' init processes, with which all
// processes of the nodes end, then the control plane in any order.
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

// splitNodes separates the nodes' init processes (n1) from all others (etcd, n1.kubelet).
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
		if !keptEntries[entry.Name()] {
			err = errors.Join(err, os.RemoveAll(c.path(entry.Name())))
		}
	}
	return err
}

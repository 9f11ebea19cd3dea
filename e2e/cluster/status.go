package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// health is the state of a part of the cluster.
type health struct {
	part string
	pid  int // 0 if there is no process
	err  error
}

// checks checks all parts in parallel.
func (c *Cluster) checks() []health {
	nodes := c.nodes()
	var ready map[string]bool
	var readyErr error
	results := make([]health, len(components)+len(nodes))
	var all []func() error
	for i, component := range components {
		all = append(all, func() error {
			results[i] = c.checkComponent(component)
			return nil
		})
	}
	all = append(all, func() error {
		a, err := c.api()
		if err == nil {
			ready, err = a.readyNodes()
		}
		readyErr = err
		return nil
	})
	_ = parallel(all...) // the results carry the errors
	for i, n := range nodes {
		results[len(components)+i] = c.checkNode(n, ready, readyErr)
	}
	return results
}

func (c *Cluster) checkComponent(component Component) health {
	r, ok := c.running(component.Name)
	if !ok {
		return health{component.Name, 0, errors.New("is not running")}
	}
	return health{component.Name, r.Pid, component.ready(c)}
}

func (c *Cluster) checkNode(n Node, ready map[string]bool, readyErr error) health {
	r, ok := c.running(n.Name)
	if !ok {
		return health{n.Name, 0, errors.New("is powered off")}
	}
	for _, program := range nodePrograms {
		if _, ok := c.running(n.Name + "." + program); !ok {
			return health{n.Name, r.Pid, fmt.Errorf("%s is not running", program)}
		}
	}
	// The kernel reports "unknown" for a link whose other side it cannot check.
	state, err := os.ReadFile("/sys/class/net/" + n.Link() + "/operstate")
	if link := strings.TrimSpace(string(state)); err == nil && link != "up" && link != "unknown" {
		err = fmt.Errorf("its link is %s", link)
	}
	if err == nil {
		err = readyErr
	}
	if err == nil && !ready[n.Name] {
		err = errors.New("is not Ready according to the API server")
	}
	return health{n.Name, r.Pid, err}
}

// unhealthy returns nil if all parts are healthy. It first looks for a part that is not
// running, because the checks of the others would then take long.
func (c *Cluster) unhealthy() error {
	for _, component := range components {
		if _, ok := c.running(component.Name); !ok {
			return fmt.Errorf("%s is not running", component.Name)
		}
	}
	var err error
	for _, h := range c.checks() {
		if h.err != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", h.part, h.err))
		}
	}
	return err
}

// status prints one line per part, and fails if a part is not healthy.
func (c *Cluster) status() error {
	if !exists(c.path("pki")) {
		return fmt.Errorf("no cluster in %s", c.Dir)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PART\tPID\tSTATE")
	failing := 0
	for _, h := range c.checks() {
		state := "ok"
		if h.err != nil {
			state = h.err.Error()
			failing++
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", h.part, h.pid, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if failing > 0 {
		return fmt.Errorf("%d parts of the cluster in %s are not healthy", failing, c.Dir)
	}
	return nil
}

func dial(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

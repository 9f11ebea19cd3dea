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

// health is what is known of one part of the cluster.
type health struct {
	part string
	pid  int // 0: no process
	err  error
}

// checks looks at every part, all at once.
func (c *Cluster) checks() []health {
	nodes := c.nodes()
	var ready map[string]bool
	var readyErr error
	results := make([]health, len(components)+len(nodes))
	var all []func() error
	for i, one := range components {
		all = append(all, func() error {
			results[i] = c.checkComponent(one)
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

func (c *Cluster) checkComponent(one Component) health {
	r, ok := c.running(one.Name)
	if !ok {
		return health{one.Name, 0, errors.New("does not run")}
	}
	return health{one.Name, r.Pid, one.ready(c)}
}

func (c *Cluster) checkNode(n Node, ready map[string]bool, readyErr error) health {
	r, ok := c.running(n.Name)
	if !ok {
		return health{n.Name, 0, errors.New("has no power")}
	}
	for _, program := range nodePrograms {
		if _, ok := c.running(n.Name + "." + program); !ok {
			return health{n.Name, r.Pid, fmt.Errorf("%s does not run", program)}
		}
	}
	// "unknown" is what the kernel says of a link whose other side it cannot judge.
	state, err := os.ReadFile("/sys/class/net/" + n.Link() + "/operstate")
	if link := strings.TrimSpace(string(state)); err == nil && link != "up" && link != "unknown" {
		err = fmt.Errorf("its link is %s", link)
	}
	if err == nil {
		err = readyErr
	}
	if err == nil && !ready[n.Name] {
		err = errors.New("the API server does not see it Ready")
	}
	return health{n.Name, r.Pid, err}
}

// unhealthy is nil if every part is as it should be. A part that does not run is
// found without asking the others, whose answers would then take their time.
func (c *Cluster) unhealthy() error {
	for _, one := range components {
		if _, ok := c.running(one.Name); !ok {
			return fmt.Errorf("%s does not run", one.Name)
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

// status prints one line per part, and fails if one is not well.
func (c *Cluster) status() error {
	if !exists(c.path("pki")) {
		return fmt.Errorf("no cluster in %s", c.Dir)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PART\tPID\tSTATE")
	sick := 0
	for _, h := range c.checks() {
		state := "ok"
		if h.err != nil {
			state = h.err.Error()
			sick++
		}
		fmt.Fprintf(w, "%s\t%d\t%s\n", h.part, h.pid, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if sick > 0 {
		return fmt.Errorf("%d parts of the cluster in %s are not well", sick, c.Dir)
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

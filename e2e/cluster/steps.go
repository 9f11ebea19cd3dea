package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

var began = time.Now()

// step runs one part of a command and prints what it was and how long it took.
func step(what string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Printf("%7.2fs  %s (%.2f s)\n", time.Since(began).Seconds(), what, time.Since(start).Seconds())
	return nil
}

// steps runs each function until one fails.
func steps(all ...func() error) error {
	for _, one := range all {
		if err := one(); err != nil {
			return err
		}
	}
	return nil
}

// parallel runs the functions side by side and joins their errors.
func parallel(all ...func() error) error {
	results := make(chan error, len(all))
	for _, one := range all {
		go func() { results <- one() }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-results)
	}
	return err
}

// waitFor polls until done says so. An error of done ends the wait at once.
func waitFor(limit time.Duration, what string, done func() (bool, error)) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waiting for %s: not within %v", what, limit)
		}
	}
}

// command runs a program to its end; what it printed becomes part of the error.
func command(name string, args ...string) error {
	return finish(exec.Command(name, args...))
}

func finish(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// heldLock is the cluster's lock while this process holds it.
var heldLock *os.File

// lock admits one changing command at a time; it is held until this process and
// every child that has not yet recorded itself are gone.
func (c *Cluster) lock() error {
	if os.Geteuid() != 0 {
		return errors.New("this needs root: it makes namespaces, links and cgroups")
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(c.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		fmt.Fprintln(os.Stderr, "waiting for another cluster command to end")
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	heldLock = f
	return err
}

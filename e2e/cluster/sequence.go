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

var startTime = time.Now()

// step runs a part of a command and prints its description and how long it took.
func step(what string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Printf("%7.2fs  %s (%.2f s)\n", time.Since(startTime).Seconds(), what, time.Since(start).Seconds())
	return nil
}

// sequence runs the functions in order until one fails.
func sequence(all ...func() error) error {
	for _, do := range all {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// parallel runs the functions in parallel and joins their errors.
func parallel(all ...func() error) error {
	results := make(chan error, len(all))
	for _, do := range all {
		go func() { results <- do() }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-results)
	}
	return err
}

// waitFor polls until done returns true. An error of done ends the wait at once.
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
			return fmt.Errorf("waiting for %s: timed out after %v", what, limit)
		}
	}
}

// runProgram runs a program. If it fails, the error contains its output.
func runProgram(name string, args ...string) error {
	return runCmd(exec.Command(name, args...))
}

func runCmd(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// heldLock is the cluster's lock while this process holds it.
var heldLock *os.File

// lock takes the cluster's lock, so that only one command changes the cluster at a time.
// The lock is held until this process and every child without a record have ended.
func (c *Cluster) lock() error {
	if os.Geteuid() != 0 {
		return errors.New("this command needs root, to create namespaces, links and cgroups")
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

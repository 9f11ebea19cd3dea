package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// privateDirs are paths that are built into the kubelet, containerd and the CNI
// plugins. Two nodes would share them, so each node's init mounts its own directory
// over every one of them, in its own mount namespace.
var privateDirs = []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd", "/run/netns"}

// powerOn starts the node's init, the process that is the node: when it is killed,
// the kernel takes every process of the node, all its mounts and its network along.
func (c *Cluster) powerOn(n Node) error {
	if _, ok := c.running(n.Name); ok {
		return nil
	}
	// It may be dying, and its link may still be there.
	if err := c.killNode(n); err != nil {
		return err
	}
	// What a real machine loses with its power: the sockets and shims under /run.
	if err := os.RemoveAll(n.path("run")); err != nil {
		return err
	}
	for _, dir := range privateDirs {
		if err := os.MkdirAll(n.privateDir(dir), 0o755); err != nil {
			return err
		}
	}
	cmd := exec.Command("/proc/self/exe", "internal-node-init", c.recordPath(n.Name), n.Name, n.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID}
	return c.startDetached(cmd, n.Name)
}

// privateDir is where a node's own version of a fixed path lies: below run/ if it
// does not outlive a power loss.
func (n Node) privateDir(path string) string {
	if rest, ok := cutPrefixDir(path, "/run"); ok {
		return n.path("run/private", rest)
	}
	return n.path("private", path)
}

func cutPrefixDir(path, dir string) (string, bool) {
	rest, err := filepath.Rel(dir, path)
	return rest, err == nil && filepath.IsLocal(rest)
}

// nodeInit is what `cluster internal-node-init RECORD NAME DIR` does, as process 1
// of a new pid namespace: mount what the node needs, then reap orphans for ever.
func nodeInit(args []string) error {
	path, n := args[0], Node{Name: args[1], Dir: args[2]}
	// /proc is still the machine's, so this link names us as the machine does.
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(self)
	if err != nil {
		return err
	}
	r, err := newRecord(n.Name, pid, os.Args)
	if err != nil {
		return err
	}
	if err := mountNode(n); err != nil {
		return err
	}
	// The record says that the node can be entered: it comes after the mounts. Whoever
	// is killed before this line takes an empty namespace along.
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	if err := r.write(path); err != nil {
		return err
	}
	unix.Close(3) // the cluster's lock
	for range children {
		reap()
	}
	return nil
}

func mountNode(n Node) error {
	// Nothing that is mounted here shows on the machine; what is mounted there later
	// shows here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making / a slave mount: %w", err)
	}
	// Containers with mount propagation want the node's own tree shared.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making / a shared mount: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc: %w", err)
	}
	for _, dir := range privateDirs {
		if err := unix.Mount(n.privateDir(dir), dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting over %s: %w", dir, err)
		}
	}
	return nil
}

// reap collects every child that has ended: containerd's shims are orphans, and so
// becomes whatever a killed container leaves behind.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

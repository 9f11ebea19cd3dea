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

// privateDirs are fixed paths of the kubelet, containerd and the CNI plugins. So that two
// nodes do not share them, each node's init mounts a directory of the node over each of
// them, in its own mount namespace.
var privateDirs = []string{"/var/lib/kubelet", "/var/lib/cni", "/var/log/containers", "/run/containerd", "/run/netns"}

// powerOn starts the node's init. If the init is killed, the kernel ends all processes of
// the node and removes its mounts and its network.
func (c *Cluster) powerOn(n Node) error {
	if _, ok := c.running(n.Name); ok {
		return nil
	}
	// The node may be ending, and its link may still exist.
	if err := c.killNode(n); err != nil {
		return err
	}
	// A real machine loses /run with its power.
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

// privateDir returns the node's directory for a fixed path. A directory that does not
// survive a power loss is below run/.
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

// nodeInit is `cluster internal-node-init RECORD NAME DIR`, process 1 of a new pid
// namespace. It makes the node's mounts, then reaps orphans forever.
func nodeInit(args []string) error {
	path, n := args[0], Node{Name: args[1], Dir: args[2]}
	// /proc is still the machine's, so this link has the machine's pid of this process.
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
	// The record means that the node can be entered, so it is written after the mounts. If
	// this process is killed before, it leaves nothing behind.
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
	// Mounts of the node do not appear on the machine, but later mounts of the machine
	// appear in the node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("making / a slave mount: %w", err)
	}
	// Containers with mount propagation need a shared tree in the node.
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

// reap reaps every child that has ended: containerd's shims, and processes that a killed
// container leaves behind.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

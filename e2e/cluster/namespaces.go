package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// inNode runs do on a thread in the node's mount and network namespaces. The thread's
// children are created in the node's pid namespace.
//
// The thread is not used again: it is still locked when its goroutine ends, so the
// runtime discards it.
func (c *Cluster) inNode(n Node, do func() error) error {
	r, ok := c.running(n.Name)
	if !ok {
		return fmt.Errorf("node %s does not run", n.Name)
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := enter(r.Pid); err != nil {
			result <- fmt.Errorf("entering node %s: %w", n.Name, err)
			return
		}
		result <- do()
	}()
	return <-result
}

func enter(pid int) error {
	// A thread that shares its root and working directory with the process, as it does by
	// default, cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for _, ns := range []struct {
		file string
		kind int
	}{{"pid", unix.CLONE_NEWPID}, {"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}} {
		// All files are opened in the machine's own /proc, so the mount namespace is last.
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns.file))
		if err != nil {
			return err
		}
		err = unix.Setns(int(f.Fd()), ns.kind)
		f.Close()
		if err != nil {
			return fmt.Errorf("setns %s: %w", ns.file, err)
		}
	}
	return nil
}

// startInNode starts a program of a node in the background, unless it runs. Its record
// can be written afterwards, because all processes of a node die with the node's init.
func (c *Cluster) startInNode(n Node, program string, args ...string) error {
	name := n.Name + "." + program
	if _, ok := c.running(name); ok {
		return nil
	}
	log, err := c.openLog(name)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.Env = log, log, "/", daemonEnv
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.inNode(n, cmd.Start); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	r, err := newRecord(name, cmd.Process.Pid, args)
	go cmd.Wait() // reaps the process if it ends before this program
	if err != nil {
		return fmt.Errorf("%s ended at once: %w; the end of its log:\n%s", name, err, c.logTail(name))
	}
	return r.write(c.recordPath(name))
}

// nodeExec runs a command in the node on this process's terminal and returns its exit
// code.
func (c *Cluster) nodeExec(n Node, args []string) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Dir = "/"
	signal.Ignore(os.Interrupt) // the terminal sends it to the command too, which handles it
	err := c.inNode(n, cmd.Run)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// containerPids returns the pids of a container's processes, as the machine numbers them.
// It asks the node's containerd and not the API server, so it also finds the container of
// a pod that was deleted by force while its node was disconnected.
func (c *Cluster) containerPids(n Node, namespace, pod, container string) ([]int, error) {
	filter := fmt.Sprintf(`labels."io.kubernetes.pod.namespace"==%q,labels."io.kubernetes.pod.name"==%q,labels."io.kubernetes.container.name"==%q`,
		namespace, pod, container)
	cmd := exec.Command("ctr", "--address", n.Socket(), "--namespace", "k8s.io", "containers", "list", "--quiet", filter)
	var out []byte
	err := c.inNode(n, func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("asking the containerd of %s: %w", n.Name, err)
	}
	return pidsInCgroups(strings.Fields(string(out)))
}

// pidsInCgroups returns the processes in cgroups whose last path element is one of the
// names.
func pidsInCgroups(names []string) ([]int, error) {
	var pids []int
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		for _, name := range names {
			if strings.Contains(string(b), "/"+name+"\n") {
				var pid int
				fmt.Sscanf(file, "/proc/%d/cgroup", &pid)
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, err
}

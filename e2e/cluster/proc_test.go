package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// sleeper starts a process that ends with the test.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the test may have ended it
		_ = cmd.Wait()
	})
	return cmd
}

func TestRecordedProcessIsKilled(t *testing.T) {
	pid := sleeper(t).Process.Pid
	r, err := newRecord("etcd", pid, nil)
	must(t, err)
	if !r.alive() {
		t.Fatal("a running process is not reported as alive")
	}
	must(t, r.kill())
	if r.alive() {
		t.Error("a killed process that is not yet reaped is reported as alive")
	}
}

func TestReusedPidIsNeverKilled(t *testing.T) {
	pid := sleeper(t).Process.Pid
	r, err := newRecord("etcd", pid, nil)
	must(t, err)
	for name, stale := range map[string]Record{
		"an older process": {Name: r.Name, Pid: pid, Start: r.Start - 1, Boot: r.Boot},
		"an older boot":    {Name: r.Name, Pid: pid, Start: r.Start, Boot: "another"},
	} {
		if stale.alive() {
			t.Errorf("%s is reported as alive", name)
		}
		if err := stale.kill(); !errors.Is(err, errGone) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !r.alive() {
		t.Error("the other process was killed")
	}
}

func TestTeardownDoesNotKillForeignProcesses(t *testing.T) {
	c := testCluster(t)
	mine, foreign := sleeper(t), sleeper(t)
	r, err := newRecord("etcd", mine.Process.Pid, nil)
	must(t, err)
	must(t, r.write(c.recordPath(r.Name)))
	reused, err := newRecord("apiserver", foreign.Process.Pid, nil)
	must(t, err)
	reused.Start--
	must(t, reused.write(c.recordPath(reused.Name)))
	must(t, c.killAll())
	reused.Start++
	if r.alive() || !reused.alive() {
		t.Errorf("mine alive: %v, foreign alive: %v", r.alive(), reused.alive())
	}
}

func TestBrokenRecordDoesNotHideTheOthers(t *testing.T) {
	c := testCluster(t)
	pid := sleeper(t).Process.Pid
	r, err := newRecord("etcd", pid, nil)
	must(t, err)
	must(t, r.write(c.recordPath(r.Name)))
	must(t, os.WriteFile(c.recordPath("apiserver"), []byte("{"), 0o600))
	if err := c.killAll(); err == nil {
		t.Error("an unreadable record is not reported")
	}
	if r.alive() {
		t.Error("etcd still runs")
	}
}

func TestNodesEndBeforeTheControlPlane(t *testing.T) {
	var all []Record
	for _, name := range []string{"apiserver", "n1", "n1.kubelet", "n2"} {
		all = append(all, Record{Name: name})
	}
	nodes, rest := splitNodes(all)
	names := func(records []Record) (out []string) {
		for _, r := range records {
			out = append(out, r.Name)
		}
		return out
	}
	if !slices.Equal(names(nodes), []string{"n1", "n2"}) || !slices.Equal(names(rest), []string{"apiserver", "n1.kubelet"}) {
		t.Errorf("nodes %v, rest %v", names(nodes), names(rest))
	}
}

func TestDownRemovesTheStateExceptTheLogs(t *testing.T) {
	c := testCluster(t)
	must(t, os.WriteFile(c.auditLog(), nil, 0o600))
	must(t, os.WriteFile(c.logPath("etcd"), nil, 0o600))
	must(t, c.removeState())
	left, err := filepath.Glob(c.path("*"))
	must(t, err)
	if !slices.Equal(left, []string{c.auditLog(), c.path("log")}) || !exists(c.logPath("etcd")) {
		t.Errorf("left: %v", left)
	}
}

func TestExistingMountPointsAreKept(t *testing.T) {
	c := testCluster(t)
	base := t.TempDir()
	old, created, used := filepath.Join(base, "old"), filepath.Join(base, "new/deep"), filepath.Join(base, "used")
	must(t, os.Mkdir(old, 0o755))
	for range 2 { // a second up must keep the record of the first one
		must(t, c.createMountPoints([]string{old, created, used}))
	}
	must(t, os.WriteFile(filepath.Join(used, "somebody"), nil, 0o600))
	must(t, c.removeMountPoints())
	if !exists(old) || exists(filepath.Dir(created)) || !exists(used) {
		t.Errorf("old: %v, created: %v, used: %v", exists(old), exists(filepath.Dir(created)), exists(used))
	}
}

func TestOnlyControllersThatWereDisabledAreDisabledAgain(t *testing.T) {
	c := testCluster(t)
	root := t.TempDir() // ordinary files, which contain the last write
	control := filepath.Join(root, "cgroup.subtree_control")
	must(t, c.saveControllers(root)) // version 1
	must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpuset cpu io memory pids rdma\n"), 0o600))
	must(t, os.WriteFile(control, []byte("cpuset cpu memory pids\n"), 0o600))
	for range 2 { // a second up must keep the record of the first one
		must(t, c.saveControllers(root))
		must(t, os.WriteFile(control, []byte("cpuset cpu io memory pids\n"), 0o600))
	}
	must(t, c.restoreControllers(root))
	written, err := os.ReadFile(control)
	must(t, err)
	if string(written) != "-io" || exists(c.path("controllers.json")) {
		t.Errorf("written: %q, recorded: %v", written, exists(c.path("controllers.json")))
	}
	must(t, os.Remove(control))
	must(t, c.restoreControllers(root)) // nothing is recorded any more
	if exists(control) {
		t.Error("a second down writes again")
	}
}

func TestStartedProgramHasNoInheritedDescriptor(t *testing.T) {
	// As a shell passes it on: without close-on-exec.
	inherited, err := syscall.Open(filepath.Join(t.TempDir(), "lock"), syscall.O_CREAT|syscall.O_RDONLY, 0o600)
	must(t, err)
	defer syscall.Close(inherited)
	show := func() bool {
		err := exec.Command("test", "-e", fmt.Sprintf("/proc/self/fd/%d", inherited)).Run()
		return err == nil
	}
	if !show() {
		t.Fatal("the descriptor is not passed on, so this test proves nothing")
	}
	closeInheritedOnExec()
	if show() {
		t.Error("a program that was started has a descriptor of its parent's parent")
	}
}

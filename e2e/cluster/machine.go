package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The cluster's changes of the machine, apart from processes and links, and how they are
// reverted. Each change is recorded before it is made.

// savedSysctls are the settings that a kubelet changes machine-wide.
var savedSysctls = []string{
	"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// saveSysctls records the values from before the first kubelet.
func (c *Cluster) saveSysctls() error {
	if exists(c.path("sysctls.json")) {
		return nil
	}
	saved := map[string]string{}
	for _, name := range savedSysctls {
		b, err := os.ReadFile("/proc/sys/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // the kernel does not have this setting
		}
		if err != nil {
			return err
		}
		saved[name] = strings.TrimSpace(string(b))
	}
	b, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	return writeFile(c.path("sysctls.json"), b, 0o600)
}

func (c *Cluster) restoreSysctls() error {
	b, err := os.ReadFile(c.path("sysctls.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	saved := map[string]string{}
	if err := json.Unmarshal(b, &saved); err != nil {
		return err
	}
	for name, value := range saved {
		err = errors.Join(err, os.WriteFile("/proc/sys/"+name, []byte(value), 0))
	}
	return errors.Join(err, os.Remove(c.path("sysctls.json")))
}

// createMountPoints creates the directories over which the nodes mount. It records those
// that did not exist, parents included.
func (c *Cluster) createMountPoints(dirs []string) error {
	created, err := c.createdDirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		var missing []string
		for d := dir; !exists(d); d = filepath.Dir(d) {
			missing = append(missing, d)
		}
		slices.Reverse(missing)
		created = append(created, missing...)
	}
	b, err := json.Marshal(created)
	if err != nil {
		return err
	}
	if err := writeFile(c.path("created-dirs.json"), b, 0o600); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) createdDirs() ([]string, error) {
	var created []string
	b, err := os.ReadFile(c.path("created-dirs.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return created, json.Unmarshal(b, &created)
}

// removeMountPoints removes the directories that createMountPoints has created, unless
// they contain something.
func (c *Cluster) removeMountPoints() error {
	created, err := c.createdDirs()
	if err != nil {
		return err
	}
	slices.Reverse(created)
	for _, dir := range created {
		_ = os.Remove(dir) // fails, as intended, if the directory is not empty
	}
	return os.RemoveAll(c.path("created-dirs.json"))
}

const cgroupBase = "/sys/fs/cgroup"

// cgroupRoots returns the roots of the control group hierarchies: one per controller in
// version 1, a single one in version 2.
func cgroupRoots() (roots []string, version2 bool, err error) {
	if exists(cgroupBase + "/cgroup.controllers") {
		return []string{cgroupBase}, true, nil
	}
	if roots, err = cgroupMounts("cgroup"); err == nil && len(roots) == 0 {
		err = errors.New("no control groups are mounted below " + cgroupBase)
	}
	return roots, false, err
}

func cgroupMounts(fsTypes ...string) ([]string, error) {
	var found []string
	mounts, err := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && slices.Contains(fsTypes, f[2]) && strings.HasPrefix(f[1], cgroupBase) {
			found = append(found, f[1])
		}
	}
	return found, err
}

// createCgroups creates the root of the node's control groups in every hierarchy.
func createCgroups(n Node) error {
	roots, version2, err := cgroupRoots()
	if err != nil {
		return err
	}
	if version2 {
		available, err := os.ReadFile(filepath.Join(roots[0], "cgroup.controllers"))
		if err != nil {
			return err
		}
		control := filepath.Join(roots[0], "cgroup.subtree_control")
		if err := os.WriteFile(control, []byte(enableControllers(string(available))), 0); err != nil {
			return err
		}
	}
	for _, root := range roots {
		dir := filepath.Join(root, n.Cgroup())
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// A new cpuset accepts no process until its CPUs and memory nodes are set.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			share, err := os.ReadFile(filepath.Join(root, file))
			if version2 || errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, file), share, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// enableControllers returns the content for cgroup.subtree_control that enables the
// controllers that a node needs.
func enableControllers(available string) string {
	var entries []string
	for _, controller := range neededControllers(available) {
		entries = append(entries, "+"+controller)
	}
	return strings.Join(entries, " ")
}

// neededControllers returns the available controllers that a node needs. A kubelet
// refuses a root that lacks a controller of the machine.
func neededControllers(available string) []string {
	var found []string
	for _, controller := range strings.Fields(available) {
		if slices.Contains([]string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}, controller) {
			found = append(found, controller)
		}
	}
	return found
}

// saveControllers records which controllers were disabled below the root of a version 2
// hierarchy before the first node enabled them.
func (c *Cluster) saveControllers(root string) error {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if exists(c.path("controllers.json")) || errors.Is(err, os.ErrNotExist) {
		return nil // already recorded, or version 1
	}
	if err != nil {
		return err
	}
	on, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	off := slices.DeleteFunc(neededControllers(string(available)), func(controller string) bool {
		return slices.Contains(strings.Fields(string(on)), controller)
	})
	b, err := json.Marshal(off)
	if err != nil {
		return err
	}
	return writeFile(c.path("controllers.json"), b, 0o600)
}

// restoreControllers disables these controllers again. A controller that other groups
// have begun to use stays enabled: the kernel returns EBUSY for it.
func (c *Cluster) restoreControllers(root string) error {
	b, err := os.ReadFile(c.path("controllers.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var off []string
	if err := json.Unmarshal(b, &off); err != nil {
		return err
	}
	control := filepath.Join(root, "cgroup.subtree_control")
	for _, controller := range off {
		if failed := os.WriteFile(control, []byte("-"+controller), 0); !errors.Is(failed, syscall.EBUSY) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return err // the record stays, so the next down tries again
	}
	return os.Remove(c.path("controllers.json"))
}

// removeCgroups removes the node's control groups, the innermost first, including those
// that runc creates in a version 2 hierarchy in addition to version 1. It retries, because the
// kernel frees a group a moment after its last process.
func removeCgroups(n Node) error {
	roots, err := cgroupMounts("cgroup", "cgroup2")
	if err != nil {
		return err
	}
	return waitFor(10*time.Second, "the control groups of "+n.Name+" to be empty", func() (bool, error) {
		empty := true
		for _, root := range roots {
			empty = removeTree(filepath.Join(root, n.Cgroup())) && empty
		}
		return empty, nil
	})
}

// removeTree removes a tree of directories. The files of a cgroup cannot be removed and
// need not be.
func removeTree(dir string) bool {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	for _, entry := range entries {
		if entry.IsDir() {
			removeTree(filepath.Join(dir, entry.Name()))
		}
	}
	return os.Remove(dir) == nil
}

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

// What the cluster changes on the machine beyond processes and links, and how it is
// put back. Each change is written down before it is made.

// savedSysctls are the settings that a kubelet changes for the whole machine.
var savedSysctls = []string{
	"kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic", "kernel/panic_on_oops",
	"vm/overcommit_memory", "vm/panic_on_oom",
}

// saveSysctls keeps the values that the machine had before the first kubelet.
func (c *Cluster) saveSysctls() error {
	if exists(c.path("sysctls.json")) {
		return nil
	}
	saved := map[string]string{}
	for _, name := range savedSysctls {
		b, err := os.ReadFile("/proc/sys/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without it
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

// makeMountPoints makes the directories that a node mounts over, and remembers
// every one that was not there, parents too.
func (c *Cluster) makeMountPoints(dirs []string) error {
	made, err := c.madeDirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		var missing []string
		for d := dir; !exists(d); d = filepath.Dir(d) {
			missing = append(missing, d)
		}
		slices.Reverse(missing)
		made = append(made, missing...)
	}
	b, err := json.Marshal(made)
	if err != nil {
		return err
	}
	if err := writeFile(c.path("made-dirs.json"), b, 0o600); err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) madeDirs() ([]string, error) {
	var made []string
	b, err := os.ReadFile(c.path("made-dirs.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return made, json.Unmarshal(b, &made)
}

// removeMountPoints takes them away again, unless somebody else has put something in.
func (c *Cluster) removeMountPoints() error {
	made, err := c.madeDirs()
	if err != nil {
		return err
	}
	slices.Reverse(made)
	for _, dir := range made {
		_ = os.Remove(dir) // fails, as it should, if it is not empty
	}
	return os.RemoveAll(c.path("made-dirs.json"))
}

const cgroupBase = "/sys/fs/cgroup"

// cgroupRoots are the roots of the control group hierarchies: one per controller
// (version 1), or a single one (version 2).
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

// makeCgroups makes the root of the node's control groups in every hierarchy.
func makeCgroups(n Node) error {
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
		if err := os.WriteFile(control, []byte(enable(string(available))), 0); err != nil {
			return err
		}
	}
	for _, root := range roots {
		dir := filepath.Join(root, n.Cgroup())
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		// A new cpuset is empty and takes no process until it has been told its share.
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

// enable is what lets the children of a group have the controllers that a node needs.
func enable(available string) string {
	var words []string
	for _, controller := range needed(available) {
		words = append(words, "+"+controller)
	}
	return strings.Join(words, " ")
}

// needed are the controllers that a node needs, of those that are there. A kubelet
// refuses a root without one that the machine has.
func needed(available string) []string {
	var found []string
	for _, controller := range strings.Fields(available) {
		if slices.Contains([]string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}, controller) {
			found = append(found, controller)
		}
	}
	return found
}

// saveControllers keeps which controllers were off below the root of a version 2
// hierarchy before the first node had them switched on.
func (c *Cluster) saveControllers(root string) error {
	available, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if exists(c.path("controllers.json")) || errors.Is(err, os.ErrNotExist) {
		return nil // version 1 has no such file
	}
	if err != nil {
		return err
	}
	on, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	off := slices.DeleteFunc(needed(string(available)), func(controller string) bool {
		return slices.Contains(strings.Fields(string(on)), controller)
	})
	b, err := json.Marshal(off)
	if err != nil {
		return err
	}
	return writeFile(c.path("controllers.json"), b, 0o600)
}

// restoreControllers switches them off again, but for one that somebody else's
// groups have come to need: the kernel says that it is busy.
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
		return err // the next down tries again
	}
	return os.Remove(c.path("controllers.json"))
}

// removeCgroups removes the node's control groups, the innermost first, also those
// that runc makes in a version 2 hierarchy mounted beside version 1. The kernel needs
// a moment after the last process until it lets go of them.
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

// removeTree removes directories only: the files in a cgroup are not files.
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

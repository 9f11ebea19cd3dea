package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Record identifies a process that the cluster has started by pid, start time and boot. A
// pid alone is not enough, because the kernel reuses it.
type Record struct {
	Name  string   `json:"name"`
	Pid   int      `json:"pid"`   // in the machine's pid namespace, also for a node's processes
	Start uint64   `json:"start"` // clock ticks since boot, from /proc/PID/stat
	Boot  string   `json:"boot"`
	Args  []string `json:"args"`
}

// errGone is returned if a recorded process no longer exists.
var errGone = errors.New("process is gone")

func (c *Cluster) recordPath(name string) string { return c.path("run", name+".json") }

// record reads the record of the process that was last started under this name.
func (c *Cluster) record(name string) (Record, error) {
	var r Record
	b, err := os.ReadFile(c.recordPath(name))
	if errors.Is(err, os.ErrNotExist) {
		return r, errGone
	}
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}

// records returns all records.
func (c *Cluster) records() ([]Record, error) {
	files, err := filepath.Glob(c.path("run", "*.json"))
	var all []Record
	for _, file := range files {
		r, readErr := c.record(strings.TrimSuffix(filepath.Base(file), ".json"))
		if readErr != nil {
			err = errors.Join(err, fmt.Errorf("reading %s: %w", file, readErr))
			continue
		}
		all = append(all, r)
	}
	return all, err
}

// running returns the record of a process and whether the process is alive.
func (c *Cluster) running(name string) (Record, bool) {
	r, err := c.record(name)
	return r, err == nil && r.alive()
}

// alive reports whether the recorded process exists and is not ending. A killed init of a
// node exists for a while, because the kernel first ends all processes of the node.
func (r Record) alive() bool {
	p, err := readProcess(r.Pid)
	return err == nil && r.matches(p) && p.state != 'Z' && p.state != 'X' && p.flags&flagExiting == 0
}

func (r Record) matches(p process) bool { return r.Start == p.start && r.Boot == bootID() }

// kill sends SIGKILL and waits up to 20 s until the process has ended. The pidfd is opened
// before the start time is compared, so a process with a reused pid is never killed.
func (r Record) kill() error {
	fd, err := unix.PidfdOpen(r.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("opening process %d (%s): %w", r.Pid, r.Name, err)
	}
	defer unix.Close(fd)
	if p, err := readProcess(r.Pid); err != nil || !r.matches(p) {
		return errGone
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("killing process %d (%s): %w", r.Pid, r.Name, err)
	}
	return waitExit(fd, r)
}

func waitExit(pidfd int, r Record) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(max(0, time.Until(deadline).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("waiting for process %d (%s): %w", r.Pid, r.Name, err)
		case n == 0:
			return fmt.Errorf("process %d (%s) did not end within 20 s of SIGKILL", r.Pid, r.Name)
		default:
			return nil
		}
	}
}

// newRecord returns the record of a running process.
func newRecord(name string, pid int, args []string) (Record, error) {
	p, err := readProcess(pid)
	return Record{Name: name, Pid: pid, Start: p.start, Boot: bootID(), Args: args}, err
}

func (r Record) write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeFile(path, b, 0o600)
}

// process holds fields of /proc/PID/stat.
type process struct {
	state byte
	flags uint64
	start uint64
}

const flagExiting = 0x4 // PF_EXITING

func readProcess(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	// The second field is the program's name in parentheses and may contain any character.
	_, rest, ok := cutLast(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return process{}, fmt.Errorf("cannot read the stat line of process %d", pid)
	}
	flags, err := strconv.ParseUint(fields[6], 10, 64)
	start, startErr := strconv.ParseUint(fields[19], 10, 64)
	return process{fields[0][0], flags, start}, errors.Join(err, startErr)
}

func cutLast(s, sep string) (string, string, bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// launch starts a program of the control plane in the background, unless it runs.
//
// The new process first runs [execRecorded] of this binary, which writes the record before
// it becomes the program. So a killed harness never leaves a program without a record.
func (c *Cluster) launch(name string, args ...string) error {
	if _, ok := c.running(name); ok {
		return nil
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"internal-exec", c.recordPath(name), name}, args...)...)
	return c.startDetached(cmd, name)
}

// startDetached starts cmd in its own session, with its output in the log and the
// cluster's lock as file descriptor 3. So the lock is not free while a child has not yet
// written its record.
func (c *Cluster) startDetached(cmd *exec.Cmd, name string) error {
	log, err := c.openLog(name)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir, cmd.Env = "/", daemonEnv
	if heldLock != nil {
		cmd.ExtraFiles = []*os.File{heldLock}
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	closeInheritedOnExec()
	if err := os.Remove(c.recordPath(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // also reaps the process if it ends before this program
	return waitFor(10*time.Second, name+" to record itself", func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the process has ended (%v); the end of its log:\n%s", err, c.logTail(name))
		default:
			return exists(c.recordPath(name)), nil
		}
	})
}

// closeInheritedOnExec keeps the descriptors that this process has inherited from the
// programs that it starts. A daemon that kept one, such as the lock of a shell, would hold
// it for as long as the cluster runs.
func closeInheritedOnExec() {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, entry := range open {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// execRecorded is `cluster internal-exec RECORD NAME PROGRAM ARG…`. It writes the record
// of this process and then becomes the program, which keeps its pid and start time.
func execRecorded(args []string) error {
	path, name, argv := args[0], args[1], args[2:]
	unix.CloseOnExec(3)
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	r, err := newRecord(name, os.Getpid(), argv)
	if err != nil {
		return err
	}
	if err := r.write(path); err != nil {
		return err
	}
	return fmt.Errorf("becoming %s: %w", argv[0], syscall.Exec(program, argv, os.Environ()))
}

func (c *Cluster) logPath(name string) string { return c.path("log", name+".log") }

func (c *Cluster) openLog(name string) (*os.File, error) {
	return os.OpenFile(c.logPath(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// writeFile replaces a file atomically.
func writeFile(path string, b []byte, mode os.FileMode) error {
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := os.WriteFile(tmp, b, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

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

// Record identifies one process that the cluster started. A pid alone does not:
// the kernel uses it again. Pid, start time and boot together do.
type Record struct {
	Name  string   `json:"name"`
	Pid   int      `json:"pid"`   // as seen by the machine, also for a node's processes
	Start uint64   `json:"start"` // clock ticks since boot, from /proc/PID/stat
	Boot  string   `json:"boot"`
	Args  []string `json:"args"`
}

// errGone says that a recorded process does not exist any more.
var errGone = errors.New("process is gone")

func (c *Cluster) recordPath(name string) string { return c.path("run", name+".json") }

// record reads who was last started under that name.
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

// records are all processes that were ever started and not yet forgotten.
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

// running is the recorded process if it still lives.
func (c *Cluster) running(name string) (Record, bool) {
	r, err := c.record(name)
	return r, err == nil && r.alive()
}

// alive says whether it is that very process and not about to end. The init of a
// node that was killed stays for a while: the kernel first ends all that is in it.
func (r Record) alive() bool {
	p, err := readProcess(r.Pid)
	return err == nil && r.is(p) && p.state != 'Z' && p.state != 'X' && p.flags&flagExiting == 0
}

func (r Record) is(p process) bool { return r.Start == p.start && r.Boot == bootID() }

// kill sends SIGKILL and waits until the process has ended. The pidfd pins the
// process before its start time is compared, so a reused pid is never hit.
func (r Record) kill() error {
	fd, err := unix.PidfdOpen(r.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("opening process %d (%s): %w", r.Pid, r.Name, err)
	}
	defer unix.Close(fd)
	if p, err := readProcess(r.Pid); err != nil || !r.is(p) {
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

// newRecord describes a living process.
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

// process is what /proc/PID/stat says of one.
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
	// The second field is the program's name in parentheses and may hold anything.
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
// It goes through this binary's own [execRecorded]: the record is written by the
// new process before it becomes the program, so that there is no moment at which
// a killed harness leaves a program behind that nobody knows.
func (c *Cluster) launch(name string, args ...string) error {
	if _, ok := c.running(name); ok {
		return nil
	}
	cmd := exec.Command("/proc/self/exe", append([]string{"internal-exec", c.recordPath(name), name}, args...)...)
	return c.startDetached(cmd, name)
}

// startDetached starts cmd in its own session, with its output in the log and the
// cluster's lock as file descriptor 3: the lock is free only when no child is
// between its fork and its record.
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
	if err := os.Remove(c.recordPath(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // also reaps it if it ends before this program does
	return waitFor(10*time.Second, name+" to record itself", func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("it has ended (%v); its log ends:\n%s", err, c.logTail(name))
		default:
			return exists(c.recordPath(name)), nil
		}
	})
}

// execRecorded is what `cluster internal-exec RECORD NAME PROGRAM ARG…` does: write
// the record of this process, then become the program. Pid and start time stay.
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

// writeFile replaces a file in one step.
func writeFile(path string, b []byte, mode os.FileMode) error {
	tmp := fmt.Sprintf("%s.%d.tmp", path, os.Getpid())
	if err := os.WriteFile(tmp, b, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

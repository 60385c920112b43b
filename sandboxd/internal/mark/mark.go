// Package mark gives every command a mark that its descendants cannot shed: a cgroup of
// its own where the host hands one in, else a supervisor that every orphan falls to. By
// it the whole tree of a command is found and killed, setsid and double forks included.
package mark

import (
	"strconv"
	"syscall"
	"time"
)

// killBudget bounds how long one Kill tries until it gives up (a process in the kernel's
// uninterruptible sleep cannot die).
const killBudget = 5 * time.Second

// reapBudget bounds how long a Kill waits for the dead to be reaped as well.
const reapBudget = time.Second

// Command is what is to be executed, already resolved.
type Command struct {
	Path       string
	Argv       []string
	Env        []string
	Dir        string
	Files      []int // descriptors that become 0, 1, 2 ... of the command
	Credential *syscall.Credential
	TTY        bool // descriptor 0 becomes the controlling terminal
	OOMAdjust  *int // oom_score_adj of the command, if it differs from ours
}

// Tree is a started command with everything that came from it.
type Tree interface {
	// PID is the main process.
	PID() int
	// Done is closed when the main process has ended.
	Done() <-chan struct{}
	// Status is how the main process ended; valid after Done.
	Status() syscall.WaitStatus
	// Signal reaches the main process; ESRCH once it has ended.
	Signal(s syscall.Signal) error
	// SignalAll reaches every process of the tree.
	SignalAll(s syscall.Signal)
	// Kill kills until nothing is left; false if something would not die in time.
	Kill() bool
	// Empty tells whether no process is left.
	Empty() bool
	// Toll tells what the limits did to the tree so far.
	Toll() Toll
	// Release gives up the mark; it goes when the tree is empty.
	Release()
}

// Toll counts what the limits did to a tree.
type Toll struct {
	OOMKills     int64 // processes killed for memory
	RefusedForks int64 // forks refused by the limit of processes
}

// Stats are the figures of all commands together; nil where one cannot be had.
type Stats struct {
	CPU         *float64 `json:"cpu_s"`
	Memory      *int64   `json:"memory_bytes"`
	MemoryPeak  *int64   `json:"memory_peak_bytes"`
	MemoryLimit *int64   `json:"memory_limit_bytes"`
	PIDs        *int64   `json:"pids"`
	PIDsLimit   *int64   `json:"pids_limit"`
	OOMKills    *int64   `json:"oom_kills"`
	Disk        *int64   `json:"disk_bytes"`
}

// Maker starts commands under marks.
type Maker interface {
	// Kind is "cgroup" or "supervisor".
	Kind() string
	// Start starts a command; its error holds the errno of the fork or exec.
	Start(c *Command) (Tree, error)
	// KillAll kills every tree that is left.
	KillAll()
	// Stats reads the figures of the moment.
	Stats() Stats
}

// attributes are those of every command: a session of its own, its user, its terminal.
func (c *Command) attributes() *syscall.ProcAttr {
	files := make([]uintptr, len(c.Files))
	for i, fd := range c.Files {
		files[i] = uintptr(fd)
	}
	return &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: c.TTY, Credential: c.Credential}}
}

// exec forks and executes the command with its attributes a.
func (c *Command) exec(a *syscall.ProcAttr) (int, error) {
	pid, err := syscall.ForkExec(c.Path, c.Argv, a)
	if err == nil && c.OOMAdjust != nil {
		setOOM(pid, *c.OOMAdjust)
	}
	return pid, err
}

// setOOM is best effort: the score can be raised by anyone, lowered only by root.
func setOOM(pid, adjust int) {
	fd, err := syscall.Open("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	_, _ = syscall.Write(fd, []byte(strconv.Itoa(adjust)))
}

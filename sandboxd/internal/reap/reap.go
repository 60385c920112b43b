// Package reap waits for every child of sandboxd: its commands, and the orphans that
// fall to it. Go's own os/exec must not be used beside it.
package reap

import (
	"fmt"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	pAll   = 0
	waitNo = 0x1000000 // WNOWAIT
	// strangers is how often to look for orphans of processes that somebody else put into
	// our pid namespace, while we have no child of our own to wait for.
	strangers = 5 * time.Second
)

// Child is one process that was started through the reaper.
type Child struct {
	PID    int
	Done   chan struct{} // closed once Status is set
	Status syscall.WaitStatus
	reaper *Reaper
	reaped bool
	resume bool // continued whenever it is stopped
}

// Reaper owns all waiting. The lock is held over a fork and its entry into the table,
// and over a wait and its delivery: so no child is missed, no pid in the table can be
// one that the kernel has given to somebody else, and no signal meets a stranger.
type Reaper struct {
	mu       sync.Mutex
	children map[int]*Child
	wake     chan struct{}
	orphan   func(pid int)
}

// New starts the reaper. orphan (may be nil) hears of each reaped process that was not
// started here; it must not block.
func New(orphan func(pid int)) *Reaper {
	r := &Reaper{children: map[int]*Child{}, wake: make(chan struct{}, 1), orphan: orphan}
	go r.loop()
	return r
}

func (r *Reaper) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Start runs fork, which returns the pid of a new child, and watches that child.
func (r *Reaper) Start(fork func() (int, error)) (*Child, error) { return r.start(fork, false) }

// StartUnstoppable is Start for a child that is continued whenever somebody stops it.
func (r *Reaper) StartUnstoppable(fork func() (int, error)) (*Child, error) {
	return r.start(fork, true)
}

func (r *Reaper) start(fork func() (int, error), resume bool) (*Child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return nil, err
	}
	c := &Child{PID: pid, Done: make(chan struct{}), reaper: r, resume: resume}
	r.children[pid] = c
	r.poke()
	return c, nil
}

// Signal sends a signal, unless the child has been reaped: then ESRCH.
func (c *Child) Signal(s syscall.Signal) error {
	c.reaper.mu.Lock()
	defer c.reaper.mu.Unlock()
	if c.reaped {
		return syscall.ESRCH
	}
	return syscall.Kill(c.PID, s)
}

// Is tells whether pid is a living child that was started through the reaper.
func (r *Reaper) Is(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.children[pid]
	return ok
}

func (r *Reaper) loop() {
	for {
		pid, err := peek()
		if err != nil { // no child and so no descendant at all: sleep until there may be one
			select {
			case <-r.wake:
			case <-time.After(strangers):
			}
			continue
		}
		r.collect(pid)
	}
}

// collect reaps one dead child, whose pid is still reserved by its zombie, or takes note
// that one was stopped.
func (r *Reaper) collect(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	got, err := syscall.Wait4(pid, &status, syscall.WNOHANG|syscall.WUNTRACED, nil)
	if err != nil || got != pid {
		return // a fork that failed reaped its own child meanwhile
	}
	c, ok := r.children[pid]
	if status.Stopped() {
		if ok && c.resume {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
		return
	}
	if !ok {
		if r.orphan != nil {
			r.orphan(pid)
		}
		return
	}
	delete(r.children, pid)
	c.reaped, c.Status = true, status
	close(c.Done)
}

// peek blocks until a child is dead or stopped and tells its pid without reaping it.
func peek() (int, error) {
	var info [128]byte // siginfo_t
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, pAll, 0,
			uintptr(unsafe.Pointer(&info)), syscall.WEXITED|syscall.WUNTRACED|waitNo, 0, 0)
		switch errno {
		case 0:
			return int(*(*int32)(unsafe.Pointer(&info[16]))), nil // si_pid
		case syscall.EINTR:
		default:
			return 0, fmt.Errorf("waitid: %w", errno)
		}
	}
}

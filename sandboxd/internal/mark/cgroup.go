package mark

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"orchard/sandboxd/internal/dirfd"
	"orchard/sandboxd/internal/reap"
)

// Cgroups makes a cgroup per command below the directories that the host handed in.
type Cgroups struct {
	version int
	roots   map[string]dirfd.Dir // by hierarchy; "unified" alone on version 2
	own     []dirfd.Dir          // where each command gets a cgroup: what marks, counts and kills
	shared  []int                // `tasks` of the other hierarchies, which all commands enter
	reaper  *reap.Reaper

	mu      sync.Mutex
	next    int
	live    map[*cgroupTree]bool
	pending []string // released but not yet empty
	ticking bool

	deadKills int64 // OOM kills counted in cgroups that are gone (version 1)
}

// NewCgroups checks by trying that cgroups can be made below every directory.
func NewCgroups(version int, fds map[string]int, reaper *reap.Reaper) (*Cgroups, error) {
	m := &Cgroups{version: version, roots: map[string]dirfd.Dir{}, reaper: reaper, live: map[*cgroupTree]bool{}}
	for hierarchy, fd := range fds {
		m.roots[hierarchy] = dirfd.Dir{FD: fd}
	}
	if len(m.roots) == 0 || (version == 2 && len(m.roots) != 1) {
		return nil, fmt.Errorf("cgroup.fds: %d directories do not fit version %d", len(m.roots), version)
	}
	if err := m.divide(); err != nil {
		return nil, err
	}
	name, err := m.make()
	if err != nil {
		return nil, err
	}
	m.remove(name)
	return m, nil
}

// divide tells the hierarchies that need a cgroup per command from those where it would
// only cost time: cpu and freezer act on all commands of the sandbox together.
func (m *Cgroups) divide() error {
	for _, name := range []string{"unified", "pids", "memory"} {
		if root, ok := m.roots[name]; ok {
			m.own = append(m.own, root)
		}
	}
	if len(m.own) == 0 {
		return fmt.Errorf("cgroup.fds: one of unified, pids, memory is due")
	}
	for name, root := range m.roots {
		if name == "unified" || name == "pids" || name == "memory" {
			continue
		}
		fd, err := syscall.Openat(root.FD, "tasks", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("the %s cgroup: %w", name, err)
		}
		m.shared = append(m.shared, fd)
	}
	return nil
}

// Kind is "cgroup".
func (m *Cgroups) Kind() string { return "cgroup" }

// make makes a new cgroup in every hierarchy.
func (m *Cgroups) make() (string, error) {
	for {
		m.mu.Lock()
		m.next++
		name := "c" + strconv.Itoa(m.next)
		m.mu.Unlock()
		err := m.makeNamed(name)
		if err == nil {
			return name, nil
		}
		m.remove(name)
		if err != syscall.EEXIST { //nolint:errorlint // a bare errno
			return "", fmt.Errorf("making a cgroup: %w", err)
		}
	}
}

func (m *Cgroups) makeNamed(name string) error {
	for _, root := range m.own {
		if err := root.Mkdir(name, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the cgroup from every hierarchy; false if it is still in use.
func (m *Cgroups) remove(name string) bool {
	gone := true
	for _, root := range m.own {
		if err := root.Rmdir(name); err != nil && err != syscall.ENOENT { //nolint:errorlint // a bare errno
			gone = false
		}
	}
	return gone
}

// Start starts c in a cgroup of its own.
func (m *Cgroups) Start(c *Command) (Tree, error) {
	name, err := m.make()
	if err != nil {
		return nil, err
	}
	t := &cgroupTree{maker: m, name: name, refusedBefore: m.refusedOutside()}
	m.mu.Lock()
	m.live[t] = true
	m.mu.Unlock()
	if m.version == 2 {
		t.child, err = m.startUnified(name, c)
	} else {
		t.child, err = m.startThread(name, c)
	}
	if err != nil {
		t.Release()
		return nil, err
	}
	return t, nil
}

// startUnified lets the kernel put the child into the cgroup as it is made.
func (m *Cgroups) startUnified(name string, c *Command) (*reap.Child, error) {
	group, err := m.roots["unified"].Sub(name)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	a := c.attributes()
	a.Sys.UseCgroupFD, a.Sys.CgroupFD = true, group.FD
	return m.reaper.Start(func() (int, error) { return c.exec(a) })
}

// startThread forks from a thread that first moved itself into the cgroups, and that
// then ends: a child is born where its parent thread is, and nobody else ever was there.
// (main keeps the first thread of the process to itself, since that one cannot end.)
func (m *Cgroups) startThread(name string, c *Command) (*reap.Child, error) {
	type result struct {
		child *reap.Child
		err   error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		if err := m.enter(name); err != nil {
			done <- result{err: fmt.Errorf("entering the cgroups: %w", err)}
			return
		}
		child, err := m.reaper.Start(func() (int, error) { return c.exec(c.attributes()) })
		done <- result{child, err}
	}()
	r := <-done
	return r.child, r.err
}

// enter moves the calling thread ("0") into the command's cgroups and the shared ones.
func (m *Cgroups) enter(name string) error {
	for _, root := range m.own {
		if err := root.Write(name+"/tasks", "0"); err != nil {
			return err
		}
	}
	for _, tasks := range m.shared {
		if _, err := syscall.Write(tasks, []byte("0")); err != nil {
			return err
		}
	}
	return nil
}

// KillAll kills every tree.
func (m *Cgroups) KillAll() {
	m.mu.Lock()
	names := append([]string(nil), m.pending...)
	for t := range m.live {
		names = append(names, t.name)
	}
	m.mu.Unlock()
	var wait sync.WaitGroup
	for _, name := range names {
		wait.Add(1)
		go func() {
			defer wait.Done()
			m.kill(name)
			m.remove(name)
		}()
	}
	wait.Wait()
}

// release removes the cgroup now, or as soon as it is empty.
func (m *Cgroups) release(name string) {
	if m.remove(name) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = append(m.pending, name)
	if !m.ticking {
		m.ticking = true
		go m.sweep()
	}
}

// sweep retries removals until none is due.
func (m *Cgroups) sweep() {
	pause := 5 * time.Millisecond
	for {
		time.Sleep(pause)
		pause = min(2*pause, time.Second)
		m.mu.Lock()
		names := m.pending
		m.pending = nil
		m.mu.Unlock()
		var left []string
		for _, name := range names {
			if !m.remove(name) {
				left = append(left, name)
			}
		}
		m.mu.Lock()
		m.pending = append(m.pending, left...)
		if len(m.pending) == 0 {
			m.ticking = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
	}
}

// pids lists the living processes of a cgroup, without ourselves: on version 1 the
// thread that forked may not have ended yet. An error means that nobody could look.
func (m *Cgroups) pids(name string) ([]int, error) {
	text, err := m.own[0].Read(name + "/cgroup.procs")
	if err == syscall.ENOENT || err == syscall.ENODEV { //nolint:errorlint // bare errnos
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	var out []int
	for _, line := range strings.Fields(text) {
		if pid, err := strconv.Atoi(line); err == nil && pid > 0 && pid != self {
			out = append(out, pid)
		}
	}
	return out, nil
}

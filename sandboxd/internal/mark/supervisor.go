package mark

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"orchard/sandboxd/internal/dirfd"
	"orchard/sandboxd/internal/memfd"
	"orchard/sandboxd/internal/reap"
)

// Supervisors starts every command below a supervisor process of its own.
type Supervisors struct {
	reaper *reap.Reaper
	own    dirfd.Dir

	mu   sync.Mutex
	live map[int]*supervised // by the supervisor's pid
}

// executable is ourselves, even where our file has no name inside the sandbox.
const executable = "/proc/self/exe"

// NewSupervisors checks that we can be executed again.
func NewSupervisors(reaper *reap.Reaper) (*Supervisors, error) {
	if _, err := os.Stat(executable); err != nil {
		return nil, fmt.Errorf("our own executable cannot be found (is /proc mounted?): %w", err)
	}
	own, err := dirfd.Open("/sys/fs/cgroup")
	if err != nil {
		own = dirfd.Dir{FD: -1}
	}
	return &Supervisors{reaper: reaper, own: own, live: map[int]*supervised{}}, nil
}

// Kind is "supervisor".
func (m *Supervisors) Kind() string { return "supervisor" }

// Start starts c below a new supervisor.
func (m *Supervisors) Start(c *Command) (Tree, error) {
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	document, err := memfd.New("spec", bytes.NewReader(spec))
	if err != nil {
		return nil, err
	}
	defer document.Close()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	_ = syscall.SetNonblock(pair[0], true)
	control := os.NewFile(uintptr(pair[0]), "supervisor")
	files := []uintptr{0, 1, 2, uintptr(pair[1]), document.Fd()}
	for _, fd := range c.Files {
		files = append(files, uintptr(fd))
	}
	child, err := m.reaper.StartUnstoppable(func() (int, error) {
		return syscall.ForkExec(executable, []string{"sandboxd", "supervise"},
			&syscall.ProcAttr{Dir: "/", Env: []string{"GOMAXPROCS=1", "GOGC=off"}, Files: files,
				Sys: &syscall.SysProcAttr{Setsid: true}})
	})
	_ = syscall.Close(pair[1])
	if err != nil {
		control.Close()
		return nil, err
	}
	t := &supervised{maker: m, child: child, control: control, pidfd: -1, done: make(chan struct{}), killsBefore: m.kills()}
	m.mu.Lock()
	m.live[child.PID] = t
	m.mu.Unlock()
	return t.begin()
}

// strays kills what fell to us because its supervisor died, until nothing is left.
func (m *Supervisors) strays() {
	killTree(func() (map[int]process, error) { return below(os.Getpid(), m.reaper.Is) })
}

// KillAll kills every tree, supervisors included.
func (m *Supervisors) KillAll() {
	killTree(func() (map[int]process, error) { return below(os.Getpid(), nil) })
}

// killTree stops all, kills all, and repeats until list finds nobody.
func killTree(list func() (map[int]process, error)) bool {
	deadline := time.Now().Add(killBudget)
	stopped := map[int]uint64{}
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		found, err := list()
		fresh := false
		for pid, p := range found {
			if stopped[pid] != p.started {
				stopped[pid] = p.started
				fresh = true
				signalExact(pid, p, syscall.SIGSTOP)
			}
		}
		switch {
		case err == nil && len(found) == 0:
			return true
		case time.Now().After(deadline):
			return false
		case fresh: // a process that forked before it stopped has children we have not seen
			continue
		}
		for pid, p := range found {
			signalExact(pid, p, syscall.SIGKILL)
		}
		time.Sleep(pause)
	}
}

// kills counts the OOM kills of our own container, where it can be read.
func (m *Supervisors) kills() int64 {
	if m.own.FD < 0 {
		return 0
	}
	return max(keyed(m.own, "memory.events", "oom_kill"), keyed(m.own, "memory/memory.oom_control", "oom_kill"))
}

// Stats reads the figures of our own container, where they can be read.
func (m *Supervisors) Stats() Stats {
	var s Stats
	if m.own.FD >= 0 {
		s = unifiedStats(m.own)
	}
	if s.CPU == nil {
		s.CPU = procCPU()
	}
	return s
}

// decode reads one message of a supervisor.
func decode(message []byte) (kind byte, value int32) {
	if len(message) != 5 {
		return 0, 0
	}
	return message[0], int32(binary.LittleEndian.Uint32(message[1:]))
}

package mark

import (
	"syscall"
	"time"

	"orchard/sandboxd/internal/reap"
)

// kill kills every process of the cgroup until none is left. First no process may fork
// any more (pids.max 0), or a fork bomb would outrun us.
func (m *Cgroups) kill(name string) bool {
	deadline := time.Now().Add(killBudget)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if m.version != 2 || m.roots["unified"].Write(name+"/cgroup.kill", "1") != nil {
			m.forbidForks(name)
			m.signal(name, syscall.SIGKILL)
		}
		if left, err := m.pids(name); err == nil && len(left) == 0 {
			m.awaitReaping(name)
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
}

// awaitReaping waits until no zombie counts against the limit of processes any more: who
// hears of the end may start the next command at once.
func (m *Cgroups) awaitReaping(name string) {
	deadline := time.Now().Add(reapBudget)
	for pause := 100 * time.Microsecond; time.Now().Before(deadline); pause = min(2*pause, 5*time.Millisecond) {
		charged := int64(0)
		for _, root := range m.own {
			if n := number(root, name+"/pids.current"); n != nil {
				charged = *n
			}
		}
		if charged == 0 {
			return
		}
		time.Sleep(pause)
	}
}

func (m *Cgroups) forbidForks(name string) {
	for _, hierarchy := range []string{"pids", "unified"} {
		if root, ok := m.roots[hierarchy]; ok {
			_ = root.Write(name+"/pids.max", "0")
		}
	}
}

// signal signals every process of the cgroup. Each is held by a pidfd and then looked up
// again, so that a pid which meanwhile went to somebody else is never hit.
func (m *Cgroups) signal(name string, s syscall.Signal) {
	handles := map[int]int{}
	seen, _ := m.pids(name)
	for _, pid := range seen {
		fd, err := pidfdOpen(pid)
		if err == nil {
			handles[pid] = fd
		} else if err != syscall.ESRCH { //nolint:errorlint // a bare errno
			handles[pid] = -1
		}
	}
	again, _ := m.pids(name)
	for _, pid := range again {
		fd, ok := handles[pid]
		switch {
		case ok && fd >= 0:
			_ = pidfdSignal(fd, s)
		case ok:
			_ = syscall.Kill(pid, s)
		}
	}
	for _, fd := range handles {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// cgroupTree is a command in its own cgroup.
type cgroupTree struct {
	maker         *Cgroups
	name          string
	child         *reap.Child
	refusedBefore int64
}

func (t *cgroupTree) PID() int                      { return t.child.PID }
func (t *cgroupTree) Done() <-chan struct{}         { return t.child.Done }
func (t *cgroupTree) Status() syscall.WaitStatus    { return t.child.Status }
func (t *cgroupTree) Signal(s syscall.Signal) error { return t.child.Signal(s) }
func (t *cgroupTree) SignalAll(s syscall.Signal)    { t.maker.signal(t.name, s) }
func (t *cgroupTree) Kill() bool                    { return t.maker.kill(t.name) }

func (t *cgroupTree) Empty() bool {
	left, err := t.maker.pids(t.name)
	return err == nil && len(left) == 0
}

func (t *cgroupTree) Release() {
	var kills int64
	if root, ok := t.maker.roots["memory"]; ok {
		kills = keyed(root, t.name+"/memory.oom_control", "oom_kill")
	}
	t.maker.mu.Lock()
	released := !t.maker.live[t]
	if !released {
		delete(t.maker.live, t)
		t.maker.deadKills += kills
	}
	t.maker.mu.Unlock()
	if !released {
		t.maker.release(t.name)
	}
}

// Toll reads the counters of the command's own cgroup: version 1 counts a kill in the
// victim's cgroup, version 2 there and in all above it.
func (t *cgroupTree) Toll() Toll {
	var toll Toll
	m := t.maker
	if m.version == 2 {
		toll.OOMKills = keyed(m.roots["unified"], t.name+"/memory.events", "oom_kill")
		toll.RefusedForks = max(keyed(m.roots["unified"], t.name+"/pids.events", "max"),
			m.refusedOutside()-t.refusedBefore)
		return toll
	}
	if root, ok := m.roots["memory"]; ok {
		toll.OOMKills = keyed(root, t.name+"/memory.oom_control", "oom_kill")
	}
	if root, ok := m.roots["pids"]; ok {
		toll.RefusedForks = keyed(root, t.name+"/pids.events", "max")
	}
	return toll
}

// refusedOutside counts refused forks at the shared limit: newer kernels count them only
// there on version 2.
func (m *Cgroups) refusedOutside() int64 {
	if m.version != 2 {
		return 0
	}
	return keyed(m.roots["unified"], "pids.events", "max")
}

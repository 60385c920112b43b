package mark

import (
	"strconv"
	"strings"

	"orchard/sandboxd/internal/dirfd"
)

// unlimited is where version 1 begins to mean "no limit" by a large number.
const unlimited = 1 << 60

// keyed reads one value of a file of "key value" lines; 0 if it is not there.
func keyed(root dirfd.Dir, file, key string) int64 {
	v := keyedOrNil(root, file, key)
	if v == nil {
		return 0
	}
	return *v
}

func keyedOrNil(root dirfd.Dir, file, key string) *int64 {
	text, err := root.Read(file)
	if err != nil {
		return nil
	}
	for _, line := range strings.Split(text, "\n") {
		name, value, _ := strings.Cut(line, " ")
		if name != key {
			continue
		}
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			return &n
		}
	}
	return nil
}

// number reads a file of one number; nil for "max", a missing file, or no limit.
func number(root dirfd.Dir, file string) *int64 {
	text, err := root.Read(file)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n >= unlimited {
		return nil
	}
	return &n
}

// scaled turns a counter into seconds.
func scaled(n *int64, perSecond float64) *float64 {
	if n == nil {
		return nil
	}
	s := float64(*n) / perSecond
	return &s
}

// unifiedStats reads the figures of a version 2 cgroup.
func unifiedStats(root dirfd.Dir) Stats {
	return Stats{
		CPU:         scaled(keyedOrNil(root, "cpu.stat", "usage_usec"), 1e6),
		Memory:      number(root, "memory.current"),
		MemoryPeak:  number(root, "memory.peak"),
		MemoryLimit: number(root, "memory.max"),
		PIDs:        number(root, "pids.current"),
		PIDsLimit:   number(root, "pids.max"),
		OOMKills:    keyedOrNil(root, "memory.events", "oom_kill"),
	}
}

// Stats reads the figures of all commands together.
func (m *Cgroups) Stats() Stats {
	if m.version == 2 {
		s := unifiedStats(m.roots["unified"])
		if s.CPU == nil {
			s.CPU = procCPU()
		}
		return s
	}
	var s Stats
	if root, ok := m.roots["memory"]; ok {
		s.Memory = number(root, "memory.usage_in_bytes")
		s.MemoryPeak = number(root, "memory.max_usage_in_bytes")
		s.MemoryLimit = number(root, "memory.limit_in_bytes")
		kills := m.oomKills(root)
		s.OOMKills = &kills
	}
	if root, ok := m.roots["pids"]; ok {
		s.PIDs = number(root, "pids.current")
		s.PIDsLimit = number(root, "pids.max")
	}
	for _, root := range m.roots {
		if usage := number(root, "cpuacct.usage"); usage != nil {
			s.CPU = scaled(usage, 1e9)
		}
	}
	if s.CPU == nil {
		s.CPU = procCPU()
	}
	return s
}

// oomKills sums the kills of the living cgroups and of those that are gone: version 1
// counts them in the victim's cgroup alone.
func (m *Cgroups) oomKills(root dirfd.Dir) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.deadKills
	for t := range m.live {
		sum += keyed(root, t.name+"/memory.oom_control", "oom_kill")
	}
	return sum
}

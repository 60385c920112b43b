package mark

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// clockTicks a second, as /proc shows times on every Linux we run on.
const clockTicks = 100

// process is one line of the process table.
type process struct {
	parent  int
	state   byte
	started uint64 // clock ticks since boot: with the pid it names one process for good
	threads int
	ticks   uint64 // CPU used, dead and waited-for children included
}

// readProcess reads /proc/PID/stat.
func readProcess(pid int) (process, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false
	}
	return parseStat(text)
}

// parseStat parses a line of /proc/PID/stat: the name, in brackets, may hold anything.
func parseStat(text []byte) (process, bool) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return process{}, false
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 || len(fields[0]) != 1 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	p := process{parent: parent, state: fields[0][0]}
	p.threads, _ = strconv.Atoi(fields[17])
	p.started, _ = strconv.ParseUint(fields[19], 10, 64)
	for _, field := range fields[11:15] {
		n, _ := strconv.ParseUint(field, 10, 64)
		p.ticks += n
	}
	return p, true
}

// dead tells whether only the entry is left. A process whose first thread has ended while
// others run looks like a zombie but is none.
func (p process) dead() bool { return (p.state == 'Z' || p.state == 'X') && p.threads <= 1 }

// snapshot reads the whole process table of our pid namespace.
func snapshot() map[int]process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	table := make(map[int]process, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			table[pid] = p
		}
	}
	return table
}

// below lists the living descendants of root with their lines of the process table.
// Those for whom prune is true are left out with all that is below them.
func below(root int, prune func(pid int) bool) map[int]process {
	children := listedChildren
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		children = tableChildren(snapshot()) // a kernel without CONFIG_PROC_CHILDREN
	}
	found := map[int]process{}
	queue := []int{root}
	for len(queue) > 0 {
		next := children(queue[0])
		queue = queue[1:]
		for _, pid := range next {
			if _, known := found[pid]; known || prune != nil && prune(pid) {
				continue
			}
			if p, ok := readProcess(pid); ok && !p.dead() {
				found[pid] = p
				queue = append(queue, pid)
			}
		}
	}
	return found
}

// listedChildren asks the kernel for the children of each thread of pid.
func listedChildren(pid int) []int {
	folder := "/proc/" + strconv.Itoa(pid) + "/task/"
	dir, err := os.Open(folder)
	if err != nil {
		return nil
	}
	threads, _ := dir.Readdirnames(-1)
	dir.Close()
	var out []int
	for _, thread := range threads {
		text, err := os.ReadFile(folder + thread + "/children")
		if err != nil {
			continue
		}
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// tableChildren finds children in a snapshot of the whole process table.
func tableChildren(table map[int]process) func(pid int) []int {
	children := map[int][]int{}
	for pid, p := range table {
		children[p.parent] = append(children[p.parent], pid)
	}
	return func(pid int) []int { return children[pid] }
}

// signalExact signals pid only if it still is the process of the snapshot.
func signalExact(pid int, seen process, s syscall.Signal) {
	fd, err := pidfdOpen(pid)
	if err == syscall.ESRCH { //nolint:errorlint // a bare errno
		return
	}
	if err == nil {
		defer syscall.Close(fd)
	}
	now, ok := readProcess(pid)
	if !ok || now.started != seen.started {
		return
	}
	if err == nil {
		_ = pidfdSignal(fd, s)
		return
	}
	_ = syscall.Kill(pid, s) // a kernel before 5.3
}

// procCPU sums the CPU of every process of our pid namespace, if it is ours alone.
func procCPU() *float64 {
	if os.Getpid() != 1 {
		return nil
	}
	var ticks uint64
	for _, p := range snapshot() {
		ticks += p.ticks
	}
	s := float64(ticks) / clockTicks
	return &s
}

package mark

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/dirfd"
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

// readProcess reads /proc/PID/stat; false if there is no such process.
func readProcess(pid int) (process, bool, error) {
	text, err := dirfd.Path.Read("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, false, unlessGone(err)
	}
	p, ok := parseStat([]byte(text))
	return p, ok, nil
}

// unlessGone turns the errors by which /proc says that a process has ended, or is none of
// ours to see or to signal, into none.
func unlessGone(err error) error {
	switch err { //nolint:errorlint // bare errnos
	case syscall.ENOENT, syscall.ESRCH, syscall.EACCES, syscall.EPERM:
		return nil
	}
	return err
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
func snapshot() (map[int]process, error) {
	names, err := dirfd.Path.Names("/proc")
	if err != nil {
		return nil, err
	}
	table := make(map[int]process, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, ok, err := readProcess(pid)
		if err != nil {
			return nil, err
		}
		if ok {
			table[pid] = p
		}
	}
	return table, nil
}

// below lists the living descendants of root with their lines of the process table.
// Those for whom prune is true are left out with all that is below them. An error means
// that the list is not whole, not that nobody is there.
func below(root int, prune func(pid int) bool) (map[int]process, error) {
	children := listedChildren
	if _, err := os.Stat("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children"); err != nil {
		table, err := snapshot() // a kernel without CONFIG_PROC_CHILDREN
		if err != nil {
			return nil, err
		}
		children = tableChildren(table)
	}
	found := map[int]process{}
	queue := []int{root}
	for len(queue) > 0 {
		next, err := children(queue[0])
		if err != nil {
			return nil, err
		}
		queue = queue[1:]
		for _, pid := range next {
			if _, known := found[pid]; known || prune != nil && prune(pid) {
				continue
			}
			p, ok, err := readProcess(pid)
			if err != nil {
				return nil, err
			}
			if ok && !p.dead() {
				found[pid] = p
				queue = append(queue, pid)
			}
		}
	}
	return found, nil
}

// listedChildren asks the kernel for the children of each thread of pid.
func listedChildren(pid int) ([]int, error) {
	folder := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := dirfd.Path.Names(folder)
	if err != nil {
		return nil, unlessGone(err)
	}
	var out []int
	for _, thread := range threads {
		text, err := dirfd.Path.Read(folder + "/" + thread + "/children")
		if err = unlessGone(err); err != nil {
			return nil, err
		}
		for _, field := range strings.Fields(text) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
	}
	return out, nil
}

// tableChildren finds children in a snapshot of the whole process table.
func tableChildren(table map[int]process) func(pid int) ([]int, error) {
	children := map[int][]int{}
	for pid, p := range table {
		children[p.parent] = append(children[p.parent], pid)
	}
	return func(pid int) ([]int, error) { return children[pid], nil }
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
	now, ok, failed := readProcess(pid)
	if failed != nil || !ok || now.started != seen.started {
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
	table, err := snapshot()
	if err != nil {
		return nil
	}
	for _, p := range table {
		ticks += p.ticks
	}
	s := float64(ticks) / clockTicks
	return &s
}

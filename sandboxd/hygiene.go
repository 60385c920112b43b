package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	prSetDumpable     = 4
	sysCloseRange     = 436
	closeRangeCloexec = 4
	// spareThreads are made beforehand where commands share our limit of processes: a Go
	// program that cannot make a thread dies.
	// They cover the disk work of files (32) and spools (8), and the runtime's own.
	spareThreads = 48
	// processors bounds how many threads run Go code at once on a large machine.
	processors = 4
	// tidyEvery and spareMemory bound how long and how much idle memory is kept.
	tidyEvery   = 30 * time.Second
	spareMemory = 4 << 20
)

// init runs before anything that could start a process. The first thread stays with
// main: a thread that entered a command's cgroup must be able to end, and the first cannot.
func init() {
	runtime.LockOSThread()
	closeOnExec()
	_, _, _ = syscall.Syscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	heedInternalSignals()
}

// heedInternalSignals undoes what posix_spawn of glibc leaves behind: its own two signals
// ignored, which commands would inherit. Neither Go nor any library can name them.
func heedInternalSignals() {
	var byDefault [32]byte // struct sigaction of the kernel: SIG_DFL, no flags
	for _, number := range []uintptr{32, 33} {
		_, _, _ = syscall.Syscall6(syscall.SYS_RT_SIGACTION, number, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
}

// closeOnExec keeps every descriptor that we were born with from our children: among
// them may be directories from which `..` leads to the host.
func closeOnExec() {
	const first = 3
	if _, _, errno := syscall.Syscall(sysCloseRange, first, ^uintptr(0)>>32, closeRangeCloexec); errno == 0 {
		return
	}
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		names, _ := dir.Readdirnames(-1)
		dir.Close()
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd >= first {
				syscall.CloseOnExec(fd)
			}
		}
		return
	}
	for fd := first; fd < 1024; fd++ {
		syscall.CloseOnExec(fd)
	}
}

// settle sets what a small daemon wants of the Go runtime and of its own process.
func settle() {
	syscall.Umask(0o022)
	runtime.GOMAXPROCS(min(processors, runtime.GOMAXPROCS(0)))
	debug.SetGCPercent(50)
	go tidy()
}

// prestartThreads makes threads that stay: a goroutine that is locked to its thread and
// waits keeps that thread from serving another, so each of them needs a new one.
func prestartThreads() {
	var all sync.WaitGroup
	all.Add(spareThreads)
	for range [spareThreads]struct{}{} {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait()
		}()
	}
	all.Wait()
}

// tidy gives memory back after a burst: a thousand commands at once leave idle spans that
// the runtime alone would keep for minutes.
func tidy() {
	for range time.Tick(tidyEvery) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.HeapIdle-m.HeapReleased > spareMemory {
			debug.FreeOSMemory()
		}
	}
}

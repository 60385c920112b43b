// Package ipv6 takes IPv6 from a sandbox whose cluster does not filter it: link-local
// addresses reach the node, and on a shared bridge other sandboxes, past all policies.
package ipv6

import (
	"fmt"
	"net"
	"runtime"
	"syscall"
	"unsafe"
)

// Bits of <linux/seccomp.h>, <linux/filter.h> and <linux/audit.h>.
const (
	setNoNewPrivs  = 38
	setModeFilter  = 1
	flagTSync      = 1 // all threads of this process
	allow          = 0x7fff0000
	failWith       = 0x00050000
	loadWord       = syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS
	jumpIfEqual    = syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K
	maskWord       = syscall.BPF_ALU | syscall.BPF_AND | syscall.BPF_K
	answer         = syscall.BPF_RET | syscall.BPF_K
	offsetCall     = 0
	offsetABI      = 4
	offsetArgument = 16
	ioUringSetup   = 425 // makes sockets unseen
)

// Narrow takes IPv6 from all that runs here, "off" always and "if_assigned" where nothing
// leads beyond a link; "" leaves it.
func Narrow(wanted string) error {
	if wanted == "if_assigned" {
		if keep, err := assigned(); keep || err != nil {
			return err
		}
	}
	if wanted == "" {
		return nil
	}
	return off()
}

// assigned tells whether an interface has an IPv6 address that leads beyond its link: then
// the cluster's network knows IPv6, and its policies do.
func assigned() (bool, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	for _, address := range addresses {
		if n, ok := address.(*net.IPNet); ok && n.IP.To4() == nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return true, nil
		}
	}
	return false, nil
}

// off makes every later socket of that family fail with EAFNOSUPPORT, here and in all
// descendants, for good. Sockets that are open stay. It needs no power, but from then on
// programs with the set-user-ID bit run without it.
func off() error {
	filter := program()
	bpf := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // the bit is the thread's; the filter takes it along to the others
	defer runtime.UnlockOSThread()
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("no_new_privs: %w", errno)
	}
	odd, _, errno := syscall.RawSyscall(sysSeccomp, setModeFilter, flagTSync, uintptr(unsafe.Pointer(&bpf)))
	if errno != 0 || odd != 0 {
		return fmt.Errorf("seccomp (thread %d): %w", odd, errno)
	}
	return nil
}

// program is a filter of system calls: socket(AF_INET6, ...) of each ABI fails.
func program() []syscall.SockFilter {
	const (
		refuse = failWith | uint32(syscall.EAFNOSUPPORT)
		deny   = failWith | uint32(syscall.EPERM)
	)
	filter := []syscall.SockFilter{{Code: loadWord, K: offsetABI}}
	for _, abi := range abis {
		block := []syscall.SockFilter{{Code: loadWord, K: offsetCall}, {Code: maskWord, K: ^uint32(abi.ignored)}}
		block = append(block, when(abi.socket, syscall.AF_INET6, refuse)...)
		if abi.socketcall != 0 {
			block = append(block, when(abi.socketcall, 1, refuse)...) // its argument lies in memory, out of sight
		}
		block = append(block, syscall.SockFilter{Code: jumpIfEqual, K: ioUringSetup, Jf: 1},
			syscall.SockFilter{Code: answer, K: deny}, syscall.SockFilter{Code: answer, K: allow})
		filter = append(filter, syscall.SockFilter{Code: jumpIfEqual, K: abi.audit, Jf: uint8(len(block))})
		filter = append(filter, block...)
	}
	return append(filter, syscall.SockFilter{Code: answer, K: deny}) // an ABI that this machine does not have
}

// when answers a call whose first argument is the one given; of another argument it is allowed.
func when(call, argument, with uint32) []syscall.SockFilter {
	return []syscall.SockFilter{
		{Code: jumpIfEqual, K: call, Jf: 4},
		{Code: loadWord, K: offsetArgument},
		{Code: jumpIfEqual, K: argument, Jf: 1},
		{Code: answer, K: with},
		{Code: answer, K: allow},
	}
}

// abi is one way in which programs of this machine call the kernel.
type abi struct {
	audit, socket, socketcall, ignored uint32
}

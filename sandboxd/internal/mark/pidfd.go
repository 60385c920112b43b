package mark

import "syscall"

// Numbers that the standard library's syscall package lacks; equal on every architecture.
const (
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
)

// pidfdOpen opens a handle on a process; it is close-on-exec by itself.
func pidfdOpen(pid int) (int, error) {
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(pid), 0, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func pidfdSignal(fd int, s syscall.Signal) error {
	_, _, errno := syscall.Syscall6(sysPidfdSendSignal, uintptr(fd), uintptr(s), 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

package process

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"orchard/sandboxd/internal/mark"
	"orchard/sandboxd/internal/users"
)

const (
	tiocSPTLCK = 0x40045431 // unlocks the other end
	tiocGPTN   = 0x80045430 // tells its number
	tiocSWINSZ = 0x5414
)

func ioctl(f *os.File, request uintptr, argument unsafe.Pointer) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(argument))
	})
	if errno != 0 {
		return errno
	}
	return err
}

// openTerminal opens a new pseudo-terminal: our end and the command's.
func openTerminal(s size, owner users.Identity) (ours, theirs *os.File, err error) {
	fd, err := syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("/dev/ptmx: %w", err)
	}
	ours = os.NewFile(uintptr(fd), "terminal")
	var unlock, number int32
	if err = ioctl(ours, tiocSPTLCK, unsafe.Pointer(&unlock)); err == nil {
		err = ioctl(ours, tiocGPTN, unsafe.Pointer(&number))
	}
	if err == nil {
		err = resize(ours, s)
	}
	if err == nil {
		name := fmt.Sprintf("/dev/pts/%d", number)
		_ = os.Chown(name, int(owner.UID), -1) // best effort: without it only a re-open by name fails
		theirs, err = os.OpenFile(name, os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		ours.Close()
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	return ours, theirs, nil
}

func resize(terminal *os.File, s size) error {
	window := [4]uint16{uint16(s.Rows), uint16(s.Cols)}
	return ioctl(terminal, tiocSWINSZ, unsafe.Pointer(&window))
}

// plumbTerminal gives the command a terminal for all three; what it shows is stdout.
func (p *Process) plumbTerminal(l *plumbing, q *request, c *mark.Command, who users.Identity) error {
	ours, theirs, err := openTerminal(*q.PTY, who)
	if err != nil {
		return err
	}
	l.ours, l.theirs = append(l.ours, ours), append(l.theirs, theirs)
	p.terminal = true
	p.stdin = &stdin{to: ours, tty: true}
	p.pumps = append(p.pumps, newPump(ours, p.streams[0], false))
	p.streams[1].Close()
	fd := int(theirs.Fd())
	c.Files = []int{fd, fd, fd}
	return nil
}

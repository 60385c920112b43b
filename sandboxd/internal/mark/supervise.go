package mark

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Descriptors that a supervisor is born with.
const (
	controlFD = 3
	specFD    = 4
	firstFile = 5
)

// Kinds of message from a supervisor; each is the kind and a 32-bit value.
const (
	saidTrying  = 4 // nothing; from here on the command may have run
	saidStarted = 1 // the pid; a pidfd of it comes along where the kernel has them
	saidFailed  = 2 // the errno
	saidEnded   = 3 // the wait status
)

const prSetChildSubreaper = 36

// SetSubreaper makes orphans below this process fall to it.
func SetSubreaper() error {
	_, _, errno := syscall.Syscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Supervise is the main function of the supervisor of one command: it becomes the
// subreaper of all that the command leaves behind, tells how the command began and
// ended, and ends itself when nothing is left. sandboxd does the killing: everything
// below this process is the command's tree. It takes little memory, but about seven threads,
// and a pids limit counts each.
func Supervise() int {
	// A handler, unlike SIG_IGN, is not inherited; so a `kill -TERM -1` spares us alone.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT,
		syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	for fd := controlFD; fd <= specFD; fd++ {
		syscall.CloseOnExec(fd)
	}
	c, err := readSpec()
	if err != nil || SetSubreaper() != nil {
		say(saidFailed, int32(syscall.EINVAL), -1)
		return 1
	}
	attributes := c.attributes()
	pidfd := -1
	attributes.Sys.PidFD = &pidfd
	say(saidTrying, 0, -1)
	pid, err := c.exec(attributes)
	for i := range c.Files {
		_ = syscall.Close(firstFile + i)
	}
	if err != nil {
		say(saidFailed, int32(errnoOf(err)), -1)
		return 1
	}
	say(saidStarted, int32(pid), pidfd)
	reapAll(pid)
	return 0
}

func readSpec() (*Command, error) {
	document, err := io.ReadAll(os.NewFile(specFD, "spec"))
	if err != nil {
		return nil, err
	}
	c := &Command{}
	if err := json.Unmarshal(document, c); err != nil {
		return nil, err
	}
	for i := range c.Files {
		c.Files[i] = firstFile + i
		syscall.CloseOnExec(firstFile + i)
	}
	return c, nil
}

// reapAll waits until no descendant is left.
func reapAll(main int) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR: //nolint:errorlint // a bare errno
		case err != nil:
			return
		case pid == main:
			say(saidEnded, int32(status), -1)
		}
	}
}

// say sends one message to sandboxd, with a descriptor if it is not negative.
func say(kind byte, value int32, fd int) {
	message := binary.LittleEndian.AppendUint32([]byte{kind}, uint32(value))
	var rights []byte
	if fd >= 0 {
		rights = syscall.UnixRights(fd)
		defer syscall.Close(fd)
	}
	for syscall.Sendmsg(controlFD, message, rights, nil, 0) == syscall.EINTR { //nolint:errorlint // a bare errno
	}
}

func errnoOf(err error) syscall.Errno {
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // ForkExec returns bare errnos
		return errno
	}
	return syscall.EINVAL
}

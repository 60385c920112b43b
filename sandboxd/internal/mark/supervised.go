package mark

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"orchard/sandboxd/internal/reap"
)

// supervised is a command below its supervisor.
type supervised struct {
	maker       *Supervisors
	child       *reap.Child // the supervisor
	control     *os.File
	mu          sync.Mutex // guards pidfd once the command runs
	pidfd       int        // of the main process; -1 before kernel 5.3
	pid         int
	done        chan struct{}
	status      syscall.WaitStatus
	killsBefore int64
}

// begin waits for word that the command runs, or why not.
func (t *supervised) begin() (Tree, error) {
	kind, value := t.receive()
	tried := kind == saidTrying
	if tried {
		kind, value = t.receive()
	}
	switch {
	case kind == saidStarted:
		t.pid = int(value)
		go t.follow()
		return t, nil
	case kind == saidFailed:
		go t.bury()
		return nil, syscall.Errno(value)
	case tried: // its command was quicker to kill it than it to speak: that command has run
		go t.lose()
		return t, nil
	}
	go t.bury()
	return nil, syscall.ECHILD // the supervisor died before it could say anything
}

// receive reads one message, keeping a pidfd that comes along; kind 0 at the end.
func (t *supervised) receive() (kind byte, value int32) {
	message, rights := make([]byte, 16), make([]byte, syscall.CmsgSpace(4))
	raw, err := t.control.SyscallConn()
	if err != nil {
		return 0, 0
	}
	var n, withRights int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, withRights, _, _, failed = syscall.Recvmsg(int(fd), message, rights, syscall.MSG_CMSG_CLOEXEC)
		return failed != syscall.EAGAIN && failed != syscall.EINTR //nolint:errorlint // bare errnos
	})
	if err != nil || failed != nil || n == 0 {
		return 0, 0
	}
	if withRights > 0 {
		if parts, err := syscall.ParseSocketControlMessage(rights[:withRights]); err == nil && len(parts) == 1 {
			if fds, err := syscall.ParseUnixRights(&parts[0]); err == nil && len(fds) == 1 {
				t.pidfd = fds[0]
			}
		}
	}
	return decode(message[:n])
}

// follow waits for the end of the main process. A supervisor that dies first (a command
// of root may kill it) takes the tree with it: its orphans fell to us and are killed.
func (t *supervised) follow() {
	kind, value := t.receive()
	if kind == saidEnded {
		t.status = syscall.WaitStatus(value)
		close(t.done)
		t.bury()
		return
	}
	t.lose()
}

// lose is the end of a command whose supervisor died before it.
func (t *supervised) lose() {
	t.bury()
	t.status = syscall.WaitStatus(syscall.SIGKILL)
	close(t.done)
}

// bury waits for the supervisor's own end; if it did not end by itself, strays remain.
func (t *supervised) bury() {
	_, _ = io.Copy(io.Discard, t.control)
	<-t.child.Done
	if status := t.child.Status; !status.Exited() || status.ExitStatus() > 1 {
		t.maker.strays()
	}
	t.maker.mu.Lock()
	delete(t.maker.live, t.child.PID)
	t.maker.mu.Unlock()
	t.control.Close()
}

func (t *supervised) PID() int                   { return t.pid }
func (t *supervised) Done() <-chan struct{}      { return t.done }
func (t *supervised) Status() syscall.WaitStatus { return t.status }

func (t *supervised) Signal(s syscall.Signal) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pidfd >= 0 {
		return pidfdSignal(t.pidfd, s)
	}
	select {
	case <-t.done:
		return syscall.ESRCH
	default:
	}
	found, err := t.list()
	if main, ok := found[t.pid]; ok {
		signalExact(t.pid, main, s)
		return nil
	}
	return errors.Join(err, syscall.ESRCH)
}

// list finds the tree: all below the supervisor, as long as that lives.
func (t *supervised) list() (map[int]process, error) {
	select {
	case <-t.child.Done:
		return nil, nil
	default:
		return below(t.child.PID, nil)
	}
}

func (t *supervised) SignalAll(s syscall.Signal) {
	found, _ := t.list()
	for pid, p := range found {
		signalExact(pid, p, s)
	}
}

// Kill kills the tree; a supervisor without children then ends by itself.
func (t *supervised) Kill() bool {
	if !killTree(t.list) {
		return false
	}
	select {
	case <-t.child.Done:
	case <-time.After(time.Second):
		_ = t.child.Signal(syscall.SIGKILL)
		<-t.child.Done
	}
	return true
}

func (t *supervised) Empty() bool {
	select {
	case <-t.child.Done:
		return true
	default:
		return false
	}
}

// Toll counts the container's OOM kills since the command began: they may be those of a
// neighbour, so they count only for a command that died by SIGKILL.
func (t *supervised) Toll() Toll { return Toll{OOMKills: t.maker.kills() - t.killsBefore} }

// Release gives up the handle on the main process.
func (t *supervised) Release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pidfd >= 0 {
		_ = syscall.Close(t.pidfd)
		t.pidfd = -1
	}
}

// SharedToll tells whether the counters of a tree's Toll are shared with its neighbours.
func SharedToll(t Tree) bool {
	_, shared := t.(*supervised)
	return shared
}

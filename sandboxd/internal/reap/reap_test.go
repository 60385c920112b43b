package reap

import (
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// one is the only reaper: a second in the same process would steal its children.
var one = New(nil)

func TestEveryChildGetsItsOwnStatusAndNoDeadOneASignal(t *testing.T) {
	r := one
	var wait sync.WaitGroup
	for worker := range 8 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range 25 {
				code := 1 + (worker*25+i)%200
				c, err := r.Start(func() (int, error) {
					return syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit $0", strconv.Itoa(code)}, &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
				})
				if err != nil {
					t.Error(err)
					return
				}
				<-c.Done
				if c.Status.ExitStatus() != code || c.Signal(syscall.SIGKILL) != syscall.ESRCH {
					t.Errorf("pid %d: status %d, due %d", c.PID, c.Status.ExitStatus(), code)
				}
			}
		}()
	}
	wait.Wait()
}

func TestAFailedForkDisturbsNothing(t *testing.T) {
	r := one
	_, err := r.Start(func() (int, error) {
		return syscall.ForkExec("/no/such", []string{"x"}, &syscall.ProcAttr{})
	})
	if err != syscall.ENOENT { //nolint:errorlint // a bare errno
		t.Fatalf("%v", err)
	}
	c, err := r.Start(func() (int, error) {
		return syscall.ForkExec("/bin/sleep", []string{"sleep", "100"}, &syscall.ProcAttr{})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done:
	case <-time.After(time.Minute):
		t.Fatal("its end was never heard of")
	}
	if !c.Status.Signaled() || c.Status.Signal() != syscall.SIGKILL {
		t.Errorf("ended as %v", c.Status)
	}
}

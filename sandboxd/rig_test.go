package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const (
	testID    = "sb-test"
	testToken = "secret"
)

// TestMain lets this very binary be the daemon and the supervisor, so that the tests
// drive real processes and the race detector watches inside them.
func TestMain(m *testing.M) {
	if os.Getenv("SANDBOXD_UNDER_TEST") != "" || len(os.Args) > 1 && os.Args[1] == "supervise" {
		main()
		return
	}
	os.Exit(m.Run())
}

// daemon is a running sandboxd of one test.
type daemon struct {
	t       *testing.T
	folder  string
	client  *http.Client
	process *exec.Cmd
	cgroups map[string]string // by hierarchy
	next    int
}

type options struct {
	mark   string
	pids   int
	memory int
	config map[string]any
	state  bool
	// env and dir are added to the daemon's own.
	env []string
	dir string
	// descriptors is the daemon's limit of open descriptors, 0 for that of the tests.
	descriptors int
}

// forEachMark runs a test under every mark that this machine allows.
func forEachMark(t *testing.T, o options, test func(t *testing.T, d *daemon)) {
	for _, mark := range []string{"cgroup-v1", "cgroup-v2", "supervisor"} {
		t.Run(mark, func(t *testing.T) {
			o := o
			o.mark = mark
			test(t, start(t, o))
		})
	}
}

// start starts a daemon; it and its cgroups are gone when the test ends.
func start(t *testing.T, o options) *daemon {
	t.Helper()
	d := &daemon{t: t, folder: t.TempDir(), cgroups: map[string]string{}}
	path := filepath.Join(d.folder, "socket")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must(t, err)
	socket, err := listener.File()
	must(t, err)
	sum := sha256.Sum256([]byte(testToken))
	document := map[string]any{"id": testID, "token_sha256": hex.EncodeToString(sum[:]),
		"env": map[string]string{"PATH": os.Getenv("PATH"), "FROM_IMAGE": "1"}}
	// Our own program's descriptors: 3 the listener, 4 the state, 5 the configuration, 6... cgroups.
	document["listen"] = map[string]int{"fd": 3}
	files := []*os.File{socket}
	state := filepath.Join(d.folder, "state")
	must(t, os.Mkdir(state, 0o700))
	folder, err := os.Open(state)
	must(t, err)
	files = append(files, folder)
	if o.state {
		document["state_fd"] = 4
	}
	reader, writer, err := os.Pipe()
	must(t, err)
	files = append(files, reader)
	if o.mark != "supervisor" {
		document["cgroup"] = d.makeCgroups(o, &files)
	}
	for key, value := range o.config {
		document[key] = value
	}
	body, err := json.Marshal(document)
	must(t, err)
	_, err = writer.Write(body)
	must(t, err)
	writer.Close()
	d.process = exec.Command("/proc/self/exe", "--config-fd", "5")
	if o.descriptors > 0 {
		own, err := os.Executable()
		must(t, err)
		d.process = exec.Command("sh", "-c", fmt.Sprintf("ulimit -n %d; exec %s --config-fd 5", o.descriptors, own))
	}
	d.process.ExtraFiles = files
	d.process.Env = append(os.Environ(), "SANDBOXD_UNDER_TEST=1", "DAEMON_SECRET=x", "GORACE=atexit_sleep_ms=0")
	d.process.Env = append(d.process.Env, o.env...)
	d.process.Dir = o.dir
	d.process.Stderr = os.Stderr
	d.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, d.process.Start())
	for _, f := range files {
		f.Close()
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	d.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}}
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) stop() {
	_ = d.process.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		if err := d.process.Wait(); err != nil { // also how the race detector speaks
			d.t.Errorf("sandboxd ended badly: %v", err)
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(soon):
		d.t.Errorf("sandboxd did not end within %v of SIGTERM", soon)
		_ = d.process.Process.Kill()
		<-done
	}
}

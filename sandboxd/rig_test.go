package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	d.process.ExtraFiles = files
	d.process.Env = append(os.Environ(), "SANDBOXD_UNDER_TEST=1", "DAEMON_SECRET=x", "GORACE=atexit_sleep_ms=0")
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

// makeCgroups makes the sandbox's `commands` cgroup as the host does.
func (d *daemon) makeCgroups(o options, files *[]*os.File) map[string]any {
	hierarchies, version, base := []string{"memory", "pids", "cpu", "freezer"}, 1, "/sys/fs/cgroup"
	if o.mark == "cgroup-v2" {
		hierarchies, version = []string{"unified"}, 2
	}
	fds := map[string]int{}
	for _, hierarchy := range hierarchies {
		root := filepath.Join(base, hierarchy)
		if version == 2 {
			root = unifiedRoot(d.t)
		}
		path := filepath.Join(root, fmt.Sprintf("sandboxd-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		if err := os.Mkdir(path, 0o755); err != nil {
			d.t.Skipf("no %s here: %v", o.mark, err)
		}
		d.cgroups[hierarchy] = path
		if version == 2 { // as the host does; without these controllers the limits are skipped
			_ = os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+memory +pids +cpu"), 0)
		}
		f, err := os.Open(path)
		must(d.t, err)
		fds[hierarchy] = 3 + len(*files)
		*files = append(*files, f)
	}
	d.t.Cleanup(d.removeCgroups)
	d.limit(o)
	return map[string]any{"version": version, "fds": fds}
}

func (d *daemon) limit(o options) {
	if o.pids > 0 {
		d.setLimit(map[string]string{"pids": "pids.max", "unified": "pids.max"}, strconv.Itoa(o.pids))
	}
	if o.memory > 0 {
		d.setLimit(map[string]string{"memory": "memory.limit_in_bytes", "unified": "memory.max"}, strconv.Itoa(o.memory))
	}
}

func (d *daemon) setLimit(file map[string]string, value string) {
	for hierarchy, name := range file {
		path, ok := d.cgroups[hierarchy]
		if !ok {
			continue
		}
		if err := os.WriteFile(filepath.Join(path, name), []byte(value), 0); err != nil {
			d.t.Skipf("no limits in this hierarchy: %v", err)
		}
	}
}

// unifiedRoot finds a version 2 hierarchy: the only one, or the one beside version 1.
func unifiedRoot(t *testing.T) string {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			return root
		}
	}
	t.Skip("no cgroup version 2 hierarchy is mounted here")
	return ""
}

func (d *daemon) removeCgroups() {
	for _, path := range d.cgroups {
		deadline := time.Now().Add(5 * time.Second)
		for {
			left, _ := filepath.Glob(filepath.Join(path, "c[0-9]*"))
			for _, child := range left {
				_ = syscall.Rmdir(child)
			}
			err := syscall.Rmdir(path)
			if err == nil || os.IsNotExist(err) {
				break
			}
			if time.Now().After(deadline) {
				d.t.Errorf("the cgroup %s was left behind: %v", path, err)
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
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
	case <-time.After(10 * time.Second):
		d.t.Error("sandboxd did not end within 10 s of SIGTERM")
		_ = d.process.Process.Kill()
		<-done
	}
}

// do sends a request with identity and token, and reads the whole answer.
func (d *daemon) do(method, path string, body any, headers ...string) (int, http.Header, []byte) {
	d.t.Helper()
	response := d.open(context.Background(), method, path, body, headers...)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	must(d.t, err)
	return response.StatusCode, response.Header, data
}

func (d *daemon) open(ctx context.Context, method, path string, body any, headers ...string) *http.Response {
	d.t.Helper()
	response, err := d.try(ctx, method, path, body, headers...)
	must(d.t, err)
	return response
}

func (d *daemon) try(ctx context.Context, method, path string, body any, headers ...string) (*http.Response, error) {
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		content = bytes.NewReader(b)
	case io.Reader:
		content = b
	default:
		text, err := json.Marshal(b)
		must(d.t, err)
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://sandbox"+path, content)
	must(d.t, err)
	request.Header.Set("Orchard-Sandbox", testID)
	request.Header.Set("Authorization", "Bearer "+testToken)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	return d.client.Do(request)
}

// result is what a finished command left.
type result struct {
	ID        string  `json:"id"`
	PID       int     `json:"pid"`
	State     string  `json:"state"`
	ExitCode  *int    `json:"exit_code"`
	Signal    *string `json:"signal"`
	TimedOut  bool    `json:"timed_out"`
	OOM       bool    `json:"oom_killed"`
	Cancelled bool    `json:"cancelled"`
	Refused   int64   `json:"refused_forks"`
	Out       int64   `json:"stdout_bytes"`
	Err       int64   `json:"stderr_bytes"`
	LostOut   int64   `json:"stdout_lost"`
	Stdin     string  `json:"stdin"`

	stdout, stderr []byte
	gaps           [][3]int64 // stream, from, next
	took           time.Duration
	problem        problem
	status         int
}

type problem struct {
	Status             int
	Code, Reason, Hint string
	Detail, Field      string
}

type body map[string]any

func (r result) code() int {
	if r.ExitCode == nil {
		return -1
	}
	return *r.ExitCode
}

// run runs a command to its end over a stream of frames.
func (d *daemon) run(command any, extra body) result {
	d.t.Helper()
	request := body{}
	if d.next++; extra["id"] == nil {
		request["id"] = fmt.Sprintf("op-%d", d.next)
	}
	if script, ok := command.(string); ok {
		request["shell"] = script
	} else {
		request["argv"] = command
	}
	mode := "bounded"
	for key, value := range extra {
		if key == "mode" {
			mode = value.(string)
			continue
		}
		request[key] = value
	}
	began := time.Now()
	response := d.open(context.Background(), "POST", "/v1/processes?stream="+mode, request)
	defer response.Body.Close()
	return d.read(response, began)
}

func (d *daemon) read(response *http.Response, began time.Time) result {
	d.t.Helper()
	r := result{status: response.StatusCode}
	if response.StatusCode >= 400 {
		must(d.t, json.NewDecoder(response.Body).Decode(&r.problem))
		return r
	}
	streams := map[byte]*bytes.Buffer{1: {}, 2: {}}
	for {
		kind, offset, payload, err := readFrame(response.Body)
		if err != nil {
			d.t.Fatalf("the stream ended without an exit frame: %v", err)
		}
		switch kind {
		case 1, 2:
			streams[kind].Write(payload)
		case 4:
			r.gaps = append(r.gaps, [3]int64{int64(payload[0]), offset, int64(binary.BigEndian.Uint64(payload[1:]))})
		case 6:
			must(d.t, json.Unmarshal(payload, &r))
			r.stdout, r.stderr, r.took = streams[1].Bytes(), streams[2].Bytes(), time.Since(began)
			return r
		}
	}
}

func readFrame(r io.Reader) (kind byte, offset int64, payload []byte, err error) {
	var head [13]byte
	if _, err = io.ReadFull(r, head[:]); err != nil {
		return
	}
	payload = make([]byte, binary.BigEndian.Uint32(head[9:]))
	_, err = io.ReadFull(r, payload)
	return head[0], int64(binary.BigEndian.Uint64(head[1:])), payload, err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%q does not hold %q", text, part)
	}
}

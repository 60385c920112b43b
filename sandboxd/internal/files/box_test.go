package files

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"orchard/sandboxd/internal/server"
	"orchard/sandboxd/internal/users"
)

// box is the room behind its real door, on a Unix socket, over a folder as root.
type box struct {
	t      testing.TB
	root   string
	h      *Handler
	client *http.Client
	socket string
}

type anyone struct{}

func (anyone) Allowed(string) bool { return true }
func (anyone) Begin() func()       { return func() {} }

func newBox(t testing.TB, user string) *box {
	t.Helper()
	top := t.TempDir()
	b := &box{t: t, root: filepath.Join(top, "root"), socket: filepath.Join(top, "s")}
	b.must(os.MkdirAll(filepath.Join(b.root, "w"), 0o755))
	b.must(os.Mkdir(filepath.Join(b.root, "etc"), 0o755))
	b.put("etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1234:2345::/home/app:/bin/sh\n")
	b.put("etc/group", "root:x:0:\napps:x:2345:\n")
	db := users.Database{Passwd: filepath.Join(b.root, "etc/passwd"), Group: filepath.Join(b.root, "etc/group")}
	b.serve(Deps{Root: b.root, Workdir: "/w", User: user, Users: db})
	return b
}

func (b *box) serve(deps Deps) {
	h, err := New(deps)
	b.must(err)
	b.h = h
	listener, err := net.Listen("unix", b.socket)
	b.must(err)
	door := server.Handler(server.Options{ID: "sb-1", Tokens: anyone{}, Activity: anyone{}, Rooms: []server.Room{h}})
	s := &http.Server{Handler: door}
	go func() { _ = s.Serve(listener) }()
	b.client = &http.Client{Transport: &http.Transport{DialContext: b.dial, MaxIdleConnsPerHost: 64}}
	b.t.Cleanup(func() {
		b.client.CloseIdleConnections()
		_ = s.Close()
		_ = h.Close()
	})
}

func (b *box) dial(context.Context, string, string) (net.Conn, error) {
	return net.Dial("unix", b.socket)
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// put writes a file behind the daemon's back.
func (b *box) put(name, content string) {
	b.t.Helper()
	b.must(os.WriteFile(filepath.Join(b.root, name), []byte(content), 0o644))
}

func (b *box) path(name string) string { return filepath.Join(b.root, name) }

func (b *box) get(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(b.path(name))
	b.must(err)
	return string(data)
}

// request makes a request; args are pairs of query keys and values.
func (b *box) request(method, route string, body io.Reader, args ...string) *http.Request {
	b.t.Helper()
	q := url.Values{}
	for i := 0; i < len(args); i += 2 {
		q.Add(args[i], args[i+1])
	}
	r, err := http.NewRequest(method, "http://box/v1/"+route+"?"+q.Encode(), body)
	b.must(err)
	r.Header.Set("Orchard-Sandbox", "sb-1")
	return r
}

type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
}

func (b *box) send(r *http.Request) answer {
	b.t.Helper()
	got, err := b.client.Do(r)
	b.must(err)
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	b.must(err)
	return answer{got.StatusCode, got.Header, got.Trailer, string(body)}
}

func (b *box) do(method, route, body string, args ...string) answer {
	b.t.Helper()
	return b.send(b.request(method, route, strings.NewReader(body), args...))
}

// ok is do, and fails the test unless the answer is 200.
func (b *box) ok(method, route, body string, args ...string) answer {
	b.t.Helper()
	got := b.do(method, route, body, args...)
	if got.status != http.StatusOK {
		b.t.Fatalf("%s %s %q: %d %s", method, route, args, got.status, got.body)
	}
	return got
}

// refused checks the status and errno, or code, of a problem.
func (b *box) refused(got answer, status int, word string) {
	b.t.Helper()
	var p struct{ Code, Errno, Detail string }
	err := json.Unmarshal([]byte(got.body), &p)
	if err != nil || got.status != status || (p.Errno != word && p.Code != word) || p.Detail == "" {
		b.t.Errorf("got %d %s, want %d %s", got.status, got.body, status, word)
	}
}

// fields decodes a JSON object.
func (a answer) fields(t testing.TB) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal([]byte(a.body), &out); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return out
}

// lines decodes JSON lines, the last of which is the end.
func (a answer) lines(t testing.TB) (out []map[string]any) {
	t.Helper()
	scanner := bufio.NewScanner(strings.NewReader(a.body))
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		out = append(out, answer{body: scanner.Text()}.fields(t))
	}
	if len(out) == 0 || out[len(out)-1]["end"] != true || int(out[len(out)-1]["count"].(float64)) != len(out)-1 {
		t.Fatalf("no end, or a wrong count: %s", a.body)
	}
	return out[:len(out)-1]
}

// entry is one file for a tar archive.
type tarEntry struct {
	tar.Header
	content string
}

func archive(t testing.TB, entries ...tarEntry) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		e.Size = int64(len(e.content))
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, e.content)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func file(name, content string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeReg}, content}
}

func folder(name string, mode int64) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode}, ""}
}

func special(kind byte, name, target string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: kind, Linkname: target}, ""}
}

// soon ends a hang; what is waited for comes at once, however long that may be on a busy machine.
const soon = time.Minute

// settled waits until as many goroutines run and descriptors are open as before.
func settled(t testing.TB, goroutines, descriptors int) {
	t.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(10 * time.Millisecond) {
		g, d := runtime.NumGoroutine(), openFiles(t)
		if g <= goroutines && d <= descriptors {
			return
		}
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines (%d before), %d descriptors (%d before)\n%s", g, goroutines, d, descriptors, buf[:runtime.Stack(buf, true)])
		}
	}
}

func openFiles(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// asNobody runs the named tests of this binary as a user without any rights.
func asNobody(t *testing.T, pattern string) {
	if os.Geteuid() != 0 {
		return // the tests themselves run as this user
	}
	dir, err := os.MkdirTemp("/tmp", "sandboxd-nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", pattern, "-test.v")
	cmd.Dir, cmd.Env = "/", []string{"TMPDIR=" + dir, "SANDBOXD_NOBODY=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Fatalf("as uid 65534: %v\n%s", err, out)
	}
}

// onlyNobody passes a test by that needs to be without rights.
func onlyNobody(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs to run without rights; TestWithoutRights runs it as uid 65534")
	}
}

func isRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files to other users")
	}
}

func mode(t testing.TB, path string) string {
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%04o %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
}

// recorder takes what is written to an answer without a connection.
type recorder struct{ out *strings.Builder }

func (r recorder) Header() http.Header         { return http.Header{} }
func (r recorder) WriteHeader(int)             {}
func (r recorder) Flush()                      {}
func (r recorder) Write(p []byte) (int, error) { return r.out.Write(p) }

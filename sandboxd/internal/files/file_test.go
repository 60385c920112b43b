package files

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

// noise is n bytes that no compression and no zero test makes smaller.
func noise(n int) []byte {
	out := make([]byte, n)
	state := uint64(88172645463325252)
	for i := range out {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		out[i] = byte(state)
	}
	return out
}

func TestEverySizeRoundTrips(t *testing.T) {
	b := newBox(t, "")
	for _, n := range []int{0, 1, 511, 4096, wholeFile - 1, wholeFile, wholeFile + 1, 256 << 10, 256<<10 + 1, 5 << 20} {
		data := noise(n)
		put := b.ok("PUT", "files", string(data), "path", "f", "sha256", sum(data)).fields(t)
		if put["sha256"] != sum(data) || put["size"] != float64(n) || put["path"] != "/w/f" || put["mode"] != float64(0o644) {
			t.Errorf("%d bytes: %v", n, put)
		}
		got := b.ok("GET", "files", "", "path", "/w/f")
		if got.body != string(data) || got.header.Get("Content-Length") != strconv.Itoa(n) || got.header.Get("Orchard-Mode") != "0644" {
			t.Errorf("%d bytes come back as %d, %v", n, len(got.body), got.header)
		}
		at, err := strconv.ParseFloat(got.header.Get("Orchard-Mtime"), 64)
		if err != nil || time.Since(time.UnixMicro(int64(at*1e6))).Abs() > time.Minute {
			t.Errorf("mtime %q", got.header.Get("Orchard-Mtime"))
		}
	}
}

func TestRange(t *testing.T) {
	b := newBox(t, "")
	for _, n := range []int{1000, 300 << 10} {
		data := string(noise(n))
		b.put("w/f", data)
		for header, want := range map[string]string{"bytes=0-9": data[:10], "bytes=990-": data[990:], "bytes=-5": data[n-5:],
			"bytes=5-5": data[5:6], "bytes=990-99999999": data[990:], "bytes=-99999999": data,
			"bytes=9-5": data, "lines=0-4": data, "bytes=0-4,9-12": data, "bytes=x": data, "bytes=--5": data} {
			r := b.request("GET", "files", nil, "path", "f")
			r.Header.Set("Range", header)
			got := b.send(r)
			if got.body != want {
				t.Errorf("%s of %d: %d bytes", header, n, len(got.body))
			}
			partial := strings.Contains("bytes=0-9 bytes=990- bytes=-5 bytes=5-5 bytes=990-99999999 bytes=-99999999", header)
			if partial != (got.status == http.StatusPartialContent) {
				t.Errorf("%s: %d", header, got.status)
			}
		}
		r := b.request("GET", "files", nil, "path", "f")
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", n))
		b.refused(b.send(r), 416, "invalid_range")
		r.Header.Set("Range", "bytes=10-19")
		if got := b.send(r); got.header.Get("Content-Range") != fmt.Sprintf("bytes 10-19/%d", n) || got.body != data[10:20] {
			t.Errorf("%v", got.header)
		}
	}
	b.put("w/empty", "")
	r := b.request("GET", "files", nil, "path", "empty")
	r.Header.Set("Range", "bytes=0-")
	b.refused(b.send(r), 416, "invalid_range")
}

func TestFilesOfProcHaveTheirRealLength(t *testing.T) {
	b := newBox(t, "")
	b.socket += "2"
	b.serve(Deps{Root: "/", Workdir: "/"})
	if got := b.ok("GET", "files", "", "path", "/proc/self/status"); !strings.Contains(got.body, "VmRSS") {
		t.Errorf("%q", got.body)
	}
	if got := b.ok("GET", "files", "", "path", "/proc/kallsyms"); strings.Count(got.body, "\n") < 10000 {
		t.Errorf("%d bytes", len(got.body))
	}
	if got := b.ok("GET", "files", "", "path", "/sys/kernel/mm/transparent_hugepage/enabled"); !strings.Contains(got.body, "[") {
		t.Errorf("%q", got.body)
	}
	b.refused(b.do("GET", "files", "", "path", "/proc/self/exe"), 409, "ELOOP")
	b.refused(b.do("GET", "files", "", "path", "/dev/zero"), 400, "EINVAL")
}

func TestNames(t *testing.T) {
	b := newBox(t, "")
	names := []string{"é.txt", "日本 語.txt", `a"b`, "new\nline", "-rf", " leading", "%2e%2e", "%2F", ".env", "a+b&c=d;e#f?",
		strings.Repeat("n", 255), "\xff\xfe raw", "'; touch pwned; '", `back\slash`, "tab\t", "$HOME"}
	for _, name := range names {
		put := b.ok("PUT", "files", name, "path", "d/"+name).fields(t)
		if got := b.get("w/d/" + name); got != name {
			t.Errorf("%q holds %q", name, got)
		}
		if got := b.ok("GET", "files", "", "path", "d/"+name); got.body != name {
			t.Errorf("%q is read as %q", name, got.body)
		}
		if decoded(t, put, "path") != "/w/d/"+name {
			t.Errorf("%q is called %v", name, put)
		}
	}
	listed := map[string]bool{}
	for _, e := range b.ok("GET", "files/list", "", "path", "d").lines(t) {
		listed[decoded(t, e, "name")] = decoded(t, e, "path") == "/w/d/"+decoded(t, e, "name")
	}
	for _, name := range names {
		if !listed[name] {
			t.Errorf("%q is not listed", name)
		}
	}
	if len(listed) != len(names) {
		t.Errorf("%d listed, %d written", len(listed), len(names))
	}
	b.refused(b.do("PUT", "files", "", "path", strings.Repeat("n", 256)), 400, "ENAMETOOLONG")
	b.refused(b.do("PUT", "files", "", "path", "a\x00b"), 400, "invalid_argument")
	b.refused(b.do("PUT", "files", ""), 400, "invalid_argument")
}

// decoded is a name that stands plain or in base64.
func decoded(t testing.TB, fields map[string]any, key string) string {
	t.Helper()
	if b64, ok := fields[key+"_b64"].(string); ok {
		if _, both := fields[key].(string); both {
			t.Errorf("both %s and %s_b64", key, key)
		}
		raw, err := base64.StdEncoding.DecodeString(b64)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	plain, _ := fields[key].(string)
	return plain
}

func TestTypedErrors(t *testing.T) {
	b := newBox(t, "")
	b.must(os.Mkdir(b.path("w/d"), 0o755))
	b.put("w/f", "x")
	b.must(syscall.Mkfifo(b.path("w/fifo"), 0o644))
	for _, c := range []struct {
		method, route string
		args          []string
		status        int
		errno         string
	}{
		{"GET", "files", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "files", []string{"path", "d"}, 409, "EISDIR"},
		{"GET", "files", []string{"path", "f/x"}, 409, "ENOTDIR"},
		{"GET", "files", []string{"path", "fifo"}, 400, "EINVAL"},
		{"PUT", "files", []string{"path", "d"}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "d/"}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "new/"}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "."}, 409, "EISDIR"},
		{"PUT", "files", []string{"path", "fifo"}, 400, "EINVAL"},
		{"PUT", "files", []string{"path", "f/x"}, 409, "ENOTDIR"},
		{"PUT", "files", []string{"path", "no/x", "parents", "0"}, 404, "ENOENT"},
		{"POST", "files/append", []string{"path", "fifo"}, 400, "EINVAL"},
		{"POST", "files/append", []string{"path", "d"}, 409, "EISDIR"},
		{"GET", "files/list", []string{"path", "f"}, 409, "ENOTDIR"},
		{"GET", "files/list", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "manifest", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "tree", []string{"path", "f"}, 409, "ENOTDIR"},
		{"PUT", "tree", []string{"path", "f"}, 409, "ENOTDIR"},
		{"GET", "files/stat", []string{"path", "none"}, 404, "ENOENT"},
		{"GET", "files/watch", []string{"path", "none"}, 404, "ENOENT"},
	} {
		b.refused(b.do(c.method, c.route, "", c.args...), c.status, c.errno)
	}
}

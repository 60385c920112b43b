package files

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestAbortsLeaveNothing(t *testing.T) {
	b := newBox(t, "")
	b.put("w/big", string(noise(2<<20)))
	for i := 0; i < 50; i++ {
		b.put(fmt.Sprintf("w/small%d", i), "x")
	}
	tree := archive(t, file("up/1", "1"), file("up/2", string(noise(1<<20))))
	goroutines, descriptors := 0, 0
	for i := 0; i < 220; i++ {
		if i == 20 { // by now everything that is made once is made
			b.accepted()
			time.Sleep(50 * time.Millisecond) // the sooner, the more is borne below
			goroutines, descriptors = runtime.NumGoroutine(), openFiles(t)
		}
		b.abort(i, tree)
	}
	b.accepted()
	settled(t, goroutines, descriptors)
	b.noTemps()
	count := 0
	b.h.temps.Range(func(any, any) bool { count++; return true })
	if count != 0 || len(b.h.disk) != 0 || len(b.h.hashers) != 0 {
		t.Errorf("%d temporary files, %d slots are still held", count, len(b.h.disk))
	}
	b.ok("GET", "manifest", "", "path", ".")
}

// accepted returns once every connection made before is accepted, and so is counted.
func (b *box) accepted() {
	b.ok("GET", "files/stat", "", "path", "big")
	b.client.CloseIdleConnections()
}

// abort begins a request of some kind and breaks it off after up to 20 ms.
func (b *box) abort(i int, tree string) {
	kinds := []string{"PUT /v1/files?path=d/x", "GET /v1/files?path=big", "PUT /v1/tree?path=t", "GET /v1/tree?path=.",
		"GET /v1/manifest?path=.", "GET /v1/files/watch?path=.", "POST /v1/files/append?path=a", "GET /v1/files/list?path=."}
	which := kinds[i%len(kinds)]
	conn, err := b.dial(nil, "", "")
	b.must(err)
	defer conn.Close()
	length := 0
	if strings.HasPrefix(which, "P") {
		length = 10 << 20
	}
	fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nOrchard-Sandbox: sb-1\r\nContent-Length: %d\r\n\r\n", which, length)
	if length > 0 {
		_, _ = io.WriteString(conn, tree[:len(tree)-1024])
	}
	time.Sleep(time.Duration(i%20) * time.Millisecond)
}

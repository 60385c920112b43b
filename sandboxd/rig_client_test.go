package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

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

// overdue tells whether a time-out of so many seconds may have been told before its kill was
// through, as it is 0.45 s after it was due: on a busy machine a kill may take longer.
func (r result) overdue(timeout float64) bool {
	return r.took >= time.Duration((timeout+0.45)*float64(time.Second))
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

// soon ends a hang; what is waited for comes at once, however long that may be on a busy machine.
const soon = time.Minute

// until waits for something that happens soon.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

func contains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Fatalf("%q does not hold %q", text, part)
	}
}

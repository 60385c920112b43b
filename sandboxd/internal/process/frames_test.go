package process

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"orchard/sandboxd/internal/wire"
)

func TestFramesReadAsTheyWereWritten(t *testing.T) {
	recorder := httptest.NewRecorder()
	out := newFrameWriter(recorder, 201)
	if err := out.write(1, 1<<40, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	if err := out.gap(1, 5, 1<<33); err != nil {
		t.Fatal(err)
	}
	due := []frame{{1, 1 << 40, []byte("abc")}, {4, 5, []byte{2, 0, 0, 0, 2, 0, 0, 0, 0}}}
	for _, want := range due {
		got, err := readFrame(recorder.Body, 100)
		if err != nil || got.kind != want.kind || got.offset != want.offset || !bytes.Equal(got.payload, want.payload) {
			t.Errorf("%+v, %v; due %+v", got, err, want)
		}
	}
}

func TestParseRange(t *testing.T) {
	cases := []struct {
		header   string
		from, to int64
		partial  bool
		refused  bool
	}{
		{"", 0, 100, false, false}, {"bytes=0-9", 0, 10, true, false}, {"bytes=90-", 90, 100, true, false},
		{"bytes=-10", 90, 100, true, false}, {"bytes=-1000", 0, 100, true, false}, {"bytes=50-1000", 50, 100, true, false},
		{"bytes=0-0", 0, 1, true, false}, {"bytes=100-", 0, 0, false, true}, {"bytes=-0", 0, 0, false, true},
		{"bytes=5-2", 0, 100, false, false}, {"bytes=0-1,3-4", 0, 100, false, false}, {"lines=1-2", 0, 100, false, false},
		{"bytes=9-9223372036854775807", 9, 100, true, false},
	}
	for _, c := range cases {
		from, to, partial, problem := parseRange(c.header, 100)
		if (problem != nil) != c.refused || from != c.from || to != c.to || partial != c.partial {
			t.Errorf("%q: %d-%d, %v, %v", c.header, from, to, partial, problem)
		}
	}
}

// FuzzParsing feeds the parsers that read what clients send: none may panic, and what
// passes the check must keep the bounds that the rest relies on.
func FuzzParsing(f *testing.F) {
	f.Add([]byte(`{"id":"a","shell":"x","timeout_s":1.5,"env":{"A":"b"},"pty":{"cols":1,"rows":1}}`), "bytes=0-5")
	f.Add([]byte(`{"id":"a","argv":["x"],"stdin_data":"eA==","unset_env":["A"]}`), "bytes=-5")
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03abc"), "")
	f.Fuzz(func(t *testing.T, body []byte, header string) {
		q := &request{}
		if wire.DecodeJSON(body, q) == nil && q.check() == nil {
			if q.Timeout != nil && q.timeout() < 0 || q.outputLimit() < 0 || len(q.input) > maxStdinData {
				t.Errorf("passed: %s", body)
			}
		}
		if from, to, partial, problem := parseRange(header, 1000); problem == nil && (from < 0 || to > 1000 || partial && from >= to) {
			t.Errorf("%q: %d-%d", header, from, to)
		}
		_, _ = parseSignal(json.RawMessage(body))
		if got, err := readFrame(bytes.NewReader(body), 1<<16); err == nil && len(got.payload) != len(body)-frameHead && len(got.payload) > len(body) {
			t.Errorf("a frame of %d bytes out of %d", len(got.payload), len(body))
		}
	})
}

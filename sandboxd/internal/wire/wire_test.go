package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
)

func TestAProblemHasTheShapeOfTheContract(t *testing.T) {
	w := httptest.NewRecorder()
	Fail(w, nil, fmt.Errorf("wrapped: %w", Invalid("timeout_s", "bad")))
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	due := map[string]any{"type": "about:blank", "title": "Bad Request", "status": 400.0, "code": "invalid_argument",
		"reason": nil, "detail": "bad", "hint": nil, "field": "timeout_s", "errno": nil}
	for key, value := range due {
		if got[key] != value {
			t.Errorf("%s: %v, due %v", key, got[key], value)
		}
	}
	if w.Code != 400 || w.Header().Get("Content-Type") != "application/problem+json" || len(got) != len(due) {
		t.Errorf("%d %v", w.Code, got)
	}
}

func TestEachErrnoHasItsStatus(t *testing.T) {
	cases := map[syscall.Errno]int{syscall.ENOENT: 404, syscall.EISDIR: 409, syscall.ENOTDIR: 409, syscall.EEXIST: 409,
		syscall.ENOTEMPTY: 409, syscall.ELOOP: 409, syscall.EXDEV: 409, syscall.EACCES: 403, syscall.EPERM: 403,
		syscall.EROFS: 403, syscall.ENOSPC: 507, syscall.EDQUOT: 507, syscall.ENAMETOOLONG: 400, syscall.EINVAL: 400, syscall.EMFILE: 400}
	for errno, status := range cases {
		err := FileError("/x", &os.PathError{Op: "open", Path: "/x", Err: errno})
		var p *Problem
		if !errors.As(err, &p) || p.Status != status || p.Code != "file_error" || p.Errno != ErrnoName(errno) {
			t.Errorf("%v: %+v", errno, err)
		}
	}
	if FileError("/x", nil) != nil || ErrnoName(syscall.Errno(999)) != "E999" {
		t.Error("no error is none; an unnamed errno goes by its number")
	}
}

func TestTextThatCannotStandForBytesIsRefusedNotChanged(t *testing.T) {
	cases := map[string]bool{`"é😀"`: true, `"\ud83d\ude00"`: true, `"\\ud83d"`: true, `"\u00e9"`: true, `"\ud83d"`: false,
		`"\ude00"`: false, `"\ud83dx"`: false, "\"\xff\"": false, `"\ud83d\ud83d"`: false, `"\ud83d\u0041"`: false}
	for body, good := range cases {
		var s string
		if err := DecodeJSON([]byte(body), &s); (err == nil) != good {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestAGateRefusesTheOneTooMany(t *testing.T) {
	g := NewGate("x", 2)
	leave, _ := g.Enter()
	if _, err := g.Enter(); err != nil {
		t.Fatal(err)
	}
	_, err := g.Enter()
	var p *Problem
	if !errors.As(err, &p) || p.Status != http.StatusTooManyRequests || p.RetryAfter == 0 {
		t.Errorf("%v", err)
	}
	leave()
	if _, err := g.Enter(); err != nil {
		t.Error("a slot given back cannot be taken")
	}
}

func TestAnAnswerThatHasBegunIsBrokenNotMended(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tracked := NewWriter(w)
		_, _ = tracked.Write(make([]byte, 100000))
		Fail(tracked, r, errors.New("late"))
	}))
	defer server.Close()
	response, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	buffer := make([]byte, 200000)
	for {
		if _, err = response.Body.Read(buffer); err != nil {
			break
		}
	}
	if err.Error() == "EOF" {
		t.Error("a cut answer looks whole")
	}
}

func TestIsID(t *testing.T) {
	long := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	cases := map[string]bool{"a": true, "A.b_c-9": true, long + long: true, long + long + "x": false, "": false,
		"a/b": false, "/": false, "a b": false, "é": false, "a\n": false, "../x": false}
	for id, good := range cases {
		if IsID(id) != good {
			t.Errorf("%q", id)
		}
	}
}

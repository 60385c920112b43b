// Package wire holds what every handler of sandboxd says on the wire in the same
// way: problems, JSON answers, errno names, limits of concurrency.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// Version is the version of the wire contract, spoken in every answer.
const Version = "1"

// Problem is an error as the wire contract shows it (application/problem+json).
type Problem struct {
	Status     int
	Code       string
	Reason     string
	Detail     string
	Hint       string
	Field      string
	Errno      string
	RetryAfter int // seconds; 0: no Retry-After header
}

func (p *Problem) Error() string {
	if p.Reason != "" {
		return fmt.Sprintf("%s (%s): %s", p.Code, p.Reason, p.Detail)
	}
	return p.Code + ": " + p.Detail
}

// Invalid says that a body, query or value is bad; field names it ("" for the whole).
func Invalid(field, detail string) *Problem {
	return &Problem{Status: http.StatusBadRequest, Code: "invalid_argument", Field: field, Detail: detail}
}

// NotFound says that the process, listener or route is not there.
func NotFound(reason, detail string) *Problem {
	return &Problem{Status: http.StatusNotFound, Code: "not_found", Reason: reason, Detail: detail}
}

// Conflict says that the request does not fit the present state.
func Conflict(reason, detail string) *Problem {
	return &Problem{Status: http.StatusConflict, Code: "conflict", Reason: reason, Detail: detail}
}

// InvalidRange says that the Range of a request cannot be satisfied.
func InvalidRange(detail string) *Problem {
	return &Problem{Status: http.StatusRequestedRangeNotSatisfiable, Code: "invalid_range", Field: "range", Detail: detail}
}

// Expired says that the process ran but its result is no longer kept.
func Expired(detail string) *Problem {
	return &Problem{Status: http.StatusGone, Code: "result_expired", Detail: detail}
}

// NotStarted says that nothing of the command ran.
func NotStarted(reason, detail, hint string) *Problem {
	return &Problem{Status: http.StatusUnprocessableEntity, Code: "command_not_started",
		Reason: reason, Detail: detail, Hint: hint}
}

// Internal wraps a bug of ours.
func Internal(err error) *Problem {
	return &Problem{Status: http.StatusInternalServerError, Code: "internal", Detail: err.Error(),
		Hint: "this is a fault of sandboxd; report it with the request id"}
}

// asProblem turns any error into a Problem: itself, an errno, or a fault of ours.
func asProblem(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	var tooBig *http.MaxBytesError
	if errors.As(err, &tooBig) {
		return Invalid("body", fmt.Sprintf("the body is larger than %d bytes", tooBig.Limit))
	}
	return Internal(err)
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// MarshalJSON writes the shape of the wire contract; empty members are null.
func (p *Problem) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{
		"type": "about:blank", "title": http.StatusText(p.Status), "status": p.Status,
		"code": p.Code, "reason": orNull(p.Reason), "detail": p.Detail, "hint": orNull(p.Hint),
		"field": orNull(p.Field), "errno": orNull(p.Errno),
	})
}

// Fail answers with err as a problem. If the answer has already begun it breaks the
// connection instead, so that a cut answer can never be taken for a whole one.
func Fail(w http.ResponseWriter, _ *http.Request, err error) {
	if Started(w) {
		panic(http.ErrAbortHandler)
	}
	p := asProblem(err)
	body, _ := json.Marshal(p)
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if p.Status != http.StatusRequestedRangeNotSatisfiable {
		h.Del("Content-Range")
	}
	h.Del("Trailer")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// Handler is a handler that returns its error; HandlerFunc makes it an http.HandlerFunc.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP answers with the problem that the handler returned, if any.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		Fail(w, r, err)
	}
}

package process

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sort"
	"strconv"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	// bodyLimit bounds the request that starts a process: a script of a few MB fits well.
	bodyLimit = 32 << 20
	// largeBody is the size from which only a few requests are read at once.
	largeBody   = 1 << 20
	longestWait = 60 * time.Second
)

// Quiet are the routes whose requests are no activity: reads of status and lists.
var Quiet = []string{"GET /v1/processes", "GET /v1/processes/{id}"}

// Routes registers the routes of the section Processes.
func (t *Table) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/processes", wire.Handler(t.post))
	mux.Handle("GET /v1/processes", wire.Handler(t.list))
	mux.Handle("GET /v1/processes/{id}", wire.Handler(t.get))
	mux.Handle("DELETE /v1/processes/{id}", wire.Handler(t.delete))
	mux.Handle("GET /v1/processes/{id}/stream", wire.Handler(t.getStream))
	mux.Handle("GET /v1/processes/{id}/output/{name}", wire.Handler(t.getOutput))
	mux.Handle("POST /v1/processes/{id}/stdin", wire.Handler(t.postStdin))
	mux.Handle("POST /v1/processes/{id}/signal", wire.Handler(t.postSignal))
	mux.Handle("POST /v1/processes/{id}/resize", wire.Handler(t.postResize))
}

// decode reads the body. A known id answers whatever the rest of the body says.
func (t *Table) decode(w http.ResponseWriter, r *http.Request) (*request, error) {
	if r.ContentLength < 0 || r.ContentLength > largeBody {
		leave, err := t.large.Enter()
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return nil, err
	case err != nil:
		return nil, wire.Invalid("body", "the body was cut short: nothing was started")
	}
	q := &request{}
	failed := wire.DecodeJSON(body, q)
	if failed == nil {
		failed = q.check()
	}
	if failed == nil {
		return q, nil
	}
	var only struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(body, &only) == nil {
		if p, err := t.lookup(only.ID); p != nil || err != nil {
			return &request{ID: only.ID}, nil
		}
	}
	return nil, failed
}

func (t *Table) post(w http.ResponseWriter, r *http.Request) error {
	mode, err := streamMode(r.URL.Query().Get("stream"), "stream")
	if err != nil {
		return err
	}
	q, err := t.decode(w, r)
	if err != nil {
		return err
	}
	p, created, err := t.Start(q)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if created {
		code = http.StatusCreated
	}
	if mode == "" {
		wire.JSON(w, code, p.status())
		return nil
	}
	err = t.stream(w, r, p, view{mode: mode, code: code})
	if created && p.killOnBreak && p.running() {
		go func() { _ = p.cancel() }()
	}
	return err
}

func (t *Table) list(w http.ResponseWriter, _ *http.Request) error {
	all := t.all()
	sort.Slice(all, func(i, j int) bool { return all[i].began.Before(all[j].began) })
	out := make([]status, len(all))
	for i, p := range all {
		out[i] = p.status()
	}
	wire.JSON(w, http.StatusOK, map[string]any{"processes": out})
	return nil
}

func (t *Table) get(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	if text := r.URL.Query().Get("wait"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds >= 0 && seconds <= longestWait.Seconds()) {
			return wire.Invalid("wait", "a number of seconds from 0 to 60 is due")
		}
		timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
		defer timer.Stop()
		select {
		case <-p.exited:
		case <-timer.C:
		case <-r.Context().Done():
		}
		if p.doomed.Load() {
			return shuttingDown()
		}
	}
	wire.JSON(w, http.StatusOK, p.status())
	return nil
}

func (t *Table) delete(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := p.cancel(); err != nil {
		return err
	}
	wire.JSON(w, http.StatusOK, p.status())
	return nil
}

func (t *Table) postSignal(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	var body struct {
		Signal json.RawMessage `json:"signal"`
		Tree   bool            `json:"tree"`
	}
	if err := wire.ReadJSON(w, r, 64<<10, &body); err != nil {
		return err
	}
	s, err := parseSignal(body.Signal)
	if err != nil {
		return err
	}
	if body.Tree {
		p.tree.SignalAll(s)
	} else {
		_ = p.tree.Signal(s) // one that has ended needs no signal; the status says so
	}
	wire.JSON(w, http.StatusOK, p.status())
	return nil
}

func (t *Table) postResize(w http.ResponseWriter, r *http.Request) error {
	p, err := t.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	var s size
	if err := wire.ReadJSON(w, r, 64<<10, &s); err != nil {
		return err
	}
	if problem := s.check("cols"); problem != nil {
		return problem
	}
	if !p.terminal {
		return wire.Conflict("no_pty", "this process has no terminal")
	}
	if to, _, _ := p.stdin.now(); to != nil {
		if err := resize(to, s); err != nil {
			return wire.Conflict("no_pty", "the terminal is closed: "+err.Error())
		}
	}
	wire.JSON(w, http.StatusOK, p.status())
	return nil
}

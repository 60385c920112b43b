package server

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"orchard/sandboxd/internal/wire"
)

type room struct{}

func (room) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/panic", func(http.ResponseWriter, *http.Request) { panic("a bug") })
	mux.HandleFunc("GET /v1/late", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 1<<20))
		panic("a late bug")
	})
	mux.Handle("GET /v1/error", wire.Handler(func(http.ResponseWriter, *http.Request) error { return errors.New("a plain error") }))
	mux.HandleFunc("GET /v1/quiet", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/loud", func(http.ResponseWriter, *http.Request) {})
}

type open struct{}

func (open) Allowed(string) bool { return true }

type counter struct{ began, ended int }

func (c *counter) Begin() func() {
	c.began++
	return func() { c.ended++ }
}

func serve(t *testing.T, closing bool) (get func(path string) *http.Response, activity *counter) {
	t.Helper()
	activity = &counter{}
	s := httptest.NewServer(Handler(Options{ID: "sb", Tokens: open{}, Activity: activity, Closing: func() bool { return closing },
		Quiet: []string{"GET /v1/quiet"}, Rooms: []Room{room{}}}))
	t.Cleanup(s.Close)
	return func(path string) *http.Response {
		request, err := http.NewRequest("GET", s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Orchard-Sandbox", "sb")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response
	}, activity
}

func TestABugAnswers500AndBreaksAnAnswerThatHasBegun(t *testing.T) {
	get, activity := serve(t, false)
	for _, path := range []string{"/v1/panic", "/v1/error"} {
		response := get(path)
		var p struct{ Code string }
		if err := json.NewDecoder(response.Body).Decode(&p); err != nil || response.StatusCode != 500 || p.Code != "internal" || response.Header.Get("Orchard-Sandbox") != "sb" {
			t.Errorf("%s: %d %+v %v", path, response.StatusCode, p, err)
		}
	}
	if _, err := io.ReadAll(get("/v1/late").Body); err == nil {
		t.Error("a cut answer looks whole")
	}
	if activity.began != 3 || activity.ended != 3 {
		t.Errorf("activity: %+v", *activity)
	}
}

func TestOnlyLoudRoutesAreActivity(t *testing.T) {
	get, activity := serve(t, false)
	for _, path := range []string{"/v1/quiet", "/v1/nothing", "/v1/quiet"} {
		get(path)
	}
	if activity.began != 0 {
		t.Errorf("quiet requests counted: %+v", *activity)
	}
	if get("/v1/loud"); activity.began != 1 {
		t.Errorf("a loud one did not: %+v", *activity)
	}
}

func TestAfterTheEndEverythingIs503(t *testing.T) {
	get, _ := serve(t, true)
	if response := get("/v1/loud"); response.StatusCode != 503 {
		t.Errorf("answered %d", response.StatusCode)
	}
}

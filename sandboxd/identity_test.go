package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

func TestIdentityComesBeforeTheTokenAndEveryAnswerEchoesTheID(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	cases := []struct {
		name, id, authorization, path string
		status                        int
		code                          string
	}{
		{"all is right", testID, "Bearer " + testToken, "/v1/health", 200, ""},
		{"another sandbox", "sb-other", "Bearer " + testToken, "/v1/health", 421, "wrong_sandbox"},
		{"another sandbox and no token", "sb-other", "", "/v1/health", 421, "wrong_sandbox"},
		{"no id", "", "Bearer " + testToken, "/v1/health", 421, "wrong_sandbox"},
		{"no token", testID, "", "/v1/health", 401, "unauthorized"},
		{"a wrong token", testID, "Bearer nonsense", "/v1/health", 401, "unauthorized"},
		{"the hash itself", testID, "Bearer " + hash(testToken), "/v1/health", 401, "unauthorized"},
		{"no such route", testID, "Bearer " + testToken, "/v1/nothing", 404, "not_found"},
		{"no such process", testID, "Bearer " + testToken, "/v1/processes/x", 404, "not_found"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			status, h, text := d.do("GET", c.path, nil, "Orchard-Sandbox", c.id, "Authorization", c.authorization, "Orchard-Request-Id", "r-1")
			if status != c.status {
				t.Errorf("answered %d, due: %d", status, c.status)
			}
			if h.Get("Orchard-Sandbox") != testID || h.Get("Orchard-Version") != "1" || h.Get("Orchard-Request-Id") != "r-1" {
				t.Errorf("headers: %v", h)
			}
			if c.code == "" {
				return
			}
			var p problem
			must(t, json.Unmarshal(text, &p))
			if p.Code != c.code || p.Status != c.status || h.Get("Content-Type") != "application/problem+json" {
				t.Errorf("problem: %s", text)
			}
		})
	}
}

func hash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func TestTokensAreAddedForATimeAndTheMainOneIsReplaced(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	as := func(token string) int {
		status, _, _ := d.do("GET", "/v1/health", nil, "Authorization", "Bearer "+token)
		return status
	}
	for token, seconds := range map[string]float64{"long": 3600, "short": 0.1} {
		if status, _, _ := d.do("POST", "/v1/tokens", body{"sha256": hash(token), "expires_s": seconds}); status != 204 {
			t.Fatalf("adding answered %d", status)
		}
	}
	until(t, "an expired token is not let in", func() bool { return as("short") == 401 })
	if as("long") != 200 || as(testToken) != 200 {
		t.Error("the added token and the main one are both good")
	}
	if status, _, _ := d.do("POST", "/v1/tokens", body{"replace": hash("mine")}, "Authorization", "Bearer long"); status != 401 {
		t.Errorf("an added token handed out another: %d", status)
	}
	if status, _, _ := d.do("POST", "/v1/tokens", body{"replace": hash("new")}); status != 204 {
		t.Fatalf("replacing answered %d", status)
	}
	if as(testToken) != 401 || as("new") != 200 {
		t.Error("after the replacement the new one is good, the old one is not")
	}
	for _, bad := range []body{{}, {"sha256": "x", "expires_s": 1}, {"sha256": hash("a")}, {"sha256": hash("a"), "expires_s": -1}, {"replace": "00"}} {
		if status, _, _ := d.do("POST", "/v1/tokens", bad, "Authorization", "Bearer new"); status != 400 {
			t.Errorf("%v answered %d", bad, status)
		}
	}
}

func TestARequestIsCheckedAndItsFieldNamed(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	cases := map[string]body{
		"timeout_s":    {"timeout_s": "5"},
		"id":           {"id": "a/b"},
		"argv":         {"argv": []string{"x"}, "shell": "x"},
		"output_limit": {"output_limit": -1},
		"env":          {"env": body{"A=B": "x"}},
		"stdin":        {"stdin": "maybe"},
		"stdin_data":   {"stdin_data": "*"},
		"pty":          {"pty": body{"cols": 0, "rows": 1}},
		"shell":        {"shell": "a\x00b"},
		"cwd":          {"cwd": ""},
	}
	for _, seconds := range []any{-1, 0, 1e12, 31536001} {
		cases["timeout_s"]["timeout_s"] = seconds
		checkField(t, d, "timeout_s", cases["timeout_s"])
	}
	cases["timeout_s"]["timeout_s"] = "5"
	for field, request := range cases {
		checkField(t, d, field, request)
	}
	for _, raw := range []string{"", "{", "[]", `{"id":"a","shell":"\ud800"}`, "{\"id\":\"a\",\"shell\":\"\xff\"}", `{"id":"a","argv":[]}`} {
		if status, _, _ := d.do("POST", "/v1/processes", []byte(raw)); status != 400 {
			t.Errorf("%q answered %d", raw, status)
		}
	}
}

func checkField(t *testing.T, d *daemon, field string, request body) {
	t.Helper()
	full := body{"id": "check", "shell": "true"}
	if request["argv"] != nil {
		delete(full, "shell")
	}
	for key, value := range request {
		full[key] = value
	}
	status, _, text := d.do("POST", "/v1/processes", full)
	var p problem
	must(t, json.Unmarshal(text, &p))
	if status != 400 || p.Code != "invalid_argument" || p.Field != field {
		t.Errorf("%v answered %d %s", request, status, text)
	}
}

func TestAWaitEndsWithTheProcess(t *testing.T) {
	d := start(t, options{mark: "supervisor"})
	d.do("POST", "/v1/processes", body{"id": "w", "shell": "sleep 0.3"})
	began := time.Now()
	status, _, text := d.do("GET", "/v1/processes/w?wait=60", nil)
	if took := time.Since(began); took >= 60*time.Second || status != http.StatusOK {
		t.Errorf("the wait answered %d after %v", status, took)
	}
	contains(t, string(text), `"state":"exited"`)
	for _, bad := range []string{"-1", "61", "NaN", "x"} {
		if status, _, _ := d.do("GET", "/v1/processes/w?wait="+bad, nil); status != 400 {
			t.Errorf("wait=%s answered %d", bad, status)
		}
	}
}

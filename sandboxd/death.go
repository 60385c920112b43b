package main

import (
	"encoding/json"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"orchard/sandboxd/internal/config"
	"orchard/sandboxd/internal/dirfd"
	"orchard/sandboxd/internal/lease"
)

// die says why in the state folder and ends the process, and with it the sandbox.
func die(state *dirfd.Dir, reason, detail string) {
	if state != nil {
		body, err := json.Marshal(map[string]string{"reason": reason, "detail": detail,
			"at": time.Now().UTC().Format(time.RFC3339Nano)})
		if err == nil {
			err = state.Replace("death.json", body)
		}
		if err != nil {
			log.Printf("death.json: %v", err)
		}
	}
	log.Printf("the sandbox ends: %s %s", reason, detail)
	os.Exit(0)
}

func terms(l config.Lease) lease.Terms {
	return lease.Terms{TTL: span(l.TTL), MaxTTL: span(l.MaxTTL), Idle: span(l.Idle), Heartbeat: span(l.Heartbeat)}
}

func span(seconds *float64) time.Duration {
	if seconds == nil {
		return 0
	}
	return time.Duration(*seconds * float64(time.Second))
}

// oomAdjust is what commands' oom_score_adj must be set to, nil if ours is it already.
func oomAdjust(wanted int) *int {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return nil
	}
	if own, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && own == wanted {
		return nil
	}
	return &wanted
}

package main

import (
	"encoding/json"
	"log"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"orchard/sandboxd/internal/config"
	"orchard/sandboxd/internal/dirfd"
	"orchard/sandboxd/internal/lease"
)

// die says why in the state folder and in the death note, and ends the process, and with it the sandbox.
func die(state *dirfd.Dir, note *os.File, reason, detail string) {
	body, err := json.Marshal(map[string]string{"reason": reason, "detail": detail,
		"at": time.Now().UTC().Format(time.RFC3339Nano)})
	if err == nil && state != nil {
		err = state.Replace("death.json", body)
	}
	if err == nil && note != nil {
		err = rewrite(note, body)
	}
	if err != nil {
		log.Printf("saying why the sandbox ends: %v", err)
	}
	log.Printf("the sandbox ends: %s %s", reason, detail)
	os.Exit(exitCode(note != nil, reason))
}

// exitCode is 0 but for a Pod (noted) that was told to end: a kubelet forgets why it evicted a Pod that ends well.
func exitCode(noted bool, reason string) int {
	if noted && reason == "signal" {
		return 128 + int(syscall.SIGTERM)
	}
	return 0
}

// deathNote opens the file in which the container runtime looks for last words; opened
// early, so that it is found however a command rearranges the file system. "" is none.
func deathNote(path string) *os.File {
	if path == "" {
		return nil
	}
	note, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		log.Printf("death_file: %v", err)
		return nil
	}
	return note
}

// rewrite replaces whatever a command may have put there.
func rewrite(note *os.File, body []byte) error {
	if err := note.Truncate(0); err != nil {
		return err
	}
	_, err := note.WriteAt(body, 0)
	return err
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

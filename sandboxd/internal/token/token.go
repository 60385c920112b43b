// Package token knows the bearer tokens of the sandbox, by their SHA-256 only.
package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	// addedLimit bounds how many unexpired added tokens there may be at once.
	addedLimit = 1024
	// longest is the longest life of an added token.
	longest = 31536000
)

type digest [sha256.Size]byte

// Store holds the main token and the added ones.
type Store struct {
	mu    sync.Mutex
	main  digest
	added map[digest]time.Time
}

// New makes a store of the main token's SHA-256 in hexadecimal.
func New(mainSHA256 string) (*Store, error) {
	d, err := parse("token_sha256", mainSHA256)
	if err != nil {
		return nil, err
	}
	return &Store{main: d, added: map[digest]time.Time{}}, nil
}

// Allowed tells whether an Authorization header carries a good token. Every known
// digest is compared in constant time, whichever matches.
func (s *Store) Allowed(authorization string) bool {
	sum, ok := bearer(authorization)
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	good := subtle.ConstantTimeCompare(sum[:], s.main[:])
	now := time.Now()
	for d, expires := range s.added {
		if now.Before(expires) {
			good |= subtle.ConstantTimeCompare(sum[:], d[:])
		}
	}
	return good == 1
}

// isMain tells whether an Authorization header carries the main token.
func (s *Store) isMain(authorization string) bool {
	sum, ok := bearer(authorization)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && subtle.ConstantTimeCompare(sum[:], s.main[:]) == 1
}

func bearer(authorization string) (sum digest, ok bool) {
	scheme, text, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return sum, false
	}
	return sha256.Sum256([]byte(text)), true
}

// Routes registers POST /v1/tokens.
func (s *Store) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/tokens", wire.Handler(s.post))
}

func (s *Store) post(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		SHA256  string   `json:"sha256"`
		Expires *float64 `json:"expires_s"`
		Replace string   `json:"replace"`
	}
	if !s.isMain(r.Header.Get("Authorization")) {
		return &wire.Problem{Status: http.StatusUnauthorized, Code: "unauthorized", Reason: "token",
			Detail: "only the holder of the main token hands out others"}
	}
	if err := wire.ReadJSON(w, r, 64<<10, &body); err != nil {
		return err
	}
	if (body.SHA256 == "") == (body.Replace == "") {
		return wire.Invalid("sha256", "exactly one of sha256 and replace is due")
	}
	if body.Replace != "" {
		d, err := parse("replace", body.Replace)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.main = d
		s.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if body.Expires == nil || !(*body.Expires > 0) || *body.Expires > longest {
		return wire.Invalid("expires_s", "a number of seconds above 0 and up to 31536000 is due")
	}
	if err := s.add(body.SHA256, time.Duration(*body.Expires*float64(time.Second))); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Store) add(sum string, life time.Duration) error {
	d, err := parse("sha256", sum)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for old, expires := range s.added {
		if !now.Before(expires) {
			delete(s.added, old)
		}
	}
	if len(s.added) >= addedLimit {
		return &wire.Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", Reason: "tokens",
			RetryAfter: 60, Detail: "1024 added tokens are alive at once"}
	}
	s.added[d] = now.Add(life)
	return nil
}

func parse(field, sum string) (d digest, err error) {
	raw, err := hex.DecodeString(sum)
	if err != nil || len(raw) != len(d) {
		return d, wire.Invalid(field, "64 hexadecimal digits (a SHA-256) are due")
	}
	copy(d[:], raw)
	return d, nil
}

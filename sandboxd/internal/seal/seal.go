// Package seal keeps the door of a sandbox without network shut until its network is seen
// to be shut: a new Pod is open for up to a second before the cluster's policy bites.
//
// That a dial fails proves nothing while its target may be down, so the word of a witness
// who reaches the target is taken before and after: see "Seal" in spec/wire.md.
package seal

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"orchard/sandboxd/internal/wire"
)

const (
	// tries and spacing make a round: one lost packet is no policy, and neither is a route
	// that is not there yet for a moment.
	tries   = 3
	spacing = 100 * time.Millisecond
	// patience is how long one try waits; a daemon that the kernel throttles must not take
	// its own slowness for silence.
	patience = 500 * time.Millisecond
	// fresh bounds how old a round may be when the second witness speaks.
	fresh = 10 * time.Second
	// targetLimit bounds the targets of one request.
	targetLimit = 16
)

// denials are the errors of connect by which networks deny, and that of a family that is
// taken from us; any other is a fault of our own, such as no free descriptor, and tells nothing.
var denials = []syscall.Errno{syscall.EAFNOSUPPORT, syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EACCES, syscall.EPERM}

// Seal is the state of the door.
type Seal struct {
	begin  func()
	sealed atomic.Bool

	mu      sync.Mutex // one round at a time
	asked   time.Time  // when the first witness spoke
	targets []netip.AddrPort
	// denied are the ends of the rounds that were denied throughout, since the last one that
	// was not: of several witnesses each may find another's round under way when it speaks.
	denied  []time.Time
	wasOpen bool
}

// New makes a door that is shut. begin is called once, before it opens.
func New(begin func()) *Seal { return &Seal{begin: begin} }

// Open opens the door for good.
func (s *Seal) Open() {
	s.begin()
	s.sealed.Store(true)
}

// Sealed tells whether the door is open, which it is once the network is shut.
func (s *Seal) Sealed() bool { return s.sealed.Load() }

// Watch ends the sandbox if it is not sealed within span of the first question, or if nobody
// asks within silence: until a slow cluster tells where the Pod is, nobody can.
func (s *Seal) Watch(span, silence time.Duration, end func(reason, detail string)) {
	began := time.Now()
	var look func()
	look = func() {
		s.mu.Lock() // held to the end: a round that is under way decides first, and none after
		if s.Sealed() {
			s.mu.Unlock()
			return
		}
		left, detail := time.Until(began.Add(silence)), "nobody asked within "+silence.String()+" whether the network is shut"
		if !s.asked.IsZero() {
			left = time.Until(s.asked.Add(span))
			detail = "the network was not seen to be shut within " + span.String() + ", tried on " + listed(s.targets)
		}
		if left > 0 {
			time.AfterFunc(min(left, span), look)
			s.mu.Unlock()
			return
		}
		end("not_sealed", detail)
	}
	time.AfterFunc(min(span, silence), look)
}

// Routes registers POST /v1/seal.
func (s *Seal) Routes(mux *http.ServeMux) { mux.Handle("POST /v1/seal", wire.Handler(s.post)) }

func (s *Seal) post(w http.ResponseWriter, r *http.Request) error {
	arrived := time.Now()
	var q struct {
		Dial []string `json:"dial"`
	}
	if err := wire.ReadJSON(w, r, 64<<10, &q); err != nil {
		return err
	}
	targets, err := parse(q.Dial)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.Sealed() {
		s.hear(arrived, targets)
	}
	wire.JSON(w, http.StatusOK, map[string]bool{"sealed": s.Sealed(), "denied": len(s.denied) > 0, "was_open": s.wasOpen})
	return nil
}

// hear takes the word of a witness: it confirms the round before it, or begins one.
func (s *Seal) hear(arrived time.Time, targets []netip.AddrPort) {
	if s.asked.IsZero() {
		s.asked = arrived
	}
	if !slices.Equal(targets, s.targets) {
		s.targets, s.denied = targets, nil
	}
	s.denied = slices.DeleteFunc(s.denied, func(end time.Time) bool { return arrived.Sub(end) >= fresh })
	if slices.ContainsFunc(s.denied, arrived.After) {
		s.Open()
		return
	}
	denied, open := try(targets)
	s.wasOpen = s.wasOpen || open
	if denied {
		s.denied = append(s.denied, time.Now())
	} else {
		s.denied = nil
	}
}

// try dials each target several times over. denied: not one try got through, and each was
// denied; open: one got through, and the rest is not waited for.
func try(targets []netip.AddrPort) (denied, open bool) {
	answers := make(chan error, tries*len(targets))
	for n := range tries {
		for _, target := range targets {
			time.AfterFunc(time.Duration(n)*spacing, func() { answers <- dial(target) })
		}
	}
	denied = true
	for range cap(answers) {
		err := <-answers
		if err == nil {
			return false, true
		}
		denied = denied && isDenial(err)
	}
	return denied, false
}

func dial(target netip.AddrPort) error {
	c, err := net.DialTimeout("tcp", target.String(), patience)
	if err == nil {
		c.Close()
	}
	return err
}

func isDenial(err error) bool {
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return true
	}
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(denials, errno)
}

func parse(dial []string) ([]netip.AddrPort, error) {
	if len(dial) == 0 || len(dial) > targetLimit {
		return nil, wire.Invalid("dial", "1 to 16 targets are due")
	}
	targets := make([]netip.AddrPort, len(dial))
	for i, text := range dial {
		target, err := netip.ParseAddrPort(text)
		if err != nil || target.Port() == 0 {
			return nil, wire.Invalid("dial", "an address and a port are due, 10.0.0.1:6443 or [fd00::1]:6443, not "+text)
		}
		targets[i] = target
	}
	return targets, nil
}

func listed(targets []netip.AddrPort) string {
	var texts []string
	for _, target := range targets {
		texts = append(texts, target.String())
	}
	return strings.Join(texts, ", ")
}

package wire

import (
	"fmt"
	"net/http"
)

// Activity is the idle clock of the lease. Begin says that something which counts as
// activity began; the returned function, called once, says that it ended.
type Activity interface {
	Begin() (end func())
}

// Gate bounds how many requests of one kind run at once; more are told so (429), never
// queued without a word.
type Gate struct {
	kind  string
	slots chan struct{}
}

// NewGate makes a gate for n requests of the kind named.
func NewGate(kind string, n int) *Gate {
	return &Gate{kind: kind, slots: make(chan struct{}, n)}
}

// Enter takes a slot; leave gives it back and is called exactly once.
func (g *Gate) Enter() (leave func(), err error) {
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	default:
		return nil, &Problem{Status: http.StatusTooManyRequests, Code: "rate_limited", RetryAfter: 1,
			Reason: g.kind, Detail: fmt.Sprintf("more than %d concurrent requests of kind %q", cap(g.slots), g.kind)}
	}
}

package files

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// errEnough ends a walk that has reached its limit.
var errEnough = errors.New("limit reached")

func (h *Handler) list(w http.ResponseWriter, r *http.Request, q query) error {
	deep, err := q.flag("recursive", false)
	if err != nil {
		return err
	}
	limit, err := q.count("limit", math.MaxInt64, 1)
	if err != nil {
		return err
	}
	start, err := h.root.Open(q.name(), rootfs.OPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(start)
	out, names := newLines(w), h.names()
	prefix := strings.TrimSuffix(h.shown(q.name()), "/") + "/"
	visit := func(n *node) error {
		if out.count >= limit {
			return errEnough
		}
		e := names.newEntry(prefix+n.rel, n.dir, n.name, &n.stat)
		e.Error = errnoName(n.err)
		return out.put(e)
	}
	err = (&walk{h: h, ctx: r.Context(), start: start, deep: deep, visit: visit}).run()
	if errors.Is(err, errEnough) {
		return out.end(q.name(), true, nil)
	}
	return out.end(q.name(), false, err)
}

func errnoName(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return wire.ErrnoName(errno)
	}
	return ""
}

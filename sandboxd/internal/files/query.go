package files

import (
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// query is the query string of a request, its values raw bytes.
type query struct{ values url.Values }

func parseQuery(r *http.Request) (query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return query{}, wire.Invalid("query", err.Error())
	}
	q := query{values}
	if _, err := q.path("path"); err != nil {
		return query{}, err
	}
	return q, nil
}

// name is the path that the request is about.
func (q query) name() string { return q.values.Get("path") }

// path is a value that must name something.
func (q query) path(field string) (string, error) {
	value := q.values.Get(field)
	if value == "" {
		return "", wire.Invalid(field, "a path is due")
	}
	if strings.IndexByte(value, 0) >= 0 {
		return "", wire.Invalid(field, "a path holds no NUL byte")
	}
	return value, nil
}

// flag is a value that is 0 or 1.
func (q query) flag(field string, missing bool) (bool, error) {
	switch q.values.Get(field) {
	case "":
		return missing, nil
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, wire.Invalid(field, "0 or 1 is due")
}

// mode is an octal mode, or nil if there is none.
func (q query) mode() (*uint32, error) {
	text := q.values.Get("mode")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32)
	if err != nil || n > 0o7777 {
		return nil, wire.Invalid("mode", "an octal mode from 0 to 7777 is due")
	}
	mode := uint32(n)
	return &mode, nil
}

// count is a number of at least low, or missing if there is none.
func (q query) count(field string, missing, low int64) (int64, error) {
	text := q.values.Get(field)
	if text == "" {
		return missing, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low {
		return 0, wire.Invalid(field, "a whole number of at least "+strconv.FormatInt(low, 10)+" is due")
	}
	return n, nil
}

// owner is whom something made belongs to.
type owner struct {
	uid, gid int
	named    bool // by the request, so that it fails where he cannot be given it
	exact    bool // the group too, whatever a set-gid folder says
}

// owner resolves the request's user, or else the configured one.
func (h *Handler) owner(q query) (owner, error) {
	spec := q.values.Get("user")
	named := spec != ""
	if !named {
		spec = h.deps.User
	}
	if spec == "" { // most often; spares reading the user database
		return owner{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	id, err := h.deps.Users.Lookup(spec)
	if err != nil {
		return owner{}, wire.Invalid("user", err.Error())
	}
	return owner{int(id.UID), int(id.GID), named, named}, nil
}

// give makes fd belong to o. Without the right to give files away they stay ours, as
// the commands then are, unless the request named an owner.
func (o owner) give(fd int) error {
	st, err := rootfs.Fstat(fd)
	if err == nil && !o.exact && int(st.Gid) != os.Getegid() { // a set-gid folder gave it its own group
		o.gid = int(st.Gid)
	}
	if err != nil || (int(st.Uid) == o.uid && int(st.Gid) == o.gid) {
		return err
	}
	if !o.named && os.Geteuid() != 0 {
		return nil
	}
	return rootfs.Chown(fd, o.uid, o.gid)
}

const (
	drainPause = 2 * time.Second  // longest silence of a client that is being refused
	drainTotal = 30 * time.Second // longest time spent on reading what nobody wants
)

// drain reads the rest of a body and throws it away.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") != "" {
		return // the client waits for leave to send
	}
	control, buf := http.NewResponseController(w), buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for end := time.Now().Add(drainTotal); time.Now().Before(end); {
		if control.SetReadDeadline(time.Now().Add(drainPause)) != nil {
			return
		}
		if _, err := r.Body.Read(buf[:]); err != nil {
			break
		}
	}
	_ = control.SetReadDeadline(time.Time{})
}

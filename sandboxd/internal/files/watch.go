package files

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// movePause is how long the second half of a move may be behind the first.
const movePause = 20 * time.Millisecond

// change is one line of a watch.
type change struct {
	Event   string `json:"event"`
	Path    any    `json:"path,omitempty"`
	PathB64 string `json:"path_b64,omitempty"`
	From    any    `json:"from,omitempty"`
	FromB64 string `json:"from_b64,omitempty"`

	rel    string
	cookie uint32
	folder bool
}

// watching turns the notices of a watcher into lines.
type watching struct {
	*watcher
	h      *Handler
	name   string // the path asked for
	out    *lines
	prefix string  // what the path of every change begins with
	last   *change // written last, to say a run of writes once a batch
}

func (h *Handler) watch(w http.ResponseWriter, r *http.Request) error {
	leave, err := h.watches.Enter()
	if err != nil {
		return err
	}
	defer leave()
	q, err := parseQuery(r)
	if err != nil {
		return err
	}
	deep, err := q.flag("recursive", true)
	if err != nil {
		return err
	}
	watcher, err := newWatcher(deep)
	if err != nil {
		return wire.FileError(q.name(), err)
	}
	defer watcher.file.Close()
	t := &watching{watcher: watcher, h: h, name: q.name(), out: newLines(w),
		prefix: strings.TrimSuffix(h.shown(q.name()), "/")}
	if err := h.disk.run(t.begin); err != nil {
		return wire.FileError(q.name(), err)
	}
	if err := t.put(&change{Event: "ready"}); err != nil {
		return err
	}
	return t.follow(r.Context())
}

// begin sets the watches that stand before "ready" is said. It keeps nothing open:
// the kernel tells of a removal only once nobody holds what was removed.
func (t *watching) begin() error {
	start, err := t.h.root.Open(t.name, rootfs.OPath)
	if err != nil {
		return err
	}
	defer closeFD(start)
	st, err := rootfs.Fstat(start)
	if err != nil {
		return err
	}
	if kind(&st) != "dir" {
		return t.add(start, "")
	}
	t.prefix += "/"
	return t.addTree(start, "", func(string) {})
}

// follow writes changes until the client goes away or what is watched does.
func (t *watching) follow(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = t.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for {
		if err := t.out.flush(); err != nil {
			return err
		}
		if ctx.Err() != nil { // looked at after each change of the deadline: none is missed
			return ctx.Err()
		}
		n, err := t.file.Read(buf[:])
		if errors.Is(err, os.ErrDeadlineExceeded) { // which outranks what has come meanwhile
			n, err = syscall.Read(t.fd, buf[:])
		}
		if errors.Is(err, syscall.EAGAIN) { // a move out of the tree has no second half
			err = t.settle()
		} else if err == nil {
			err = t.batch(notices(buf[:n]))
		}
		if errors.Is(err, errEnough) {
			return t.out.end(t.name, false, nil)
		}
		if err != nil {
			return t.out.end(t.name, false, err)
		}
	}
}

func (t *watching) batch(records []notice) error {
	t.last = nil
	for _, n := range records {
		if err := t.one(n); err != nil {
			return err
		}
	}
	pause := time.Time{}
	if t.moved != nil {
		pause = time.Now().Add(movePause)
	}
	return t.file.SetReadDeadline(pause)
}

func (t *watching) one(n notice) error {
	if n.mask&syscall.IN_Q_OVERFLOW != 0 {
		return t.overflow()
	}
	folder, known := t.paths[n.watch]
	if !known || looksTemp(n.name) && n.mask&syscall.IN_MOVED_FROM == 0 {
		return nil
	}
	c := &change{rel: folder + n.name, cookie: n.cookie, folder: n.mask&syscall.IN_ISDIR != 0}
	if t.moved != nil && n.mask&syscall.IN_MOVED_TO == 0 {
		if err := t.settle(); err != nil {
			return err
		}
	}
	switch {
	case n.mask&(syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF|syscall.IN_UNMOUNT) != 0:
		return t.selfGone(n, folder)
	case n.mask&syscall.IN_MOVED_FROM != 0:
		t.moved = c
		return nil
	case n.mask&syscall.IN_MOVED_TO != 0:
		return t.arrived(c)
	case n.mask&syscall.IN_CREATE != 0:
		return t.appeared(c)
	case n.mask&syscall.IN_DELETE != 0:
		c.Event = "removed"
		return t.say(c)
	case n.mask&(syscall.IN_MODIFY|syscall.IN_ATTRIB) != 0 && (n.name != "" || !t.isTree()):
		c.Event = "modified"
		return t.say(c)
	}
	return nil
}

func (t *watching) isTree() bool { return strings.HasSuffix(t.prefix, "/") }

// selfGone ends the stream when what is watched is removed or moved away.
func (t *watching) selfGone(n notice, folder string) error {
	if folder != "" {
		if n.mask&syscall.IN_MOVE_SELF == 0 { // a move was dealt with where it was told of
			delete(t.paths, n.watch)
		}
		return nil
	}
	if err := t.say(&change{Event: "removed"}); err != nil {
		return err
	}
	return errEnough
}

// arrived is the second half of a move; without the first it came from elsewhere.
func (t *watching) arrived(c *change) error {
	from := t.moved
	if from != nil && from.cookie != c.cookie {
		if err := t.settle(); err != nil {
			return err
		}
		from = nil
	}
	t.moved = nil
	switch {
	case from == nil:
		return t.appeared(c)
	case looksTemp(lastName(from.rel)): // a file written whole
		c.Event = "modified"
		return t.say(c)
	}
	if c.folder {
		t.rename(from.rel, c.rel)
	}
	c.Event = "moved"
	c.From, c.FromB64 = text(t.prefix + from.rel)
	return t.say(c)
}

// settle says of a move without a second half that its file is gone.
func (t *watching) settle() error {
	from := t.moved
	t.moved = nil
	if err := t.file.SetReadDeadline(time.Time{}); err != nil || from == nil || looksTemp(lastName(from.rel)) {
		return err
	}
	if from.folder {
		t.forget(from.rel)
	}
	from.Event = "removed"
	return t.say(from)
}

// appeared says that something is new, and watches a new folder with what is in it.
func (t *watching) appeared(c *change) error {
	c.Event = "created"
	if err := t.say(c); err != nil || !c.folder || !t.deep {
		return err
	}
	var failed error
	found := func(path string) {
		if err := t.say(&change{Event: "created", rel: path}); err != nil {
			failed = err
		}
	}
	err := t.watchBelow(c.rel+"/", found)
	if failed != nil {
		return failed
	}
	return ignoreVanished(err)
}

// watchBelow watches a folder of the tree, "" for the tree itself.
func (t *watching) watchBelow(rel string, found func(path string)) error {
	start, err := t.h.root.Open(t.name, rootfs.OPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(start)
	dir, err := rootfs.Reopen(start, rel+".", rootfs.OPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(dir)
	return t.addTree(dir, rel, found)
}

// overflow says that changes were lost, and watches the folders that were among them.
func (t *watching) overflow() error {
	if err := t.put(&change{Event: "overflow"}); err != nil || !t.deep || !t.isTree() {
		return err
	}
	return ignoreVanished(t.watchBelow("", func(string) {}))
}

// say writes a change, unless it is a write to the file of the line before.
func (t *watching) say(c *change) error {
	if t.last != nil && c.Event == "modified" && t.last.Event == "modified" && t.last.rel == c.rel {
		return nil
	}
	t.last = c
	c.Path, c.PathB64 = text(t.prefix + c.rel)
	return t.put(c)
}

func (t *watching) put(c *change) error { return t.out.put(c) }

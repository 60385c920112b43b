// Package files is the room of files: raw bytes, folders, trees as tar, manifests and
// watches, all below one root and all by descriptors.
package files

import (
	"errors"
	"net/http"
	"os"
	"runtime"
	"sync"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/users"
	"orchard/sandboxd/internal/wire"
)

const (
	// trees bounds the requests that walk or unpack a tree at once.
	trees = 128
	// diskSlots bounds the threads that wait for a disk at once: below the number that
	// sandboxd starts beforehand, since it cannot count on getting more.
	diskSlots = 32
	// watches bounds the watch requests at once.
	watches = 64
)

// Deps are what the room needs.
type Deps struct {
	Root    string // the folder that "/" of a request means; "/" unless testing
	Workdir string // where relative paths start, from the root
	User    string // whom new files belong to: "name|uid[:gid|:group]", "" for ourselves
	Users   users.Database
}

// Handler answers the requests of the wire contract's section "Files".
type Handler struct {
	deps    Deps
	root    *rootfs.Root
	trees   *wire.Gate
	watches *wire.Gate
	disk    slots
	hashers slots
	temps   sync.Map // names of temporary files in use
	appends sync.Map // inodes (inode) under a checked append
}

// New opens the root.
func New(deps Deps) (*Handler, error) {
	root, err := rootfs.Open(deps.Root, deps.Workdir)
	if err != nil {
		return nil, &os.PathError{Op: "open root", Path: deps.Root, Err: err}
	}
	return &Handler{deps: deps, root: root,
		trees: wire.NewGate("tree", trees), watches: wire.NewGate("watch", watches),
		disk: make(slots, diskSlots), hashers: make(slots, runtime.NumCPU())}, nil
}

// Close gives the root back; tests use it.
func (h *Handler) Close() error { return h.root.Close() }

// Routes registers the room's requests.
func (h *Handler) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/files", wire.Handler(h.read))
	mux.Handle("PUT /v1/files", body(h.put))
	mux.Handle("POST /v1/files/append", body(h.append))
	mux.Handle("GET /v1/files/stat", h.short(h.stat))
	mux.Handle("GET /v1/files/list", h.tree(h.list))
	mux.Handle("POST /v1/files/mkdir", h.short(h.mkdir))
	mux.Handle("POST /v1/files/move", h.short(h.move))
	mux.Handle("POST /v1/files/remove", h.short(h.remove))
	mux.Handle("POST /v1/files/chmod", h.short(h.chmod))
	mux.Handle("POST /v1/files/symlink", h.short(h.symlink))
	mux.Handle("GET /v1/files/watch", wire.Handler(h.watch))
	mux.Handle("GET /v1/tree", h.tree(h.pack))
	mux.Handle("PUT /v1/tree", body(h.tree(h.unpack)))
	mux.Handle("POST /v1/tree/pick", body(h.tree(h.pick)))
	mux.Handle("GET /v1/manifest", h.tree(h.manifest))
}

// slots bounds how many threads block in the kernel at once.
type slots chan struct{}

func (s slots) run(f func() error) error {
	s <- struct{}{}
	defer func() { <-s }()
	return f()
}

// operation is a request that is answered with one JSON value.
type operation func(q query) (any, error)

// short serves an operation that touches the disk and nothing else.
func (h *Handler) short(op operation) wire.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		q, err := parseQuery(r)
		if err != nil {
			return err
		}
		var answer any
		if err := h.disk.run(func() (err error) { answer, err = op(q); return err }); err != nil {
			return wire.FileError(q.name(), err)
		}
		wire.JSON(w, http.StatusOK, answer)
		return nil
	}
}

// streamed is a request with a stream on one side; its errors are about q's path.
type streamed func(w http.ResponseWriter, r *http.Request, q query) error

// tree serves a request that walks a tree, a bounded number at once.
func (h *Handler) tree(op streamed) wire.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		leave, err := h.trees.Enter()
		if err != nil {
			return err
		}
		defer leave()
		q, err := parseQuery(r)
		if err != nil {
			return err
		}
		return wire.FileError(q.name(), op(w, r, q))
	}
}

// body serves a request with a body. A refusal reads on what the client is still
// sending, for a while: closing on unread bytes resets the connection, and the client
// would see that in place of the reason.
func body(op wire.Handler) wire.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := op(w, r)
		if err != nil && !wire.Started(w) {
			drain(w, r)
		}
		return err
	}
}

// notRegular is the refusal to read or write what is no file.
func notRegular(path, kind string) error {
	var p *wire.Problem
	if errors.As(wire.FileError(path, errnoOf(kind)), &p) && kind != "dir" {
		p.Detail, p.Reason = "it is a "+kind+", not a regular file", "not_regular"
	}
	return p
}

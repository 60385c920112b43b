package files

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

const (
	fileMode = 0o644 // of new files, unless given
	dirMode  = 0o755 // of new folders, unless given
)

// written is the answer to a body that became a file, or the end of one.
type written struct {
	Path    any    `json:"path,omitempty"`
	PathB64 string `json:"path_b64,omitempty"`
	Size    int64  `json:"size"`
	SHA256  string `json:"sha256,omitempty"`
	Mode    uint32 `json:"mode"`
}

// putRequest is what the query of a PUT says.
type putRequest struct {
	path    string
	mode    *uint32
	owner   owner
	parents bool
	sum     string
}

func (h *Handler) putRequest(r *http.Request) (putRequest, error) {
	q, err := parseQuery(r)
	if err != nil {
		return putRequest{}, err
	}
	p := putRequest{path: q.name(), sum: strings.ToLower(q.values.Get("sha256"))}
	if p.sum != "" && (len(p.sum) != 64 || strings.Trim(p.sum, "0123456789abcdef") != "") {
		return p, wire.Invalid("sha256", "64 hexadecimal digits are due")
	}
	if p.mode, err = q.mode(); err != nil {
		return p, err
	}
	if p.parents, err = q.flag("parents", true); err != nil {
		return p, err
	}
	p.owner, err = h.owner(q)
	return p, err
}

func (h *Handler) put(w http.ResponseWriter, r *http.Request) error {
	p, err := h.putRequest(r)
	if err != nil {
		return err
	}
	var place rootfs.Place
	var t *temp
	err = h.disk.run(func() (err error) { place, t, err = h.prepare(&p); return err })
	if err != nil {
		return wire.FileError(p.path, err)
	}
	defer place.Close()
	defer t.discard()
	size, sum, err := h.receive(t.File, r)
	if err != nil {
		return wire.FileError(p.path, err)
	}
	if p.sum != "" && p.sum != sum {
		return wire.Invalid("sha256", "the body's SHA-256 is "+sum+"; nothing was changed")
	}
	err = h.disk.run(func() error { return finish(t, place.Base, &p) })
	if err != nil {
		return wire.FileError(p.path, err)
	}
	answer := written{Size: size, SHA256: sum, Mode: *p.mode}
	answer.Path, answer.PathB64 = text(h.shown(p.path))
	wire.JSON(w, http.StatusOK, answer)
	return nil
}

// prepare finds the place of a new file, makes its folders, and opens a temporary file
// there. What stands in the place already lends its mode and owner.
func (h *Handler) prepare(p *putRequest) (rootfs.Place, *temp, error) {
	for try := 0; ; try++ {
		place, t, err := h.prepareOnce(p)
		// A folder just made or found may be removed by someone else before we are in it.
		if err != syscall.ENOENT || !p.parents || try == 5 {
			return place, t, err
		}
	}
}

func (h *Handler) prepareOnce(p *putRequest) (rootfs.Place, *temp, error) {
	place, err := h.root.Parent(p.path, true)
	if err == syscall.ENOENT && p.parents {
		if err = h.makeParents(p.path, p.owner); err == nil {
			place, err = h.root.Parent(p.path, true)
		}
	}
	if err != nil {
		return place, nil, err
	}
	st, err := rootfs.Statat(place.Dir, place.Base)
	switch {
	case place.Slash:
		err = syscall.EISDIR
	case err == syscall.ENOENT:
		err = nil
	case err == nil && kind(&st) != "file":
		err = notRegular(p.path, kind(&st))
	case err == nil:
		p.inherit(&st)
	}
	if p.mode == nil {
		mode := uint32(fileMode)
		p.mode = &mode
	}
	var t *temp
	if err == nil {
		t, err = h.newTemp(place.Dir)
	}
	if err != nil {
		place.Close()
	}
	return place, t, err
}

// inherit keeps the mode and owner of the file to be replaced, unless given.
func (p *putRequest) inherit(st *syscall.Stat_t) {
	if p.mode == nil {
		mode := st.Mode & 0o7777
		p.mode = &mode
	}
	if !p.owner.named {
		p.owner = owner{uid: int(st.Uid), gid: int(st.Gid), exact: true}
	}
}

func finish(t *temp, base string, p *putRequest) error {
	if err := t.dress(p.owner, *p.mode); err != nil {
		return err
	}
	return t.place(base)
}

// place commits the file, or only its content where base is a mount point, such as
// /etc/hosts may be.
func (t *temp) place(base string) error {
	err := t.commit(base)
	if errors.Is(err, syscall.EBUSY) {
		return overwrite(t, base)
	}
	return err
}

// overwrite puts the content of t, which is closed, into the file base itself.
func overwrite(t *temp, base string) error {
	source, err := rootfs.Openat(t.dir, t.name, syscall.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	from := os.NewFile(uintptr(source), t.name)
	defer from.Close()
	fd, err := rootfs.Openat(t.dir, base, syscall.O_WRONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	f, _, err := regular(base, fd)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := io.Copy(f, from); err != nil {
		return err
	}
	return f.Close()
}

// makeParents makes the folders above name.
func (h *Handler) makeParents(name string, o owner) error {
	return h.makeAll(path.Dir(strings.TrimRight(h.root.Abs(name), "/")), dirMode, o)
}

// makeAll makes a folder and those above it, each belonging to o; those there stay as
// they are. It goes up by text and down by what is there, since ".." may follow a symlink.
func (h *Handler) makeAll(name string, mode uint32, o owner) error {
	fd, err := h.root.Open(name, rootfs.OPath|syscall.O_DIRECTORY)
	if err == nil {
		return syscall.Close(fd)
	}
	if err != syscall.ENOENT {
		return err
	}
	up, _ := path.Split(strings.TrimRight(name, "/"))
	if up != "" && up != name {
		if err := h.makeAll(up, dirMode, o); err != nil {
			return err
		}
	}
	place, err := h.root.Parent(name, true)
	if err != nil {
		return err
	}
	defer place.Close()
	if place.Base == "." {
		return nil
	}
	if err = makeDir(place.Dir, place.Base, mode, o); err == syscall.EEXIST {
		return nil // made by another request meanwhile, or no folder: the next step will tell
	}
	return err
}

// makeDir makes one folder; mode and owner are set on the folder itself, so that
// neither the umask nor a name that changes hands matters.
func makeDir(dir int, name string, mode uint32, o owner) error {
	if err := rootfs.Mkdirat(dir, name, 0o700); err != nil {
		return err
	}
	fd, err := rootfs.Openat(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := o.give(fd); err != nil {
		return err
	}
	st, err := rootfs.Fstat(fd)
	if err != nil {
		return err
	}
	return rootfs.Chmod(fd, mode|st.Mode&syscall.S_ISGID) // as the folder above has it
}

package files

import (
	"encoding/base64"
	"net/http"
	"path"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// pickLimit bounds the body that names what to pick: some 80,000 paths.
const pickLimit = 8 << 20

// pickBody names what to pick; paths that are not UTF-8 come by their bytes.
type pickBody struct {
	Paths    []string `json:"paths"`
	PathsB64 []string `json:"paths_b64"`
}

// names are the paths asked for, cleaned.
func (b *pickBody) names() ([]string, error) {
	names := make([]string, 0, len(b.Paths)+len(b.PathsB64))
	for _, name := range b.Paths {
		clean, err := inside(name)
		if err != nil || clean == "" {
			return nil, wire.Invalid("paths", "relative paths that stay below the tree are due")
		}
		names = append(names, clean)
	}
	for _, text := range b.PathsB64 {
		raw, err := base64.StdEncoding.DecodeString(text)
		clean, bad := inside(string(raw))
		if err != nil || bad != nil || clean == "" {
			return nil, wire.Invalid("paths_b64", "the base64 of relative paths that stay below the tree is due")
		}
		names = append(names, clean)
	}
	return names, nil
}

// pick answers with a tar of the paths that the body names, in that order and nothing
// below them. Extended attributes are kept, as an image layer does.
func (h *Handler) pick(w http.ResponseWriter, r *http.Request, q query) error {
	var body pickBody
	if err := wire.ReadJSON(w, r, pickLimit, &body); err != nil {
		return err
	}
	names, err := body.names()
	if err != nil {
		return err
	}
	start, err := h.root.Open(q.name(), rootfs.OPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(start)
	p := h.newPacker(w)
	p.xattrs = true
	if err := p.each(r, start, names); err != nil {
		return err
	}
	return p.finish(w)
}

// each adds the named paths. A folder stays open as long as its names follow each other.
func (p *packer) each(r *http.Request, start int, names []string) error {
	folder, fd := "", -1
	defer func() { closeFD(fd) }()
	for _, name := range names {
		if err := r.Context().Err(); err != nil {
			return err
		}
		dir, base := path.Split(name)
		n := &node{rel: name, name: base}
		err := p.h.disk.run(func() (err error) {
			if fd < 0 || dir != folder {
				closeFD(fd)
				folder = dir
				if fd, err = rootfs.Reopen(start, "./"+dir, rootfs.OPath|syscall.O_DIRECTORY); err != nil {
					fd = -1
					return err
				}
			}
			n.dir = fd
			n.stat, err = rootfs.Statat(fd, base)
			return err
		})
		if err != nil {
			p.skipped.add(name) // gone, or behind a symlink: it was asked for, so it is named
		} else if err := p.add(n); err != nil {
			return err
		}
	}
	return nil
}

// readXattrs reads the extended attributes of the open node fd that an image layer keeps:
// capabilities and the user's own.
func (n *node) readXattrs(fd int) {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	where := rootfs.ProcPath(fd)
	size, err := syscall.Listxattr(where, buf[:])
	if err != nil {
		return // the file system has no such thing
	}
	for _, name := range strings.Split(string(buf[:size]), "\x00") {
		if name != "security.capability" && !strings.HasPrefix(name, "user.") {
			continue
		}
		if size, err := syscall.Getxattr(where, name, buf[:]); err == nil {
			if n.xattrs == nil {
				n.xattrs = map[string]string{}
			}
			n.xattrs["SCHILY.xattr."+name] = string(buf[:size])
		}
	}
}

func (n *node) readFolderXattrs() {
	fd, err := rootfs.Openat(n.dir, n.name, rootfs.OPath|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err == nil {
		n.readXattrs(fd)
		closeFD(fd)
	}
}

package files

import (
	"archive/tar"
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"orchard/sandboxd/internal/rootfs"
)

// trailerLimit bounds a trailer, since HTTP clients bound their header lines.
const trailerLimit = 6 << 10

// packer writes a tree as a tar. Until its buffer first overflows, a failure can still
// be answered with its status; after that the connection is broken off.
type packer struct {
	h       *Handler
	out     *bufio.Writer
	tar     *tar.Writer
	links   map[inode]string // the first path of files that have several
	skipped nameList
	changed nameList // shrank while being read; padded with zeros
	xattrs  bool     // keep extended attributes
}

// newPacker begins an answer that is a tar.
func (h *Handler) newPacker(w http.ResponseWriter) *packer {
	header := w.Header()
	header.Set("Content-Type", "application/x-tar")
	header.Set("Trailer", "Orchard-Skipped, Orchard-Skipped-Count, Orchard-Changed")
	p := &packer{h: h, out: bufio.NewWriterSize(w, len(buffer{})), links: map[inode]string{}}
	p.tar = tar.NewWriter(p.out)
	return p
}

// finish ends the archive and says what is not in it.
func (p *packer) finish(w http.ResponseWriter) error {
	err := p.tar.Close()
	if err == nil {
		err = p.out.Flush()
	}
	if err != nil {
		return err
	}
	w.Header().Set("Orchard-Skipped", p.skipped.json())
	w.Header().Set("Orchard-Skipped-Count", strconv.Itoa(p.skipped.count))
	w.Header().Set("Orchard-Changed", p.changed.json())
	return nil
}

func (h *Handler) pack(w http.ResponseWriter, r *http.Request, q query) error {
	exclude, start, err := h.subtree(q)
	if err != nil {
		return err
	}
	defer closeFD(start)
	p := h.newPacker(w)
	err = (&walk{h: h, ctx: r.Context(), start: start, deep: true, exclude: exclude, visit: p.add}).run()
	if err != nil {
		return err
	}
	return p.finish(w)
}

// nameList is a list of names that stays within a trailer; count goes on.
type nameList struct {
	names []string
	bytes int
	count int
}

func (l *nameList) add(name string) {
	name = url.PathEscape(name)
	l.count++
	if l.bytes += len(name) + 3; l.bytes <= trailerLimit {
		l.names = append(l.names, name)
	}
}

// json is the list as JSON, its names percent-encoded.
func (l *nameList) json() string {
	if len(l.names) == 0 {
		return "[]"
	}
	out, _ := json.Marshal(l.names) // strings always marshal
	return string(out)
}

// head is the tar header that all types of file begin with.
func head(n *node, typeflag byte) *tar.Header {
	return &tar.Header{Format: tar.FormatPAX, Typeflag: typeflag, Name: n.rel, Mode: int64(n.stat.Mode & 0o7777), PAXRecords: n.xattrs,
		Uid: int(n.stat.Uid), Gid: int(n.stat.Gid), ModTime: time.Unix(int64(n.stat.Mtim.Sec), int64(n.stat.Mtim.Nsec))}
}

func (p *packer) add(n *node) error {
	switch kind(&n.stat) {
	case "dir":
		if n.err != nil {
			p.skipped.add(n.rel)
		}
		if p.xattrs {
			n.readFolderXattrs()
		}
		header := head(n, tar.TypeDir)
		header.Name += "/"
		return p.tar.WriteHeader(header)
	case "symlink":
		target, err := rootfs.Readlinkat(n.dir, n.name)
		if err != nil {
			p.skipped.add(n.rel)
			return nil
		}
		header := head(n, tar.TypeSymlink)
		header.Linkname = target
		return p.tar.WriteHeader(header)
	case "file":
		return p.addFile(n)
	}
	p.skipped.add(n.rel)
	return nil
}

func (p *packer) addFile(n *node) error {
	f, err := p.h.openNode(n)
	if err != nil {
		if ignoreVanished(err) != nil {
			p.skipped.add(n.rel) // not readable for us: named, so that nobody takes it for absent
		}
		return nil
	}
	defer f.Close()
	if n.stat.Nlink > 1 {
		key := inode{uint64(n.stat.Dev), n.stat.Ino}
		if first, ok := p.links[key]; ok {
			header := head(n, tar.TypeLink)
			header.Linkname = first
			return p.tar.WriteHeader(header)
		}
		p.links[key] = n.rel
	}
	if p.xattrs {
		n.readXattrs(int(f.Fd()))
	}
	switch {
	case n.stat.Size <= wholeFile:
		return p.addSmall(n, f)
	case holes(&n.stat) > holesInTar:
		return p.addSparse(n, f)
	}
	header := head(n, tar.TypeReg)
	header.Size = n.stat.Size
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	return p.content(p.tar, n, f, extent{0, n.stat.Size})
}

// addSmall reads the file before it says its size, so that the two agree.
func (p *packer) addSmall(n *node, f *os.File) error {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	got, err := 0, error(nil)
	_ = p.h.disk.run(func() error { got, err = fill(f, buf[:wholeFile]); return nil })
	if err != nil && !errors.Is(err, io.EOF) {
		p.skipped.add(n.rel)
		return nil
	}
	header := head(n, tar.TypeReg)
	header.Size = int64(got)
	if err := p.tar.WriteHeader(header); err != nil {
		return err
	}
	_, err = p.tar.Write(buf[:got])
	return err
}

// content writes a stretch of f to w. The archive has promised its length, so a file
// that shrinks meanwhile is filled up with zeros, and named.
func (p *packer) content(w io.Writer, n *node, f *os.File, part extent) error {
	sent, err := p.h.send(w, f, part.offset, part.length)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	p.changed.add(n.rel)
	_, err = io.CopyN(w, zeros{}, part.length-sent)
	return err
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

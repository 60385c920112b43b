package files

import (
	"archive/tar"
	"bufio"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
	"syscall"
	"time"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// slack is how much may follow the end of an archive and still be read.
const slack = 1 << 20

// maxSkipped bounds the names of special files that an answer tells.
const maxSkipped = 10000

// unpacker extracts a tar below a folder. Every entry is found from the folder's
// descriptor on, so that neither its name nor a symlink in the way leads out.
type unpacker struct {
	h       *Handler
	base    int
	owner   owner
	restore bool // owners and modes as in the archive, also of folders already there
	body    io.Reader
	skipped []string // names of special files, the first few thousand
	files   int
	folders []folderTimes // to be finished at the end, since entries in them touch them
}

// folderTimes is what a folder is given once all is in it.
type folderTimes struct {
	name  string
	mode  uint32
	mtime time.Time
}

func (h *Handler) unpack(w http.ResponseWriter, r *http.Request, q query) error {
	o, err := h.owner(q)
	if err != nil {
		return err
	}
	restore, err := q.flag("restore", false)
	if err != nil {
		return err
	}
	var base int
	err = h.disk.run(func() (err error) {
		if err = h.makeAll(h.root.Abs(q.name()), dirMode, o); err == nil {
			base, err = h.root.Open(q.name(), rootfs.OPath|syscall.O_DIRECTORY)
		}
		return err
	})
	if err != nil {
		return err
	}
	defer closeFD(base)
	u := &unpacker{h: h, base: base, owner: o, restore: restore, body: bufio.NewReaderSize(r.Body, 64<<10)}
	if err := u.run(); err != nil {
		return err
	}
	wire.JSON(w, http.StatusOK, map[string]any{"files": u.files, "skipped": append([]string{}, u.skipped...)})
	return nil
}

func (u *unpacker) run() error {
	archive := tar.NewReader(u.body)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, _ = io.CopyN(io.Discard, u.body, slack)
			return u.h.disk.run(u.finishFolders)
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are judged here
			return notTar(err)
		}
		if err := u.entry(header, archive); err != nil {
			return wire.FileError(header.Name, err)
		}
	}
}

// notTar says what is wrong with a body that cannot be read on.
func notTar(err error) error {
	if errors.Is(err, tar.ErrHeader) {
		return wire.Invalid("body", "the body is not a tar archive, or is damaged")
	}
	return wire.Invalid("body", "the archive was cut short: "+err.Error()+"; what came before was extracted")
}

// inside cleans the name of an entry; one that points out of the tree answers EXDEV.
func inside(name string) (string, error) {
	if strings.HasPrefix(name, "/") {
		return "", syscall.EXDEV
	}
	var parts []string
	for _, part := range strings.Split(name, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", syscall.EXDEV
		default:
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/"), nil
}

func (u *unpacker) entry(header *tar.Header, content io.Reader) error {
	switch header.Typeflag {
	case tar.TypeReg, '\x00', tar.TypeCont, tar.TypeGNUSparse, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeXGlobalHeader:
		return nil
	default:
		if len(u.skipped) < maxSkipped {
			u.skipped = append(u.skipped, header.Name)
		}
		return nil
	}
	name, err := inside(header.Name)
	if err != nil || name == "" { // the tree's own folder stays as it is
		return err
	}
	dirName, base := path.Split(name)
	var dir int
	err = u.h.disk.run(func() (err error) { dir, err = u.parent(dirName); return err })
	if err != nil {
		return err
	}
	defer closeFD(dir)
	u.files++
	switch header.Typeflag {
	case tar.TypeDir:
		return u.h.disk.run(func() error { return u.folder(header, dir, base, name) })
	case tar.TypeSymlink:
		return u.h.disk.run(func() error { return u.symlink(header, dir, base) })
	case tar.TypeLink:
		return u.h.disk.run(func() error { return u.hardLink(header, dir, base) })
	}
	return u.file(header, content, dir, base)
}

// parent opens the folder of an entry, and makes it if the archive did not.
func (u *unpacker) parent(name string) (int, error) {
	name = strings.TrimSuffix(name, "/")
	if name == "" {
		name = "."
	}
	fd, err := rootfs.Beneath(u.base, name, rootfs.OPath|syscall.O_DIRECTORY)
	if err != syscall.ENOENT || name == "." {
		return fd, err
	}
	up, last := path.Split(name)
	dir, err := u.parent(up)
	if err != nil {
		return 0, err
	}
	defer closeFD(dir)
	if err := makeDir(dir, last, dirMode, u.owner); err != nil && err != syscall.EEXIST {
		return 0, err
	}
	return rootfs.Beneath(u.base, name, rootfs.OPath|syscall.O_DIRECTORY)
}

// ownerOf is whom an entry is given.
func (u *unpacker) ownerOf(header *tar.Header) owner {
	if u.restore {
		return owner{header.Uid, header.Gid, true, true}
	}
	return u.owner
}

func (u *unpacker) folder(header *tar.Header, dir int, base, name string) error {
	mode := uint32(header.Mode) & 0o7777
	err := makeDir(dir, base, mode|0o700, u.ownerOf(header))
	if err == syscall.EEXIST {
		fd, err := rootfs.Beneath(u.base, name, rootfs.OPath|syscall.O_DIRECTORY)
		if err == syscall.ENOTDIR || err == syscall.ENOENT { // a file, or a symlink to nowhere
			return syscall.EEXIST
		}
		if err != nil {
			return err
		}
		defer closeFD(fd)
		if !u.restore {
			return nil // a folder that was there keeps its mode and owner
		}
		err = u.ownerOf(header).give(fd)
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	u.folders = append(u.folders, folderTimes{name, mode, header.ModTime})
	return nil
}

func (u *unpacker) symlink(header *tar.Header, dir int, base string) error {
	return u.h.swapIn(dir, base, header.ModTime, func(name string) error {
		return makeLink(header.Linkname, dir, name, u.ownerOf(header))
	})
}

func (u *unpacker) hardLink(header *tar.Header, dir int, base string) error {
	first, err := inside(header.Linkname)
	if err != nil {
		return err
	}
	folder, name := path.Split("./" + first)
	from, err := rootfs.Beneath(u.base, folder, rootfs.OPath|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(from)
	return u.h.swapIn(dir, base, time.Time{}, func(temp string) error {
		return rootfs.Linkat(from, name, dir, temp)
	})
}

// swapIn makes something under a temporary name and then puts it in place of base.
func (h *Handler) swapIn(dir int, base string, mtime time.Time, build func(name string) error) error {
	name := tempName()
	h.temps.Store(name, nil)
	defer h.temps.Delete(name)
	err := build(name)
	if err == nil && !mtime.IsZero() {
		err = rootfs.Touch(dir, name, mtime)
	}
	if err == nil {
		err = rootfs.Renameat(dir, name, dir, base)
	}
	// After an error, and after moving a link onto another of the same file, which does
	// nothing, the temporary name is still there.
	_ = rootfs.Unlinkat(dir, name, false)
	return err
}

// finishFolders gives the folders their modes and times, the innermost first.
func (u *unpacker) finishFolders() error {
	for i := len(u.folders) - 1; i >= 0; i-- {
		if err := u.finishFolder(&u.folders[i]); ignoreVanished(err) != nil {
			return wire.FileError(u.folders[i].name, err)
		}
	}
	return nil
}

func (u *unpacker) finishFolder(f *folderTimes) error {
	fd, err := rootfs.Beneath(u.base, f.name, syscall.O_RDONLY|syscall.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := rootfs.Touch(fd, ".", f.mtime); err != nil {
		return err
	}
	return syscall.Fchmod(fd, f.mode)
}

package files

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"strings"

	"orchard/sandboxd/internal/rootfs"
	"orchard/sandboxd/internal/wire"
)

// file writes an entry's content beside its target and puts it in place when whole.
func (u *unpacker) file(header *tar.Header, content io.Reader, dir int, base string) error {
	var t *temp
	err := u.h.disk.run(func() (err error) { t, err = u.h.newTemp(dir); return err })
	if err != nil {
		return err
	}
	defer t.discard()
	if err := u.content(t.File, content, isSparse(header), header.Size); err != nil {
		return err
	}
	return u.h.disk.run(func() error {
		if err := t.dress(u.ownerOf(header), uint32(header.Mode)&0o7777); err != nil {
			return err
		}
		if err := rootfs.Touch(dir, t.name, header.ModTime); err != nil {
			return err
		}
		return t.place(base)
	})
}

// isSparse tells whether an entry was stored with holes.
func isSparse(header *tar.Header) bool {
	if header.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// content copies an entry. Of a sparse one, buffers of zeros become holes again.
func (u *unpacker) content(f *os.File, content io.Reader, sparse bool, size int64) error {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for {
		got, readErr := fill(content, buf[:])
		if got > 0 {
			var err error
			if sparse && allZero(buf[:got]) {
				_, err = f.Seek(int64(got), io.SeekCurrent)
			} else {
				err = u.h.store(f, buf[:got])
			}
			if err != nil {
				return err
			}
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return wire.Invalid("body", "the archive was cut short: "+readErr.Error()+"; what came before was extracted")
		}
	}
	if sparse {
		return f.Truncate(size)
	}
	return nil
}

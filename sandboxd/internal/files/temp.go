package files

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
	"syscall"

	"orchard/sandboxd/internal/rootfs"
)

const (
	tempPrefix = ".orchard-"
	tempSuffix = ".tmp"
)

// tempName is a name that nobody can guess, short enough for any folder.
func tempName() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails on Linux
	return tempPrefix + hex.EncodeToString(raw[:]) + tempSuffix
}

// looksTemp tells whether a name is of our making; only for what nothing depends on,
// since anyone may choose such a name.
func looksTemp(name string) bool {
	return len(name) == len(tempPrefix)+32+len(tempSuffix) &&
		strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}

// temp is a file under a hidden name beside its target until commit gives it the name.
type temp struct {
	*os.File
	h    *Handler
	dir  int
	name string
}

// newTemp makes a temporary file in the open folder dir, which must stay open.
func (h *Handler) newTemp(dir int) (*temp, error) {
	name := tempName()
	h.temps.Store(name, nil)
	fd, err := rootfs.Openat(dir, name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		h.temps.Delete(name)
		return nil, err
	}
	return &temp{File: os.NewFile(uintptr(fd), name), h: h, dir: dir, name: name}, nil
}

// isTemp tells whether name is a temporary file of ours now.
func (h *Handler) isTemp(name string) bool {
	if !strings.HasPrefix(name, tempPrefix) {
		return false
	}
	_, ours := h.temps.Load(name)
	return ours
}

// commit closes the file and puts it in place of base, at once and whole. Some file
// systems tell only on closing that there was no room.
func (t *temp) commit(base string) error {
	if err := t.File.Close(); err != nil {
		return err
	}
	if err := rootfs.Renameat(t.dir, t.name, t.dir, base); err != nil {
		return err
	}
	t.h.temps.Delete(t.name)
	t.name = ""
	return nil
}

// discard closes the file, and removes it unless it was committed.
func (t *temp) discard() {
	_ = t.File.Close()
	if t.name != "" {
		_ = rootfs.Unlinkat(t.dir, t.name, false)
		t.h.temps.Delete(t.name)
	}
}

// dress gives a new file its owner and then its mode: a change of owner drops set-uid bits.
func (t *temp) dress(o owner, mode uint32) error {
	if err := o.give(int(t.Fd())); err != nil {
		return err
	}
	return syscall.Fchmod(int(t.Fd()), mode)
}

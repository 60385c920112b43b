package files

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"syscall"
)

const (
	seekData = 3
	seekHole = 4
	// grain is the block of a sparse digest, and the hole below which data is not split.
	grain = 64 << 10
	// holesInTar is how many bytes of holes make a file sparse in an archive.
	holesInTar = 1 << 20
	// holesInDigest is how many bytes of holes make a plain SHA-256 too dear.
	holesInDigest = 256 << 20
)

// extent is a stretch of a file that holds data.
type extent struct{ offset, length int64 }

// holes is how many bytes of a file take no room on the disk.
func holes(st *syscall.Stat_t) int64 { return st.Size - st.Blocks*512 }

// extents finds the data of a sparse file, in order; holes of less than a grain count
// as data, so the list is bounded by size/grain. One extent is the whole file where the
// file system cannot tell.
func extents(f *os.File, size int64) ([]extent, error) {
	var found []extent
	for at := int64(0); at < size; {
		from, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			break
		}
		if err != nil {
			return []extent{{0, size}}, nil
		}
		to, err := f.Seek(from, seekHole)
		if err != nil {
			return nil, err
		}
		to = min(to, size)
		if from >= size {
			break
		}
		if last := len(found) - 1; last >= 0 && from-found[last].offset-found[last].length < grain {
			found[last].length = to - found[last].offset
		} else {
			found = append(found, extent{from, to - from})
		}
		at = to
	}
	return found, nil
}

// digest is the SHA-256 of a file's bytes, and how many there were.
func (h *Handler) digest(ctx context.Context, f *os.File) (sum string, size int64, err error) {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	hash := sha256.New()
	for ctx.Err() == nil {
		n, err := f.Read(buf[:])
		_, _ = hash.Write(buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(hash.Sum(nil)), size, nil
		}
		if err != nil {
			return "", size, err
		}
	}
	return "", size, ctx.Err()
}

// sparseDigest is a SHA-256 over the offset (u64 BE) and bytes of each grain that is
// not all zero, in order, and then the size (u64 BE). It says the same of equal
// content, however much of the zeros is holes, and costs what the data costs.
func (h *Handler) sparseDigest(ctx context.Context, f *os.File, size int64) (string, error) {
	parts, err := extents(f, size)
	if err != nil {
		return "", err
	}
	hash, block, next := sha256.New(), make([]byte, grain), int64(0)
	for _, part := range parts {
		at := max(part.offset/grain*grain, next)
		for ; at < part.offset+part.length; at += grain {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			n, err := f.ReadAt(block[:min(grain, size-at)], at)
			if err != nil && !errors.Is(err, io.EOF) {
				return "", err
			}
			if !allZero(block[:n]) {
				_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(at)))
				_, _ = hash.Write(block[:n])
			}
		}
		next = at
	}
	_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(size)))
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func allZero(data []byte) bool {
	for len(data) >= 8 {
		if binary.NativeEndian.Uint64(data) != 0 {
			return false
		}
		data = data[8:]
	}
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

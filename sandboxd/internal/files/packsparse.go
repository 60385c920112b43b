package files

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

const (
	tarBlock    = 512
	maxOctalID  = 0o7777777
	maxOctalLen = 0o77777777777
)

// addSparse writes a file with its holes left out, in the PAX sparse format 1.0, which
// GNU tar, Go and Python read and archive/tar cannot write. The file's data begins with
// a map: the number of extents, then offset and length of each, one decimal a line.
func (p *packer) addSparse(n *node, f *os.File) error {
	parts, err := extents(f, n.stat.Size)
	if err != nil {
		return err
	}
	if len(parts) == 0 || parts[len(parts)-1].offset+parts[len(parts)-1].length < n.stat.Size {
		parts = append(parts, extent{n.stat.Size, 0}) // a hole at the end
	}
	table, size := sparseMap(parts)
	if err := p.tar.Flush(); err != nil { // ends the entry before, to a whole block
		return err
	}
	if _, err := p.out.WriteString(sparseHead(n, size) + table); err != nil {
		return err
	}
	for _, part := range parts {
		if err := p.content(p.out, n, f, part); err != nil {
			return err
		}
	}
	_, err = io.CopyN(p.out, zeros{}, padding(size))
	return err
}

// sparseMap is the map as the archive holds it, and the size of map and data together.
func sparseMap(parts []extent) (table string, size int64) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", len(parts))
	for _, part := range parts {
		fmt.Fprintf(&b, "%d\n%d\n", part.offset, part.length)
		size += part.length
	}
	b.WriteString(strings.Repeat("\x00", int(padding(int64(b.Len())))))
	return b.String(), size + int64(b.Len())
}

func padding(size int64) int64 { return -size & (tarBlock - 1) }

// sparseHead is the PAX header and the header proper of a sparse file whose map and
// data are size bytes.
func sparseHead(n *node, size int64) string {
	st := &n.stat
	var records strings.Builder
	record(&records, "GNU.sparse.major", "1")
	record(&records, "GNU.sparse.minor", "0")
	record(&records, "GNU.sparse.name", n.rel)
	record(&records, "GNU.sparse.realsize", strconv.FormatInt(st.Size, 10))
	record(&records, "mtime", string(mtime(st)))
	if size > maxOctalLen {
		record(&records, "size", strconv.FormatInt(size, 10))
	}
	if st.Uid > maxOctalID {
		record(&records, "uid", strconv.FormatUint(uint64(st.Uid), 10))
	}
	if st.Gid > maxOctalID {
		record(&records, "gid", strconv.FormatUint(uint64(st.Gid), 10))
	}
	for key, value := range n.xattrs {
		record(&records, key, value)
	}
	body := records.String()
	body += strings.Repeat("\x00", int(padding(int64(len(body)))))
	extra := ustar("PaxHeaders.0/sparse", 'x', int64(records.Len()), &[3]int64{0o644})
	return extra + body + ustar("GNUSparseFile.0/sparse", '0', size,
		&[3]int64{int64(st.Mode & 0o7777), int64(st.Uid), int64(st.Gid)})
}

// record adds "LENGTH KEY=VALUE\n", where the length counts its own digits.
func record(b *strings.Builder, key, value string) {
	rest := len(key) + len(value) + 3
	size := rest + len(strconv.Itoa(rest))
	if len(strconv.Itoa(size)) > len(strconv.Itoa(rest)) {
		size++
	}
	fmt.Fprintf(b, "%d %s=%s\n", size, key, value)
}

// ustar is a header block; access is mode, uid and gid. What is too large for a field
// is 0 there, since a PAX record says it.
func ustar(name string, typeflag byte, size int64, access *[3]int64) string {
	block := make([]byte, tarBlock)
	put := func(at, width int, value, limit int64) {
		if value > limit {
			value = 0
		}
		copy(block[at:], fmt.Sprintf("%0*o", width-1, value))
	}
	copy(block, name)
	put(100, 8, access[0], maxOctalID)
	put(108, 8, access[1], maxOctalID)
	put(116, 8, access[2], maxOctalID)
	put(124, 12, size, maxOctalLen)
	put(136, 12, 0, maxOctalLen)
	copy(block[148:], "        ")
	block[156] = typeflag
	copy(block[257:], "ustar\x0000")
	sum := int64(0)
	for _, b := range block {
		sum += int64(b)
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	return string(block)
}

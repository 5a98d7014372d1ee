package kafka

import (
	"errors"
	"fmt"
	"hash/crc32"
	"sort"
	"strconv"
	"strings"

	"github.com/headrace-go/headrace/ordering"
)

// maxMetadata is Kafka's default bound on the metadata of one committed offset (offset.metadata.max.bytes).
const maxMetadata = 4096

// sparse are the offsets beyond a committed one that are complete already, as runs of equal leader epoch, lowest first. It
// is kept in the commit's metadata as ASCII text:
//
//	hr1 BASE GAP+LENGTH@EPOCH,GAP+LENGTH@EPOCH,... CHECK
//
// Numbers are in base 36. BASE is the committed offset. GAP is the distance to the end of the run before (at first, to BASE);
// +LENGTH is left out if it is 1, @EPOCH if it is that of the run before. CHECK is the CRC-32C of all before the space in front
// of it. Text of another form means nothing to us: then the records are run again, which is always right.
type sparse []run

// run is the offsets from first to end-1, read under one leader epoch.
type run struct {
	first, end int64
	epoch      int32
}

// has reports whether the record at offset, of this leader epoch, is complete. A log that was truncated has other records at the
// same offsets, of a later epoch.
func (s sparse) has(offset int64, epoch int32) bool {
	i := sort.Search(len(s), func(i int) bool { return s[i].end > offset })
	return i < len(s) && s[i].first <= offset && s[i].epoch == epoch
}

// runsOf returns positions, which ascend, as runs.
func runsOf(positions []ordering.Position) sparse {
	var s sparse
	for _, p := range positions {
		if n := len(s); n > 0 && s[n-1].end == p.Offset && s[n-1].epoch == p.Epoch {
			s[n-1].end++
			continue
		}
		s = append(s, run{first: p.Offset, end: p.Offset + 1, epoch: p.Epoch})
	}
	return s
}

const (
	sparseVersion = "hr1"
	checkLength   = 8 // a space and at most 7 digits
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes s for a commit of base. What does not fit into limit bytes is left out, the highest first, and fits is false: those
// records are run again after a restart. The text of nothing is empty.
func (s sparse) encode(base int64, limit int) (text string, fits bool) {
	if len(s) == 0 {
		return "", true
	}
	b := make([]byte, 0, min(limit, 16+8*len(s)))
	b = append(b, sparseVersion...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, base, 36)
	end, epoch := base, int32(0)
	fits = true
	written := 0
	for i, r := range s {
		mark := len(b)
		b = append(b, " ,"[min(i, 1)])
		b = strconv.AppendInt(b, r.first-end, 36)
		if r.end-r.first > 1 {
			b = append(b, '+')
			b = strconv.AppendInt(b, r.end-r.first, 36)
		}
		if i == 0 || r.epoch != epoch {
			b = append(b, '@')
			b = strconv.AppendInt(b, int64(r.epoch), 36)
		}
		if len(b)+checkLength > limit {
			b, fits = b[:mark], false
			break
		}
		end, epoch = r.end, r.epoch
		written++
	}
	if written == 0 {
		return "", false
	}
	check := crc32.Checksum(b, castagnoli)
	b = append(b, ' ')
	b = strconv.AppendUint(b, uint64(check), 36)
	return string(b), fits
}

var errSparse = errors.New("not of our form")

// decodeSparse reads what encode wrote for a commit of base.
func decodeSparse(text string, base int64) (sparse, error) {
	if len(text) > maxMetadata {
		return nil, fmt.Errorf("%d bytes: %w", len(text), errSparse)
	}
	body, check, ok := cutLast(text, ' ')
	if !ok || strconv.FormatUint(uint64(crc32.Checksum([]byte(body), castagnoli)), 36) != check {
		return nil, fmt.Errorf("checksum: %w", errSparse)
	}
	fields := strings.Split(body, " ")
	if len(fields) != 3 || fields[0] != sparseVersion {
		return nil, fmt.Errorf("version: %w", errSparse)
	}
	if got, err := strconv.ParseInt(fields[1], 36, 64); err != nil || got != base {
		return nil, fmt.Errorf("of another commit than %d: %w", base, errSparse)
	}
	var s sparse
	end, epoch := base, int32(0)
	for i, f := range strings.Split(fields[2], ",") {
		f, e, changed := strings.Cut(f, "@")
		if changed {
			n, err := strconv.ParseInt(e, 36, 32)
			if err != nil {
				return nil, fmt.Errorf("epoch %q: %w", e, errSparse)
			}
			epoch = int32(n)
		} else if i == 0 {
			return nil, fmt.Errorf("no epoch: %w", errSparse)
		}
		g, l, long := strings.Cut(f, "+")
		gap, err := strconv.ParseInt(g, 36, 64)
		if err != nil || gap < 0 || end+gap < end {
			return nil, fmt.Errorf("gap %q: %w", g, errSparse)
		}
		length := int64(1)
		if long {
			if length, err = strconv.ParseInt(l, 36, 64); err != nil {
				return nil, fmt.Errorf("length %q: %w", l, errSparse)
			}
		}
		first := end + gap
		if length < 1 || first+length < first {
			return nil, fmt.Errorf("length %q: %w", l, errSparse)
		}
		end = first + length
		s = append(s, run{first: first, end: end, epoch: epoch})
	}
	return s, nil
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

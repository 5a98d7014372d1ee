package redisstream

import (
	"cmp"
	"errors"
	"fmt"
)

// entry is one entry of the stream that this member has.
type entry struct {
	id     string
	fields []string // name, value, name, value
	count  int      // deliveries, the present one included
	handed bool     // somebody got it; written and read by the subscription's goroutine
}

var errReply = errors.New("redisstream: the server's answer is not understood")

// parseRead reads the answer to XREADGROUP of one stream, in the form of either protocol version.
func parseRead(reply any) ([]*entry, error) {
	var list any
	switch r := reply.(type) {
	case nil:
		return nil, nil
	case map[any]any: // RESP3: stream -> entries
		for _, entries := range r {
			list = entries
		}
	case []any: // RESP2: [[stream, entries]]
		if len(r) != 1 {
			return nil, fmt.Errorf("%w: %d streams", errReply, len(r))
		}
		pair, ok := r[0].([]any)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("%w: a stream is %T", errReply, r[0])
		}
		list = pair[1]
	default:
		return nil, fmt.Errorf("%w: %T", errReply, reply)
	}
	entries, ok := list.([]any)
	if !ok {
		return nil, fmt.Errorf("%w: entries are %T", errReply, list)
	}
	return parseEntries(entries)
}

// parseEntries reads [id, fields] or [id, fields, deliveries] of each entry.
func parseEntries(list []any) ([]*entry, error) {
	entries := make([]*entry, 0, len(list))
	for _, item := range list {
		parts, ok := item.([]any)
		if !ok || len(parts) < 2 {
			return nil, fmt.Errorf("%w: an entry is %T with %d parts", errReply, item, len(parts))
		}
		id, ok := parts[0].(string)
		if !ok {
			return nil, fmt.Errorf("%w: an id is %T", errReply, parts[0])
		}
		e := &entry{id: id, count: 1}
		fields, ok := parts[1].([]any)
		if !ok {
			return nil, fmt.Errorf("%w: the fields of %s are %T", errReply, id, parts[1])
		}
		for _, f := range fields {
			text, ok := f.(string)
			if !ok {
				return nil, fmt.Errorf("%w: a field of %s is %T", errReply, id, f)
			}
			e.fields = append(e.fields, text)
		}
		if len(parts) > 2 {
			n, ok := parts[2].(int64)
			if !ok {
				return nil, fmt.Errorf("%w: the deliveries of %s are %T", errReply, id, parts[2])
			}
			e.count = int(n)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// compareIDs orders ids as the stream does.
func compareIDs(a, b string) int {
	ams, an, _ := parseID(a)
	bms, bn, _ := parseID(b)
	return cmp.Or(cmp.Compare(ams, bms), cmp.Compare(an, bn))
}

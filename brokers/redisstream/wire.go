package redisstream

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// The fields of our own. The wire format is a contract; doc.go describes it.
const (
	fieldUUID    = "_watermill_message_uuid"
	fieldPayload = "payload"
	escaped      = "h:"
)

// encode returns the fields of m's entry: name, value, name, value.
func encode(m *message.Message) []any {
	fields := make([]any, 0, 2*len(m.Metadata)+4)
	fields = append(fields, fieldUUID, m.UUID)
	for k, v := range m.Metadata {
		if k == fieldUUID || k == fieldPayload || strings.HasPrefix(k, escaped) {
			k = escaped + k
		}
		fields = append(fields, k, v)
	}
	if m.Payload != nil {
		fields = append(fields, fieldPayload, []byte(m.Payload))
	}
	return fields
}

// decode returns what came over the wire. headers is nil where the metadata says it all. It cannot fail: an error tells
// of an entry that has two payloads, of which the first is the message's.
func decode(fields []string) (m *message.Message, headers []brokers.Header, err error) {
	m = message.NewMessage("", nil)
	lossy, payloads, ids := false, 0, 0
	for i := 0; i+1 < len(fields); i += 2 {
		name, value := fields[i], fields[i+1]
		switch name {
		case fieldUUID:
			if ids++; ids == 1 {
				m.UUID = value
			}
		case fieldPayload:
			if payloads++; payloads == 1 {
				m.Payload = append(message.Payload{}, value...)
			}
		default:
			key := strings.TrimPrefix(name, escaped)
			if _, there := m.Metadata[key]; there {
				lossy = true
				continue
			}
			m.Metadata[key] = value
		}
	}
	if payloads > 1 {
		err = fmt.Errorf("redisstream: the entry has %d fields %q: want at most one", payloads, fieldPayload)
	}
	if lossy || payloads > 1 || ids > 1 {
		for i := 0; i+1 < len(fields); i += 2 {
			headers = append(headers, brokers.Header{Key: fields[i], Value: []byte(fields[i+1])})
		}
	}
	return m, headers, err
}

// An id is "milliseconds-number". As an offset the number has the low bits.
const numberBits = 20

// offset gives an id as a number that grows with it, or -1 if it does not fit.
func offset(id string) int64 {
	ms, n, ok := parseID(id)
	if !ok || ms >= 1<<(63-numberBits) || n >= 1<<numberBits {
		return -1
	}
	return int64(ms<<numberBits | n)
}

// storedAt is when the server added an entry, by its id; the zero time if the id is no time.
func storedAt(id string) time.Time {
	ms, _, ok := parseID(id)
	if !ok || ms >= 1<<(63-numberBits) {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms))
}

func parseID(id string) (ms, n uint64, ok bool) {
	left, right, _ := strings.Cut(id, "-")
	ms, err := strconv.ParseUint(left, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if n, err = strconv.ParseUint(right, 10, 64); err != nil {
		return 0, 0, false
	}
	return ms, n, true
}

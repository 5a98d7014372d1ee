package poison

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

// ErrNotDeadLetter says that a message has no mark of a dead letter.
var ErrNotDeadLetter = errors.New("not a dead letter: no " + MetaVersion)

// Parse reads a dead letter. The payload of the record is that of msg, or of its envelope; the rest is
// copied. The error wraps [ErrNotDeadLetter], or names the key and the value that it cannot read. A dead
// letter of a later version is refused: its record might be missing something that matters.
func Parse(msg *message.Message) (Record, error) {
	r := reader{metadata: msg.Metadata}
	version := r.number(MetaVersion, 64)
	switch {
	case msg.Metadata[MetaVersion] == "":
		return Record{}, fmt.Errorf("parse dead letter %s: %w", msg.UUID, ErrNotDeadLetter)
	case r.err == nil && (version < 1 || version > Version):
		r.err = fmt.Errorf("%s is %d: this program reads versions 1 to %d", MetaVersion, version, Version)
	}
	if r.err != nil {
		return Record{}, fmt.Errorf("parse dead letter %s: %w", msg.UUID, r.err)
	}
	var record Record
	var err error
	switch encoding := msg.Metadata[MetaEncoding]; encoding {
	case "":
		record, err = r.plain(msg)
	case encodingEnvelope:
		record, err = openEnvelope(msg)
	case encodingReference:
		record, err = r.plain(msg)
		record.Payload, record.Metadata, record.Reference = nil, nil, true
	default:
		err = fmt.Errorf("%s is %q: want none, %q or %q", MetaEncoding, encoding, encodingEnvelope, encodingReference)
	}
	if err != nil {
		return Record{}, fmt.Errorf("parse dead letter %s: %w", msg.UUID, err)
	}
	return record, nil
}

func openEnvelope(msg *message.Message) (Record, error) {
	var e envelope
	if err := json.Unmarshal(msg.Payload, &e); err != nil {
		return Record{}, fmt.Errorf("the envelope: %w", err)
	}
	if e.Version < 1 || e.Version > Version {
		return Record{}, fmt.Errorf("version of the envelope is %d: this program reads versions 1 to %d", e.Version, Version)
	}
	r, err := e.record(msg.UUID)
	if err != nil {
		return Record{}, fmt.Errorf("the envelope: %w", err)
	}
	return r, nil
}

// reader reads metadata and keeps the first error.
type reader struct {
	metadata message.Metadata
	err      error
}

func (r *reader) plain(msg *message.Message) (Record, error) {
	md := r.metadata
	record := Record{
		ID:            msg.UUID,
		Version:       int(r.number(MetaVersion, 64)),
		Consumer:      md[MetaConsumer],
		Topic:         md[MetaTopic],
		Incarnation:   md[MetaIncarnation],
		Partition:     int32(r.position(MetaPartition, 32)),
		Offset:        r.position(MetaOffset, 64),
		Time:          r.time(MetaTime),
		Payload:       msg.Payload,
		Metadata:      original(md),
		UUID:          md[MetaUUID],
		MessageID:     md[event.MetaFrozenID],
		Attempts:      int(r.number(MetaAttempts, 32)),
		Deliveries:    int(r.number(MetaDeliveries, 32)),
		Deaths:        int(r.number(MetaDeaths, 32)),
		ErrorType:     md[MetaErrorType],
		Error:         md[MetaError],
		Stack:         md[MetaStack],
		FirstFailure:  r.time(MetaFirstFailure),
		LastFailure:   r.time(MetaLastFailure),
		CorrelationID: md[MetaCorrelationID],
		TraceParent:   md[MetaTraceParent],
		Fingerprint:   md[MetaFingerprint],
		DecodeError:   md[MetaDecodeError],
		Hops:          int(r.number(MetaHops, 32)),
		Batch:         md[MetaBatch],
		Letter:        md[MetaLetter],
	}
	var err error
	if record.Verdict, err = verdictNamed(md[MetaVerdict]); err != nil {
		r.fail(MetaVerdict, err)
	}
	record.Key = r.key()
	if text, ok := md[MetaHeaders]; ok {
		if record.Headers, err = parseHeaders(text); err != nil {
			r.fail(MetaHeaders, err)
		}
	}
	return record, r.err
}

func (r *reader) key() []byte {
	value, ok := r.metadata[MetaKey]
	if !ok {
		return nil
	}
	switch encoding := r.metadata[MetaKeyEncoding]; encoding {
	case "":
		return []byte(value)
	case encodingBase64:
		key, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			r.fail(MetaKey, err)
		}
		return key
	default:
		r.fail(MetaKeyEncoding, fmt.Errorf("want none or %q", encodingBase64))
		return nil
	}
}

// number reads a number that is 0 when absent.
func (r *reader) number(key string, bits int) int64 {
	value := r.metadata[key]
	if value == "" {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, bits)
	if err != nil {
		r.fail(key, err)
	}
	return n
}

// position reads a number that is -1 when absent.
func (r *reader) position(key string, bits int) int64 {
	if r.metadata[key] == "" {
		return -1
	}
	return r.number(key, bits)
}

func (r *reader) time(key string) time.Time {
	value := r.metadata[key]
	if value == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		r.fail(key, err)
	}
	return t
}

func (r *reader) fail(key string, err error) {
	if r.err == nil {
		r.err = fmt.Errorf("%s is %.64q: %w", key, r.metadata[key], err)
	}
}

func parseHeaders(s string) ([]brokers.Header, error) {
	var pairs [][2]*text
	if err := json.Unmarshal([]byte(s), &pairs); err != nil {
		return nil, err
	}
	return headersOf(pairs)
}

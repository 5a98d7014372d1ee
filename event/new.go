package event

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/internal/flight"
)

// Option sets an attribute of the event that [New] makes.
type Option func(*draft)

type draft struct {
	Envelope
	codec Codec
	err   error
}

// WithID sets the id, which must be unique within the source. It makes sense where a fact has an id of its
// own. A long one, a hash over several parts for instance, is as good as a short one.
func WithID(id string) Option { return func(d *draft) { d.need(MetaID, id); d.ID = id } }

// WithSource sets the source: a URI reference that names the producer, such as "/billing".
func WithSource(source string) Option {
	return func(d *draft) { d.need(MetaSource, source); d.Source = source }
}

// WithSubject sets what the event is about, within the source.
func WithSubject(subject string) Option { return func(d *draft) { d.Subject = subject } }

// WithKey sets the partition key: events of one key keep their order.
func WithKey(key string) Option { return func(d *draft) { d.PartitionKey = key } }

// WithSequence sets the position of the event among those of its source.
func WithSequence(sequence string) Option { return func(d *draft) { d.Sequence = sequence } }

// WithTime sets when the event happened. Without it, or with the zero time, that is now.
func WithTime(t time.Time) Option { return func(d *draft) { d.Time = t } }

// WithSchemaVersion sets the version of the data's schema, from 1 up. Without it, it is 1.
func WithSchemaVersion(version int) Option { return func(d *draft) { d.SchemaVersion = version } }

// WithDataSchema sets the URI of the data's schema.
func WithDataSchema(uri string) Option { return func(d *draft) { d.DataSchema = uri } }

// WithCodec sets what encodes the data. Without it, it is [JSON].
func WithCodec(codec Codec) Option {
	return func(d *draft) {
		if codec == nil {
			d.fail(invalid("data", "", errors.New("WithCodec: nil")))
			return
		}
		d.codec = codec
	}
}

// WithContentType sets the media type of the data in place of the codec's own.
func WithContentType(contentType string) Option {
	return func(d *draft) { d.ContentType = contentType }
}

// WithCorrelation sets the correlation id in place of the delivery's.
func WithCorrelation(id string) Option { return func(d *draft) { d.CorrelationID = id } }

// WithCausation sets the id of the message that led to this event, in place of the one being handled.
func WithCausation(id string) Option { return func(d *draft) { d.CausationID = id } }

// WithExtension sets a CloudEvents extension, in its canonical string form. The name is made of a-z and
// 0-9 and is not that of an attribute with an option of its own.
func WithExtension(name, value string) Option {
	return func(d *draft) {
		field := cePrefix + name
		switch err := checkName(name); {
		case err != nil:
			d.fail(invalid(field, value, err))
		case attributeOf(name) != extension:
			d.fail(invalid(field, value, errors.New("WithExtension: it has an option of its own")))
		case value == "":
			d.fail(invalid(field, "", errEmpty))
		default:
			if d.Extensions == nil {
				d.Extensions = make(map[string]string)
			}
			d.Extensions[name] = value
		}
	}
}

func (d *draft) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *draft) need(field, value string) {
	if value == "" {
		d.fail(invalid(field, "", errEmpty))
	}
}

// New makes a CloudEvents message in binary mode. Its UUID is the event's id.
//
// data is encoded with the codec. A []byte or json.RawMessage is taken for encoded already and kept, not
// copied: it becomes the payload, of the content type application/octet-stream and application/json,
// unless an option says otherwise. nil is a tombstone: no payload, no content type.
//
// In a handler, whose ctx comes from a delivery, the event has the service's source and the correlation id
// of the message that is being handled, whose own id is the causation id; the event's id is derived from the
// consumer, the message's id, the event type and how many ids this attempt derived before. So a retry
// that makes the same events in the same order gives them the same ids, and the inboxes of those who
// consume them see duplicates for what they are. A handler that makes events concurrently, or in an order
// that can change, sets their ids with [WithID].
//
// Elsewhere the id is random (UUID version 7), the source comes from [WithSource] or [ContextWithSource]
// and must be there, and the correlation id from [ContextWithCorrelation]; without one the event begins a
// chain and its own id is the correlation id.
//
// An inherited correlation or causation id that is longer than [MaxIDBytes], or that CloudEvents does not
// allow, is replaced by its hash: it must neither grow without bound nor fail the handler.
//
// ctx becomes the message's context, so that a publisher can join its trace. The error is an [*Error].
func New(ctx context.Context, eventType string, data any, opts ...Option) (*message.Message, error) {
	d := draft{Envelope: Envelope{Type: eventType, SchemaVersion: 1}, codec: JSON}
	for _, opt := range opts {
		opt(&d)
	}
	if d.err != nil {
		return nil, d.err
	}
	encoded := d.codec.ContentType()
	switch data := data.(type) {
	case nil:
		d.ContentType, encoded = "", ""
	case []byte:
		d.Data = data
		if d.codec == Codec(JSON) {
			encoded = "application/octet-stream"
		}
	case json.RawMessage:
		if len(data) > 0 && !json.Valid(data) {
			return nil, invalid("data", sizeOf(data, jsonType), errors.New("json.RawMessage that is not JSON"))
		}
		d.Data, encoded = data, jsonType
	default:
		b, err := d.codec.Marshal(data)
		if err != nil {
			return nil, invalid("data", "", fmt.Errorf("encode %T as %s: %w", data, encoded, err))
		}
		if b == nil {
			b = []byte{} // not a tombstone
		}
		d.Data = b
	}
	if d.ContentType == "" {
		d.ContentType = encoded
	}
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	d.inherit(ctx)
	md, err := d.metadata()
	if err != nil {
		return nil, err
	}
	msg := message.NewMessage(d.ID, d.Data)
	msg.Metadata = md
	msg.SetContext(ctx)
	return msg, nil
}

// inherit fills in what the options left open from the delivery and the context.
func (d *draft) inherit(ctx context.Context) {
	f := flight.From(ctx)
	if f != nil {
		if d.Source == "" {
			d.Source = f.Source
		}
		// The name of the consumer keeps two consumers of one message apart. Without it their
		// different events would get the same ids, and one of them would be lost as a duplicate.
		if d.ID == "" && f.Consumer != "" && f.ID != "" {
			d.ID = deriveID(f.Consumer, f.ID, d.Type, f.NextOutput())
		}
		if d.CausationID == "" {
			d.CausationID = inheritable(causeOf(f))
		}
	}
	if d.Source == "" {
		d.Source, _ = ctx.Value(sourceKey).(string)
	}
	if d.ID == "" {
		d.ID = uuid.Must(uuid.NewV7()).String()
	}
	if d.CorrelationID == "" {
		d.CorrelationID = inheritable(CorrelationID(ctx))
	}
	if d.CorrelationID == "" {
		d.CorrelationID = d.CausationID
	}
	if d.CorrelationID == "" {
		d.CorrelationID = inheritable(d.ID)
	}
}

func inheritable(id string) string {
	if len(id) > MaxIDBytes || checkValue(id) != nil {
		return hashed("inherited", id)
	}
	return id
}

// metadata checks every attribute and writes it.
func (d *draft) metadata() (message.Metadata, error) {
	if d.Source == "" {
		return nil, invalid(MetaSource, "", errors.New("missing: outside a handler use WithSource or ContextWithSource"))
	}
	if _, err := url.Parse(d.Source); err != nil || strings.Contains(d.Source, " ") {
		return nil, invalid(MetaSource, d.Source, errors.New("not a URI reference"))
	}
	if d.DataSchema != "" {
		if u, err := url.Parse(d.DataSchema); err != nil || !u.IsAbs() {
			return nil, invalid(MetaDataSchema, d.DataSchema, errors.New("not an absolute URI"))
		}
	}
	if d.Type == "" {
		return nil, invalid(MetaType, "", errEmpty)
	}
	version := strconv.Itoa(d.SchemaVersion)
	if _, err := parseVersion(version); err != nil {
		return nil, invalid(MetaSchemaVersion, version, err)
	}
	t, err := d.Time.UTC().MarshalText()
	if err != nil {
		return nil, invalid(MetaTime, d.Time.String(), errTime)
	}

	attributes := [...]struct{ key, value string }{
		{MetaSpecVersion, specVersion},
		{MetaID, d.ID},
		{MetaSource, d.Source},
		{MetaType, d.Type},
		{MetaTime, string(t)},
		{MetaSchemaVersion, version},
		{MetaContentType, d.ContentType},
		{MetaSubject, d.Subject},
		{MetaDataSchema, d.DataSchema},
		{MetaPartitionKey, d.PartitionKey},
		{MetaSequence, d.Sequence},
		{MetaCorrelationID, d.CorrelationID},
		{MetaCausationID, d.CausationID},
	}
	if isStructured(d.ContentType) {
		return nil, invalid(MetaContentType, d.ContentType, errors.New("New writes binary mode: it would be read as a structured event"))
	}
	md := make(message.Metadata, len(attributes)+len(d.Extensions))
	for _, a := range attributes {
		if a.value == "" {
			continue
		}
		if err := checkValue(a.value); err != nil {
			return nil, invalid(a.key, a.value, err)
		}
		md[a.key] = a.value
	}
	for name, value := range d.Extensions {
		if err := checkValue(value); err != nil {
			return nil, invalid(cePrefix+name, value, err)
		}
		md[cePrefix+name] = value
	}
	return md, nil
}

// deriveID names an event by where it comes from: a UUID of version 8 (RFC 9562, its example of a
// name-based one with SHA-256). The form is frozen: versions that run side by side must agree.
func deriveID(consumer, cause, eventType string, ordinal uint32) string {
	b := make([]byte, 0, 512) // on the stack, for most names
	for _, part := range [...]string{"headrace event id 1", consumer, cause, eventType} {
		b = appendPart(b, part)
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint32(b, ordinal))
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

package kafka

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

// headerUUID is where watermill-kafka keeps the UUID.
const headerUUID = "_watermill_message_uuid"

type (
	keyOverride     struct{}
	headersOverride struct{}
)

// WithKey returns a context for a message (message.SetContext) that is to be published with this key, whatever its metadata
// say. nil is no key, which is not the same as an empty one.
func WithKey(ctx context.Context, key []byte) context.Context {
	return context.WithValue(ctx, keyOverride{}, key)
}

// WithHeaders returns a context for a message (message.SetContext) that is to be published with exactly these headers:
// duplicates, nil values and order included. Its metadata are not written, nor its UUID. It is for passing records on as they came,
// see brokers.Delivery.
func WithHeaders(ctx context.Context, headers []brokers.Header) context.Context {
	return context.WithValue(ctx, headersOverride{}, headers)
}

// encode returns m as a record, which shares m's payload.
func (c *Config) encode(topic string, m *message.Message) *kgo.Record {
	ctx := m.Context()
	r := &kgo.Record{Topic: topic, Value: m.Payload}
	if key, ok := ctx.Value(keyOverride{}).([]byte); ok {
		r.Key = key
	} else {
		r.Key = c.Key(topic, m)
	}
	if headers, ok := ctx.Value(headersOverride{}).([]brokers.Header); ok {
		r.Headers = make([]kgo.RecordHeader, len(headers))
		for i, h := range headers {
			r.Headers[i] = kgo.RecordHeader(h)
		}
		return r
	}
	r.Headers = make([]kgo.RecordHeader, 0, len(m.Metadata)+1)
	// The first header of that name is the UUID. A metadata entry of that name needs one before it.
	if _, taken := m.Metadata[headerUUID]; taken || m.UUID != "" {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerUUID, Value: []byte(m.UUID)})
	}
	first := len(r.Headers)
	for k, v := range m.Metadata {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: k, Value: []byte(v)})
	}
	slices.SortFunc(r.Headers[first:], func(a, b kgo.RecordHeader) int { return strings.Compare(a.Key, b.Key) })
	return r
}

// decode makes m, whose metadata are empty, a message of r that shares nothing with it, and returns its key: what was fetched with it does
// not stay in memory. headers is nil where the metadata say it all.
func decode(r *kgo.Record, m *message.Message) (key []byte, headers []brokers.Header) {
	own := cloner{bytes: make([]byte, 0, len(r.Value)+len(r.Key))}
	total := 0
	for _, h := range r.Headers {
		total += len(h.Value)
	}
	own.text.Grow(total)
	m.Payload = own.clone(r.Value)
	lossy, named := false, false
	for _, h := range r.Headers {
		lossy = lossy || h.Value == nil
		if h.Key == headerUUID && !named {
			named = true
			m.UUID = own.string(h.Value)
			continue
		}
		before := len(m.Metadata)
		m.Metadata[h.Key] = own.string(h.Value)
		lossy = lossy || len(m.Metadata) == before // it was there already
	}
	if lossy {
		headers = make([]brokers.Header, len(r.Headers))
		for i, h := range r.Headers {
			headers[i] = brokers.Header{Key: h.Key, Value: bytes.Clone(h.Value)}
		}
	}
	return own.clone(r.Key), headers
}

// own returns a copy of r that shares nothing with what was fetched with it.
func own(r *kgo.Record) *kgo.Record {
	total := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		total += len(h.Value)
	}
	own := cloner{bytes: make([]byte, 0, total)}
	c := *r
	c.Key, c.Value = own.clone(r.Key), own.clone(r.Value)
	c.Headers = slices.Clone(r.Headers)
	for i := range c.Headers {
		c.Headers[i].Value = own.clone(c.Headers[i].Value)
	}
	return &c
}

// cloner makes copies that lie in one piece of memory each for bytes and for strings, which must have been made large enough.
type cloner struct {
	bytes []byte
	text  strings.Builder
}

// clone returns a copy of b, nil if b is nil, that does not grow into the next one.
func (c *cloner) clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	n := len(c.bytes)
	c.bytes = append(c.bytes, b...)
	return c.bytes[n:len(c.bytes):len(c.bytes)]
}

func (c *cloner) string(b []byte) string {
	n := c.text.Len()
	c.text.Write(b)
	return c.text.String()[n:]
}

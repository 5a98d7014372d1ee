package amqp

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
)

// The headers of our own. The wire format is a contract; doc.go describes it.
const (
	headerUUID    = "_watermill_message_uuid"
	headerPayload = "headrace-payload"
	payloadNil    = "nil"
	escaped       = "h:"
)

const (
	// maxHeaderBytes is the most that all metadata of a message can have: a header is one frame.
	maxHeaderBytes = 100 << 10

	// frameReserve is what a header frame keeps free, for the properties and for what the server adds to a message that it
	// dead-letters.
	frameReserve = 16 << 10
)

// serverHeaders begin the names of headers that the server writes or obeys.
var serverHeaders = []string{"x-death", "x-first-death-", "x-last-death-", headerCount, "x-stream-", "x-opt-", "headrace-delay"}

// headerCount has how often a quorum queue has delivered a message before.
const headerCount = "x-delivery-count"

// reserved tells whether a header of this name would be something else than metadata.
func reserved(name string) bool {
	switch name {
	case headerUUID, headerPayload, "CC", "BCC":
		return true
	}
	if len(name) == 0 || name[0] != 'x' && name[0] != 'h' {
		return false
	}
	return strings.HasPrefix(name, escaped) ||
		slices.ContainsFunc(serverHeaders, func(s string) bool { return strings.HasPrefix(name, s) })
}

// encode returns m for the wire. The error tells what AMQP cannot carry. The client reads the payload before it returns.
func encode(m *message.Message, maxPayload, maxFrame int) (amqp091.Publishing, error) {
	if len(m.Payload) > maxPayload {
		return amqp091.Publishing{}, fmt.Errorf("its payload has %d bytes: want at most %d, see Config.MaxMessageBytes", len(m.Payload), maxPayload)
	}
	headers := make(amqp091.Table, len(m.Metadata)+2)
	headers[headerUUID] = m.UUID
	size := fieldSize(headerUUID, m.UUID)
	for k, v := range m.Metadata {
		if reserved(k) {
			k = escaped + k
		}
		if len(k) > maxName {
			return amqp091.Publishing{}, fmt.Errorf("its metadata key %.60q... has %d bytes: want at most %d", k, len(k), maxName)
		}
		headers[k] = v
		size += fieldSize(k, v)
	}
	if m.Payload == nil {
		headers[headerPayload] = payloadNil
		size += fieldSize(headerPayload, payloadNil)
	}
	if most := maxFrame - frameReserve; size > most {
		return amqp091.Publishing{}, fmt.Errorf("its id and metadata take %d bytes: want at most %d, which fit into a frame", size, most)
	}
	p := amqp091.Publishing{
		Headers:      headers,
		DeliveryMode: amqp091.Persistent,
		Timestamp:    time.Now(),
		Body:         m.Payload,
	}
	if len(m.UUID) <= maxName {
		p.MessageId = m.UUID
	}
	if t := m.Metadata["content-type"]; len(t) <= maxName {
		p.ContentType = t
	}
	return p, nil
}

// fieldSize is that of a header with a string.
func fieldSize(name, value string) int { return 1 + len(name) + 1 + 4 + len(value) }

// decode returns what came over the wire. headers is nil where the metadata says it all. It cannot fail: an error tells of a
// message that contradicts itself; its payload is what came.
func decode(d *amqp091.Delivery) (m *message.Message, headers []brokers.Header, err error) {
	m = message.NewMessage("", message.Payload(d.Body))
	if m.Payload == nil {
		m.Payload = message.Payload{}
	}
	uuid, ours := d.Headers[headerUUID].(string)
	lossy := false
	for name, value := range d.Headers {
		switch name {
		case headerUUID:
			if ours {
				continue
			}
		case headerPayload:
			if value != payloadNil {
				break
			}
			if len(d.Body) > 0 {
				err = fmt.Errorf("amqp: the header %q says that there is no payload, and there are %d bytes", headerPayload, len(d.Body))
				break
			}
			m.Payload = nil
			continue
		case headerCount:
			if _, number := integer(value); number && d.Redelivered {
				continue // it is the queue's, and in Delivery.Count
			}
		}
		text, exact := headerText(value)
		lossy = lossy || !exact
		if key, cut := strings.CutPrefix(name, escaped); cut && reserved(key) {
			m.Metadata[key] = text
		} else if _, there := d.Headers[escaped+name]; there && reserved(name) {
			lossy = true // two of one name: the escaped one is in the metadata
		} else {
			m.Metadata[name] = text
		}
	}
	if ours {
		m.UUID = uuid
	} else {
		foreign(m, d)
	}
	if lossy || err != nil {
		headers = typedHeaders(d.Headers)
	}
	return m, headers, err
}

// foreign adds what the properties of a message by another program say: its id, content type and correlation. CloudEvents'
// attributes have the prefixes of AMQP 1.0 there, which the server translates, or that of HTTP.
func foreign(m *message.Message, d *amqp091.Delivery) {
	m.UUID = d.MessageId
	for _, p := range []struct{ key, value string }{
		{"content-type", d.ContentType},
		{"correlation_id", d.CorrelationId},
	} {
		if _, there := m.Metadata[p.key]; !there && p.value != "" {
			m.Metadata[p.key] = p.value
		}
	}
	for _, name := range slices.Collect(maps.Keys(m.Metadata)) {
		for _, prefix := range []string{"cloudEvents:", "cloudEvents_", "ce-"} {
			attribute, cut := strings.CutPrefix(name, prefix)
			if _, there := m.Metadata["ce_"+attribute]; cut && !there {
				m.Metadata["ce_"+attribute] = m.Metadata[name]
				delete(m.Metadata, name)
			}
		}
	}
}

// deliveries is how often the broker has delivered d, this time included.
func deliveries(d *amqp091.Delivery) int {
	if !d.Redelivered {
		return 1
	}
	n, _ := integer(d.Headers[headerCount])
	return int(cmp.Or(n, 1)) + 1
}

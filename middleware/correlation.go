package middleware

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

// CorrelationConfig says who handles. All fields may be empty.
type CorrelationConfig struct {
	// Source is this service's own CloudEvents source, for the events that its handlers make.
	Source string

	// Consumer is the stable name of the consumer; the scope of message ids.
	Consumer string

	// Identify gives the id of a message within the consumer; nil is event.Identify. It is called once
	// for each delivery and must be safe for concurrent use. With "" the message has none, which is for
	// a later stage to refuse.
	Identify func(*message.Message) string
}

// Correlation keeps a conversation together over any number of hops. It reads who the message belongs to,
// has it at hand for the handler (event.CorrelationID, event.CausationID, and the events that it makes), and
// writes it into the messages that the handler returns. It never changes the message that it handles.
//
// The correlation id is the message's ce_correlationid, or else Watermill's correlation_id. A message
// without one begins a conversation, named by its own id: ce_id, or the Watermill UUID; so a redelivery
// stays in the same conversation. Only if it has none at all is one made up. An id of more than
// event.MaxIDBytes, or with control characters in it, counts as none. The causation id of what the
// handler makes is the id of the message that it handles.
//
// A returned message keeps what it has already, a Watermill correlation_id included.
func Correlation(c CorrelationConfig) message.HandlerMiddleware {
	if c.Identify == nil {
		c.Identify = identify
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			f := flight.Ensure(msg)
			c.begin(f, msg)
			out, err := h(msg)
			for _, m := range out {
				if m != nil && m != msg { // one that is passed through was not caused by itself
					stamp(m, f.CorrelationID, f.CausationID)
				}
			}
			return out, err
		}
	}
}

func (c *CorrelationConfig) begin(f *flight.Flight, msg *message.Message) {
	f.Source = or(c.Source, f.Source)
	f.Consumer = or(c.Consumer, f.Consumer)
	own, correlation := idsOf(msg)
	f.ID = c.Identify(msg)
	f.CausationID = or(own, f.ID)
	f.CorrelationID = or(correlation, f.CausationID)
	if f.CorrelationID == "" {
		f.CorrelationID = watermill.NewUUID()
	}
}

// idsOf returns the id that msg bears and its correlation id, each "" if it has none.
func idsOf(msg *message.Message) (id, correlation string) {
	if isStructured(msg.Metadata[event.MetaContentType]) {
		e, _ := event.Parse(msg) // of a broken envelope, what could be read
		return or(usable(e.ID), usable(msg.UUID)), usable(e.CorrelationID)
	}
	id = or(usable(msg.Metadata[event.MetaID]), usable(msg.UUID))
	correlation = or(usable(msg.Metadata[event.MetaCorrelationID]), usable(msg.Metadata[event.MetaWatermillCorrelationID]))
	return id, correlation
}

// usable returns id, or "" if it must not go on to other messages: everyone's headers would grow.
func usable(id string) string {
	if len(id) > event.MaxIDBytes || !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl) {
		return ""
	}
	return id
}

func identify(msg *message.Message) string {
	id, err := event.Identify(msg, flight.From(msg.Context()).Topic)
	if err != nil {
		return ""
	}
	return id
}

// isStructured tells whether the attributes are in the payload.
func isStructured(contentType string) bool {
	const prefix = "application/cloudevents"
	return len(contentType) >= len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix)
}

// CorrelationPublisher is a Watermill publisher decorator for what handlers publish by themselves. It
// writes the correlation and causation id of a message's context into the message, if it has none yet. A
// message of no handler begins a conversation, named by its own id. Its Publish changes the messages, as
// Watermill allows a publisher to.
func CorrelationPublisher(pub message.Publisher) (message.Publisher, error) {
	return message.MessageTransformPublisherDecorator(func(m *message.Message) {
		if m == nil {
			return
		}
		ctx := m.Context()
		own, correlation := idsOf(m)
		stamp(m, or(or(correlation, event.CorrelationID(ctx)), own), event.CausationID(ctx))
	})(pub)
}

// stamp writes the ids into m, each if it has none and there is one.
func stamp(m *message.Message, correlation, causation string) {
	if _, own := idsOf(m); own != "" {
		correlation = own
	}
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 2)
	}
	if correlation != "" {
		m.Metadata[event.MetaCorrelationID] = correlation
	}
	if causation != "" && m.Metadata[event.MetaCausationID] == "" {
		m.Metadata[event.MetaCausationID] = causation
	}
}

package middleware

import (
	"context"

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

	// Identify gives the id of a message within the consumer, when that is not the one of its envelope.
	// It is called once for each delivery and must be safe for concurrent use. An empty id leaves the
	// message without one, which is for a later stage to refuse.
	Identify func(*message.Message) string
}

// Correlation keeps a conversation together over any number of hops. It reads who the message belongs to,
// has it at hand for the handler ([CorrelationID], [CausationID], and the events that it makes), and writes
// it into the messages that the handler returns. It never changes the message that it handles.
//
// The correlation id is the message's ce_correlationid, or else Watermill's correlation_id. A message
// without one begins a conversation, named by its own id: ce_id, or the Watermill UUID; so a redelivery
// stays in the same conversation. Only if it has no id at all is one made up. The causation id of what the
// handler makes is the id of the message that it handles.
//
// A returned message keeps what it has already, a Watermill correlation_id included.
func Correlation(c CorrelationConfig) message.HandlerMiddleware {
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
	own := or(msg.Metadata[event.MetaID], msg.UUID)
	if c.Identify != nil {
		f.ID = c.Identify(msg)
	}
	f.CausationID = or(own, f.ID)
	f.CorrelationID = correlationOf(msg)
	if f.CorrelationID == "" {
		f.CorrelationID = f.CausationID
	}
	if f.CorrelationID == "" {
		f.CorrelationID = watermill.NewUUID()
	}
}

// CorrelationID returns the id of the conversation that ctx belongs to, or "" where no Correlation stands
// outside.
func CorrelationID(ctx context.Context) string {
	if f := flight.From(ctx); f != nil {
		return f.CorrelationID
	}
	return ""
}

// CausationID returns the causation id for what is made in ctx: the id of the message that is being
// handled. It is "" where no Correlation stands outside.
func CausationID(ctx context.Context) string {
	if f := flight.From(ctx); f != nil {
		return f.CausationID
	}
	return ""
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
		correlation, causation := CorrelationID(ctx), CausationID(ctx)
		if correlation == "" {
			correlation = or(m.Metadata[event.MetaID], m.UUID)
		}
		stamp(m, correlation, causation)
	})(pub)
}

// stamp writes the ids into m, each if it has none and there is one.
func stamp(m *message.Message, correlation, causation string) {
	if own := correlationOf(m); own != "" {
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

func correlationOf(m *message.Message) string {
	return or(m.Metadata[event.MetaCorrelationID], m.Metadata[event.MetaWatermillCorrelationID])
}

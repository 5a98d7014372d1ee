package event

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
)

type contextKey int

const (
	envelopeKey contextKey = iota
	correlationKey
	sourceKey
)

// envelopeContext carries an envelope in one allocation.
type envelopeContext struct {
	context.Context
	envelope Envelope
}

func (c *envelopeContext) Value(key any) any {
	if k, ok := key.(contextKey); ok && k == envelopeKey {
		return &c.envelope
	}
	return c.Context.Value(key)
}

// NewContext returns ctx with e as the envelope of the message that is being handled.
func NewContext(ctx context.Context, e *Envelope) context.Context {
	return &envelopeContext{Context: ctx, envelope: *e}
}

// DecodeContext is [Decode] that returns the message's context with the envelope in it, as [NewContext] does. With an error there is no
// context.
func DecodeContext[T any](d *Decoder, msg *message.Message) (T, context.Context, error) {
	c := &envelopeContext{Context: msg.Context()}
	v, err := decodeInto[T](d, msg, &c.envelope)
	if err != nil {
		return v, nil, err
	}
	return v, c, nil
}

// FromContext returns the envelope of the message that is being handled: the one that [NewContext] put
// in, else it parses the message of ctx's delivery, at each call. It is false where there is no message,
// or one without a valid envelope.
func FromContext(ctx context.Context) (Envelope, bool) {
	if e, _ := ctx.Value(envelopeKey).(*Envelope); e != nil {
		return *e, true
	}
	f := flight.From(ctx)
	if f == nil {
		return Envelope{}, false
	}
	msg := f.Original
	if f.View.Metadata != nil || msg == nil {
		msg = &f.View
	}
	e, err := Parse(msg) //nolint:contextcheck // the message has its own context, which ctx comes from
	return e, err == nil
}

// CorrelationID returns what is common to all that follows from one cause: the correlation id of the
// message that is being handled, else that of [ContextWithCorrelation], else "".
func CorrelationID(ctx context.Context) string {
	if f := flight.From(ctx); f != nil && f.CorrelationID != "" {
		return f.CorrelationID
	}
	id, _ := ctx.Value(correlationKey).(string)
	return id
}

// CausationID returns the causation id of the events that a handler makes: the id that the message being
// handled bears (ce_id, else its UUID, else [MessageID]). Outside of a handler it is "". What led to the
// message itself is in its envelope.
func CausationID(ctx context.Context) string {
	if f := flight.From(ctx); f != nil {
		return causeOf(f)
	}
	return ""
}

// causeOf is what middleware.Correlation found; where that did not run, the same is looked for here.
func causeOf(f *flight.Flight) string {
	if f.CausationID != "" {
		return f.CausationID
	}
	if msg := f.Original; msg != nil {
		if isStructured(msg.Metadata[MetaContentType]) {
			if _, id := scanTwo(msg.Payload, "source", "id"); id != "" {
				return id
			}
		} else if id := msg.Metadata[MetaID]; id != "" {
			return id
		}
		if msg.UUID != "" {
			return msg.UUID
		}
	}
	return f.ID
}

// MessageID returns the id, as [Identify] gives it, of the message that is being handled, or "". With the
// consumer's name it makes a good idempotency key for calls to others: printable ASCII, spaces among it, of at
// most [MaxIDBytes].
func MessageID(ctx context.Context) string {
	if f := flight.From(ctx); f != nil {
		return f.ID
	}
	return ""
}

// ContextWithCorrelation returns ctx with a correlation id for events that are made outside of a handler,
// in an HTTP request, say.
func ContextWithCorrelation(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, correlationKey, id)
}

// ContextWithSource returns ctx with the source for events that are made outside of a handler.
func ContextWithSource(ctx context.Context, source string) context.Context {
	return context.WithValue(ctx, sourceKey, source)
}

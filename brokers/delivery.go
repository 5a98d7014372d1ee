package brokers

import (
	"context"
	"time"
)

// Delivery is what an adapter knows of one arrival of one message. The adapter puts it into the
// message's context with [WithDelivery]. Nobody changes it afterwards.
type Delivery struct {
	// Topic the message was read from.
	Topic string

	// Incarnation tells a topic from a later one of the same name (Kafka's topic id, a stream's
	// time of creation). It is part of the fallback message id. Empty: unknown.
	Incarnation string

	// Partition is the unit of order the message is in; -1 where the broker has none.
	Partition int32

	// Offset is the message's position in its partition or stream; -1 where the broker has none.
	Offset int64

	// Key is the broker's own key of the message (a Kafka record key, an SQS message group).
	// nil: it has none. Not the same as empty.
	Key []byte

	// Time is when the broker stored the message, or the zero time.
	Time time.Time

	// Count is how often the broker has delivered the message, this one included; 0: not known.
	Count int

	// Headers are the headers as they were received, in order, duplicates and nil values included,
	// where message.Metadata cannot hold them. nil: the metadata says it all.
	Headers []Header

	// DecodeError tells why the adapter could not make sense of the bytes. The message's payload is
	// then exactly what was received. The runtime treats it as permanent: a receive never fails.
	DecodeError error

	// Release gives the delivery back to the broker without a verdict, so that another consumer may
	// have it soon. It does not block. nil: the broker cannot; the delivery is then nacked at the end
	// of a hold (Capabilities.Patience), and else left unsettled: it comes again by the broker's own rules.
	Release func()

	// Delay gives the delivery back and makes the broker deliver it again after d, not before; Count is
	// then one more. Those that follow are not held up. It does not block. It reports false if it could not:
	// the delivery was left as it was. nil: the broker cannot delay one message.
	Delay func(d time.Duration) bool

	// Settled tells the adapter to look at the message: it was acked or nacked a moment ago. The runtime
	// calls it after that, once. It does not block. It only saves the adapter the watching of channels: on a
	// user's own router nobody calls it. nil: the adapter has no use for it.
	Settled func()
}

// Header is one header as it was received.
type Header struct {
	Key   string
	Value []byte
}

type deliveryKey struct{}

// WithDelivery returns ctx with d in it. Adapters call it once for each message:
//
//	msg.SetContext(brokers.WithDelivery(ctx, d))
//
// ctx must end when the subscription's context ends, or when the broker takes the delivery away.
func WithDelivery(ctx context.Context, d *Delivery) context.Context {
	return &deliveryContext{Context: ctx, delivery: d}
}

// DeliveryOf returns the delivery that the adapter put into ctx, or nil. Callers must not change it.
func DeliveryOf(ctx context.Context) *Delivery {
	d, _ := ctx.Value(deliveryKey{}).(*Delivery)
	return d
}

// deliveryContext is context.WithValue without boxing the value a second time.
type deliveryContext struct {
	context.Context
	delivery *Delivery
}

func (c *deliveryContext) Value(key any) any {
	if key == (deliveryKey{}) {
		return c.delivery
	}
	return c.Context.Value(key)
}

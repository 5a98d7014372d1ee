// Package flight holds the state of one delivery on its way through the stages: where it came from, the
// view of it that a handler gets, whether it was settled, and the receipt that allows its ack.
//
// It is internal so that only Headrace can give a receipt: a middleware that swallows an error and
// returns nil cannot make a message disappear. A stage that runs alone on a user's own Watermill
// router finds no flight; everything here accepts that (a nil *Flight is a valid receiver).
package flight

import (
	"context"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// Flight is one delivery in the process. It is the context of its own view: one allocation serves both.
type Flight struct {
	// Context is the broker message's context: it ends when the drain limit has passed or the
	// delivery was taken away, and carries what the adapter put in.
	context.Context

	// Original is the broker's message. Nobody changes it or hands it to a handler.
	Original *message.Message

	// View is what the router and the handlers get. Its Ack and Nack have no effect on the broker.
	View message.Message

	// Delivery is never nil; without an adapter that sets one it holds the topic only.
	Delivery *brokers.Delivery

	// Topic and Consumer name the subscription. Key names the lane.
	Topic, Consumer, Key string

	// ID identifies the message within Consumer's inbox. Source is this service's own CloudEvents
	// source, for the events that the handler makes. middleware.Correlation sets these four.
	ID, Source, CorrelationID, CausationID string

	// Attempt counts the runs of the handler in this process: 1 is the first. middleware.Retry sets it.
	Attempt int

	// Earlier is what deliveries of the same message before this one came to. nil: nothing is known of any.
	Earlier *Earlier

	// Deaths is how often a redriven message was dead-lettered before.
	Deaths int

	// Place is the delivery's place among those that run at once. nil: nobody counts them.
	Place Place

	// Trial is set in tests of applications alone, see headracetest.
	Trial *Trial

	settled atomic.Uint32
	receipt atomic.Uint32
	outputs atomic.Uint32
	added   atomic.Bool

	// Delays says who acts on a delay that is too long for the lane, beside the broker.
	Delays Delays

	guarded      bool      // by the outermost middleware.Recover, see Guard
	kept         *snapshot // of the view, see Keep
	exit, exited error
}

type key struct{}

// Value finds the flight itself, then what the adapter put in.
func (f *Flight) Value(k any) any {
	if _, ok := k.(key); ok {
		return f
	}
	return f.Context.Value(k)
}

// From returns the flight that ctx belongs to, or nil.
func From(ctx context.Context) *Flight {
	f, _ := ctx.Value(key{}).(*Flight)
	return f
}

// Ensure returns msg's flight. On a plain Watermill router there is none: then it makes one that is its
// own original, and puts it into msg's context.
func Ensure(msg *message.Message) *Flight {
	if f := From(msg.Context()); f != nil {
		return f
	}
	d := brokers.DeliveryOf(msg.Context())
	topic := message.SubscribeTopicFromCtx(msg.Context())
	if d == nil {
		d = &brokers.Delivery{Topic: topic, Partition: -1, Offset: -1}
	}
	f := &Flight{Context: msg.Context(), Original: msg, Delivery: d, Topic: topic}
	msg.SetContext(f)
	return f
}

// Settlement is what was told to the broker.
type Settlement uint32

// The settlements. A delivery has at most one for good (invariant I1).
const (
	Unsettled Settlement = iota
	Acked
	Nacked
	Released
	Delayed
)

// Ack tells the broker that the delivery is done. It reports whether this call settled it.
func (f *Flight) Ack() bool {
	return f.settle(Acked) && f.told(f.Original.Ack())
}

// Nack asks the broker to deliver again. It reports whether this call settled it.
func (f *Flight) Nack() bool {
	return f.settle(Nacked) && f.told(f.Original.Nack())
}

// told lets the adapter know that the message was settled.
func (f *Flight) told(settled bool) bool {
	if f.Delivery != nil && f.Delivery.Settled != nil {
		f.Delivery.Settled()
	}
	return settled
}

// Release gives the delivery back without a verdict where the broker can take it, and leaves it
// unsettled where not. It reports whether this call settled it.
func (f *Flight) Release() bool {
	if !f.settle(Released) {
		return false
	}
	if f.Delivery != nil && f.Delivery.Release != nil {
		f.Delivery.Release()
	}
	return true
}

// GiveBack releases the delivery; but one that the broker cannot take back without a verdict is nacked, since nobody else would be told: some
// adapters wait for a verdict for ever. It is not if it was taken away or its intake drains: those end the wait. It reports whether
// this call settled it.
func (f *Flight) GiveBack() bool {
	if f.Delivery != nil && f.Delivery.Release == nil && f.Context.Err() == nil && !f.IsDraining() {
		return f.Nack()
	}
	return f.Release()
}

// Settlement tells what the delivery was settled with.
func (f *Flight) Settlement() Settlement { return Settlement(f.settled.Load()) }

func (f *Flight) settle(s Settlement) bool {
	return f.settled.CompareAndSwap(uint32(Unsettled), uint32(s))
}

// NextOutput numbers the events that the current attempt creates: 1, 2, ... It restarts with each
// attempt, so that a retry gives the same ids to the same events.
func (f *Flight) NextOutput() uint32 { return f.outputs.Add(1) }

// StartAttempt counts a new attempt and forgets what the last one left: its receipt and its count of
// outputs.
func (f *Flight) StartAttempt() {
	f.Attempt++
	f.receipt.Store(uint32(NoReceipt))
	f.outputs.Store(0)
}

// Outputs tells how many events the current attempt has created so far.
func (f *Flight) Outputs() uint32 { return f.outputs.Load() }

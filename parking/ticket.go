package parking

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/poison"
)

// ticket goes with a released message from its source to the store.
type ticket struct {
	Message
	done atomic.Bool // the message has left its place, or its key was parked again
}

type ticketKey struct{}

func ticketOf(ctx context.Context) *ticket {
	t, _ := ctx.Value(ticketKey{}).(*ticket)
	return t
}

// laneSuffix sets the lane of a key's released messages apart from that of its live ones: a live message that is
// held for lack of room must not hold up those that make room. The database keeps the two in order.
const laneSuffix = ".PARKED"

// message makes the message what it was when it arrived. released is told when it is given back without a
// verdict.
func (t *ticket) message(ctx context.Context, topic string, released func()) *message.Message {
	r := &t.Record
	msg := message.NewMessage(r.UUID, r.Payload)
	msg.Metadata = r.Metadata
	d := &brokers.Delivery{
		Topic: topic + laneSuffix, Incarnation: r.Incarnation, Partition: r.Partition, Offset: r.Offset, Time: r.Time,
		Key: r.Key, Headers: r.Headers, Release: released,
	}
	if r.DecodeError != "" {
		d.DecodeError = errors.New(r.DecodeError)
	}
	ctx = context.WithValue(ctx, ticketKey{}, t)
	before := &poison.Redrive{Kind: poison.KindRedrive, Hops: r.Hops, Batch: r.Batch, Record: *r}
	if r.ID == "" && r.Attempts > 0 { // it asked to be handled later
		before.Kind = poison.KindDelay
	}
	msg.SetContext(brokers.WithDelivery(poison.WithRedrive(ctx, before), d))
	return msg
}

// IsDrained tells whether the message that ctx belongs to was parked and comes from a [Source].
func IsDrained(ctx context.Context) bool { return ticketOf(ctx) != nil }

package kafka

import (
	"context"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

// hold is one record that was handed over, or is about to be, and is not acked.
type hold struct {
	delivery brokers.Delivery
	from     *assignment
	record   *kgo.Record
	key      uint64 // see keyOf
	msg      *message.Message
	cancel   context.CancelFunc
	released atomic.Bool
	since    time.Time // when it was handed over for the first time
	returns  int       // how often it was given back
	due      time.Time // when it may come again
}

// newHold needs what does not change during an assignment from its goroutine.
func (a *assignment) newHold(r *kgo.Record, key uint64) *hold {
	h := &hold{from: a, record: r, key: key}
	h.delivery = brokers.Delivery{
		Topic:       a.topic,
		Incarnation: a.incarnation,
		Partition:   a.partition,
		Offset:      r.Offset,
		Key:         r.Key,
		Time:        r.Timestamp,
		Release:     h.release,
	}
	h.prepare()
	return h
}

// prepare makes the message of the next delivery: a copy of the record, so that no delivery sees what was done to the one
// before.
func (h *hold) prepare() {
	h.msg, h.delivery.Headers = decode(h.record)
	ctx, cancel := context.WithCancel(h.from.ctx)
	h.cancel = cancel
	h.msg.SetContext(brokers.WithDelivery(ctx, &h.delivery))
}

func (h *hold) release() {
	h.released.Store(true)
	h.from.released.Store(true)
	h.from.ring()
}

// verdict is what became of a delivery.
type verdict int

const (
	undecided verdict = iota
	acked
	returned // nacked or released
)

func (h *hold) verdict() verdict {
	select {
	case <-h.msg.Acked():
		return acked
	default:
	}
	select {
	case <-h.msg.Nacked():
		return returned
	default:
	}
	if h.released.Load() {
		return returned
	}
	return undecided
}

// ended reports whether whoever got the delivery is done with it, in whatever way.
func (h *hold) ended() bool { return h.verdict() != undecided || h.from.m.gone.Load() }

// keyless is the key of records that have none. They have no budget of their own.
const keyless = 0

var keySeed = maphash.MakeSeed()

// keyOf returns a hash of what orders r. Keys of one hash share a budget, which costs no more than time.
func keyOf(r *kgo.Record) uint64 {
	key := r.Key
	if key == nil {
		// The order that the runtime keeps falls back to these, see ordering.DefaultKey.
		var partitionKey, subject []byte
		for _, h := range r.Headers {
			switch h.Key {
			case "ce_partitionkey":
				partitionKey = h.Value
			case "ce_subject":
				subject = h.Value
			}
		}
		if key = partitionKey; len(key) == 0 {
			key = subject
		}
	}
	if len(key) == 0 {
		return keyless
	}
	return maphash.Bytes(keySeed, key) | 1 // never keyless
}

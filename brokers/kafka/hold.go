package kafka

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

// hold is one delivery of a record that was handed over, or is about to be, and is not acked.
type hold struct {
	delivery brokers.Delivery
	context  lazyContext
	from     *assignment
	record   *kgo.Record
	lane     *lane // of from
	key      uint64
	msg      message.Message
	decided  atomic.Uint32 // the verdict, as far as it was told
	detached bool          // record is a copy
	listed   bool          // by from
	since    time.Time     // when the record was handed over for the first time
	returns  int           // how often the record was given back
	due      time.Time     // when it may come again

	// The list of what from holds.
	prev, next *hold
}

// newHold needs what does not change during an assignment from its goroutine.
func (a *assignment) newHold(r *kgo.Record, ln *lane) *hold {
	h := &hold{from: a, record: r, lane: ln, key: ln.key, context: lazyContext{parent: a.ctx}}
	if a.m.pulled { // whoever pulls calls Settled: nobody needs the channels
		h.msg.Metadata = make(message.Metadata, len(r.Headers))
	} else {
		h.msg = *message.NewMessage("", nil)
	}
	recordKey, headers := decode(r, &h.msg)
	h.delivery = brokers.Delivery{
		Topic:       a.topic,
		Incarnation: a.incarnation,
		Partition:   a.partition,
		Offset:      r.Offset,
		Key:         recordKey,
		Time:        r.Timestamp,
		Headers:     headers,
		Release:     h.release,
		Settled:     h.settled,
	}
	h.msg.SetContext(brokers.WithDelivery(&h.context, &h.delivery))
	return h
}

// again is the next delivery of the record of h, which was given back. It sees nothing of what was done to h's message.
func (h *hold) again() *hold {
	n := h.from.newHold(h.record, h.lane)
	n.since, n.returns, n.detached = h.since, h.returns, h.detached
	return n
}

// detach lets go of what was fetched with the record.
func (h *hold) detach() {
	if !h.detached {
		h.detached = true
		h.record = own(h.record)
	}
}

// release is Delivery.Release, and settled is Delivery.Settled.
func (h *hold) release() {
	h.decide(returned)
	if h.from.tell(h) {
		h.from.ring()
	}
}

func (h *hold) settled() {
	a := h.from
	a.hooked.Store(true)
	h.decide(h.look())
	switch first := a.tell(h); {
	case a.m.pulled:
		a.advance()
	case first:
		a.ring()
	}
}

// verdict is what became of a delivery.
type verdict uint32

const (
	undecided verdict = iota
	acked
	returned // nacked or released
)

// decide notes the first verdict.
func (h *hold) decide(v verdict) { h.decided.CompareAndSwap(uint32(undecided), uint32(v)) }

func (h *hold) verdict() verdict {
	if !h.from.m.pulled {
		if v := h.look(); v != undecided {
			return v
		}
	}
	return verdict(h.decided.Load())
}

// look reads what the message was settled with. A message that is pulled gets its channels by Ack and Nack: only their caller may look.
func (h *hold) look() verdict {
	select {
	case <-h.msg.Acked():
		return acked
	default:
	}
	select {
	case <-h.msg.Nacked():
		return returned
	default:
		return undecided
	}
}

// ended reports whether whoever got the delivery is done with it, in whatever way.
func (h *hold) ended() bool { return h.verdict() != undecided || h.from.m.gone.Load() }

// holds is a list of deliveries, in the order in which they were added.
type holds struct {
	first, last *hold
	n           int
}

func (l *holds) add(h *hold) {
	h.prev, h.next, h.listed = l.last, nil, true
	if l.last == nil {
		l.first = h
	} else {
		l.last.next = h
	}
	l.last = h
	l.n++
}

func (l *holds) remove(h *hold) {
	if h.prev == nil {
		l.first = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next == nil {
		l.last = h.prev
	} else {
		h.next.prev = h.prev
	}
	h.prev, h.next, h.listed = nil, nil, false
	l.n--
}

// all returns the deliveries of the list.
func (l *holds) all() []*hold {
	all := make([]*hold, 0, l.n)
	for h := l.first; h != nil; h = h.next {
		all = append(all, h)
	}
	return all
}

// keyless is the key of records that have none. They have no budget of their own.
const keyless = 0

// wholePartition is the key of all records where a partition is one lane.
const wholePartition = 1

func (m *member) laneOf(r *kgo.Record) uint64 {
	if m.oneLane {
		return wholePartition
	}
	return keyOf(r)
}

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

package parking

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/poison"
)

// Parker parks what has failed. [Wrap] makes it. It is safe for concurrent use.
type Parker struct {
	ledger   Ledger
	consumer string
	policy   Policy
	limits   Limits
	once     func(context.Context, inbox.Claim, func(ctx context.Context, tx any) error) (bool, error)
	held     held
}

func newParker(l Ledger, consumer string, policy Policy) (*Parker, error) {
	if err := (inbox.Claim{Consumer: consumer, ID: "x"}).Validate(); err != nil {
		return nil, fmt.Errorf("parking: %w", err)
	}
	if err := policy.Validate(); err != nil {
		return nil, err
	}
	policy = policy.withDefaults()
	return &Parker{
		ledger: l, consumer: consumer, policy: policy,
		limits: Limits{PerKey: policy.MaxPerKey, PerConsumer: policy.MaxMessages},
	}, nil
}

// Ledger returns the parked messages, for an operator.
func (p *Parker) Ledger() Ledger { return p.ledger }

// Park is a poison.Config.Park: it parks a message whose dead letter was stored, behind the others of its key
// if there are any, and claims it. One that came from a [Source] stays where it is, and its key is parked
// again. It does nothing for a message without a key or an id, for one that took effect or was parked meanwhile
// elsewhere, and, by Policy.Overflow, without room. It blocks for the database; call it again after an error.
func (p *Parker) Park(ctx context.Context, r poison.Record) error {
	if t := ticketOf(ctx); t != nil {
		return p.again(ctx, t, r)
	}
	key := keyOf(flight.From(ctx))
	if key == "" || r.MessageID == "" {
		return nil
	}
	err := p.place(ctx, key, r, 0)
	if errors.Is(err, ErrFull) && p.policy.Overflow == DeadLetter {
		return nil // which it is already
	}
	return err
}

// Delay parks a message that has asked to be handled after d, and its key with it: later messages of the key are
// parked behind it, and all of them are handled in order when d has passed by the database's clock, without an operator. r is what
// poison.Delayed returns. A message that came from a [Source] stays where it is. It reports false, and has done nothing, for a
// message without a key or an id, which nothing can be in order with. It blocks for the database; call it again after an
// error, which wraps [ErrFull] if there is no room.
func (p *Parker) Delay(ctx context.Context, r poison.Record, d time.Duration) (bool, error) {
	d = max(d, time.Microsecond)
	if t := ticketOf(ctx); t != nil {
		m := t.Message
		m.Record = r
		if _, err := p.ledger.DelayAgain(ctx, m, d); err != nil {
			return false, err
		}
		t.done.Store(true)
		return true, nil
	}
	key := keyOf(flight.From(ctx))
	if key == "" || r.MessageID == "" {
		return false, nil
	}
	err := p.place(ctx, key, r, d)
	return err == nil, err
}

// place claims a message and puts it behind the others of its key. If there are none, the key is parked: until d has passed, or
// for good if d is 0. One that took effect or was parked meanwhile elsewhere it leaves alone.
func (p *Parker) place(ctx context.Context, key string, r poison.Record, d time.Duration) error {
	for range maxMoved {
		out := NotParked
		_, err := p.once(ctx, inbox.Claim{Consumer: p.consumer, ID: r.MessageID}, func(ctx context.Context, tx any) error {
			var err error
			out, err = p.park(ctx, tx, key, r, d)
			return err
		})
		switch {
		case !errors.Is(err, errRollBack):
			return err
		case out == Reserved:
			return nil
		case out == Full:
			return p.full(key)
		}
	}
	return fmt.Errorf("park key %q: %w", key, errMoved)
}

func (p *Parker) park(ctx context.Context, tx any, key string, r poison.Record, d time.Duration) (Outcome, error) {
	// A record that refers to its message, because the broker could not store it again, still has it.
	r.Reference = false
	k := Key{
		Consumer: p.consumer, Name: key, FailedAt: r.LastFailure,
		FirstErrorType: r.ErrorType, FirstError: r.Error, LastErrorType: r.ErrorType, LastError: r.Error,
	}
	if err := p.ledger.Open(ctx, tx, k); err != nil {
		return NotParked, err
	}
	seq, out, err := p.ledger.Reserve(ctx, tx, p.consumer, key, p.limits)
	if err == nil && out != Reserved {
		err = errRollBack
	}
	if err != nil {
		return out, err
	}
	put, err := p.ledger.Put(ctx, tx, Message{Consumer: p.consumer, Key: key, Seq: seq, ID: r.MessageID, Record: r})
	if err == nil && !put {
		err = errRollBack
	}
	if err == nil && d > 0 && seq == firstSeq { // else others are parked, and these decide
		err = p.ledger.Delay(ctx, tx, p.consumer, key, d)
	}
	return out, err
}

// firstSeq is the place of the message that a key's row was made for.
const firstSeq = 1

// again parks the key of a message that failed in the drain.
func (p *Parker) again(ctx context.Context, t *ticket, r poison.Record) error {
	m := t.Message
	m.Record = r
	m.Record.Reference = false
	if _, err := p.ledger.Fail(ctx, m); err != nil {
		return err
	}
	t.done.Store(true)
	return nil
}

func (p *Parker) full(key string) error {
	return fmt.Errorf("%w for another message of key %q: consumer %s has %d messages of it, or %d in all",
		ErrFull, key, p.consumer, p.limits.PerKey, p.limits.PerConsumer)
}

// Middleware is a Watermill message.HandlerMiddleware that holds a message for which there is no room, if the
// policy says so: it runs the handler again, with a backoff, until there is room, the key is not parked any
// more, or the message's context ends; then it returns the error, marked by classify.Stop. Put it between poison
// and retry.
func (p *Parker) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		out, err := h(msg)
		if err == nil || p.policy.Overflow != Hold || !errors.Is(err, ErrFull) {
			return out, err
		}
		return p.hold(msg, h, err)
	}
}

func (p *Parker) hold(msg *message.Message, h message.HandlerFunc, err error) ([]*message.Message, error) {
	f, ctx := flight.Ensure(msg), msg.Context()
	p.held.begin(err)
	defer p.held.end()
	for delay := p.policy.HoldDelay; ; delay = min(2*delay, p.policy.MaxHoldDelay) {
		if !f.Sleep(ctx, delay) {
			return nil, classify.Stop(err)
		}
		msg.SetContext(ctx)
		f.Restore(msg)
		var out []*message.Message
		if out, err = h(msg); err == nil || !errors.Is(err, ErrFull) {
			return out, err
		}
	}
}

// Held is how many deliveries wait for room at this moment, since when there have been some without a break, and
// why the last of them does. A held delivery holds its lane.
func (p *Parker) Held() (n int, since time.Time, err error) {
	p.held.mu.Lock()
	defer p.held.mu.Unlock()
	return p.held.n, p.held.since, p.held.err
}

type held struct {
	mu    sync.Mutex
	n     int
	since time.Time
	err   error
}

func (h *held) begin(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n == 0 {
		h.since = time.Now()
	}
	h.n++
	h.err = err
}

func (h *held) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.n--; h.n == 0 {
		h.since, h.err = time.Time{}, nil
	}
}

// keyOf is the name of the key of a delivery, "" if it has none. Where no intake has given it a lane it is the
// default key.
func keyOf(f *flight.Flight) string {
	if f == nil {
		return ""
	}
	key := f.Key
	if key == "" && f.Place == nil {
		key = ordering.DefaultKey(f.Original)
	}
	if key == "" {
		return ""
	}
	return Name(key)
}

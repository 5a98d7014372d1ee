package parking

import (
	"errors"
	"fmt"
	"time"
)

// The defaults of [Policy].
const (
	DefaultMaxPerKey    = 10_000
	DefaultMaxMessages  = 100_000
	DefaultPoll         = time.Second
	DefaultConcurrency  = 16
	DefaultLease        = time.Minute
	DefaultHoldDelay    = time.Second
	DefaultMaxHoldDelay = 30 * time.Second
)

// Overflow says what becomes of a message that should be parked and for which there is no room.
type Overflow string

// The ways to overflow. In both nothing is lost.
const (
	// Hold keeps the message un-acked and its lane with it, and tries again until there is room or its
	// key is not parked any more. Order is kept. Un-acked messages of the key fill the consumer's
	// window, and its reading stops: back-pressure. The default.
	Hold Overflow = "hold"

	// DeadLetter sends the message to the dead-letter topic. Its order against the other messages of its key is
	// lost; the rest of the consumer goes on.
	DeadLetter Overflow = "deadletter"
)

// Policy is how a consumer parks. Zero values are the defaults.
type Policy struct {
	// MaxPerKey is how many messages of one key can be parked, default 10,000. MaxMessages is how many of the
	// consumer can be in all, default 100,000; concurrent messages can exceed it by their number.
	MaxPerKey, MaxMessages int

	// Overflow says what happens beyond that. Default Hold.
	Overflow Overflow

	// Poll is how often a replica looks for released keys, default 1 s.
	Poll time.Duration

	// Concurrency is how many released keys a replica drains at once, default 16. The messages also need a place
	// among those that the consumer handles at once.
	Concurrency int

	// Lease is for how long a released key is left to the replica that drains it, from each message on;
	// default 1 min. It only spares the others the work: a lease that ends too early harms nothing.
	Lease time.Duration

	// HoldDelay is the delay after the first refusal for lack of room, default 1 s; it doubles up to
	// MaxHoldDelay, default 30 s. A message that failed in the drain waits as long before it is tried again,
	// unless its key is parked.
	HoldDelay, MaxHoldDelay time.Duration
}

// Validate reports every field that makes no sense, with its value.
func (p Policy) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
		shown any
	}{
		{"MaxPerKey", int64(p.MaxPerKey), p.MaxPerKey},
		{"MaxMessages", int64(p.MaxMessages), p.MaxMessages},
		{"Poll", int64(p.Poll), p.Poll},
		{"Concurrency", int64(p.Concurrency), p.Concurrency},
		{"Lease", int64(p.Lease), p.Lease},
		{"HoldDelay", int64(p.HoldDelay), p.HoldDelay},
		{"MaxHoldDelay", int64(p.MaxHoldDelay), p.MaxHoldDelay},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("parking.Policy.%s is %v: want more than 0, or 0 for the default", f.name, f.shown))
		}
	}
	switch p.Overflow {
	case "", Hold, DeadLetter:
	default:
		errs = append(errs, fmt.Errorf("parking.Policy.Overflow is %q: want %q or %q", p.Overflow, Hold, DeadLetter))
	}
	if d := p.withDefaults(); len(errs) == 0 {
		if d.MaxPerKey > d.MaxMessages {
			errs = append(errs, fmt.Errorf("parking.Policy.MaxPerKey is %d: it is above MaxMessages, %d", d.MaxPerKey, d.MaxMessages))
		}
		if d.HoldDelay > d.MaxHoldDelay {
			errs = append(errs, fmt.Errorf("parking.Policy.HoldDelay is %v: it is above MaxHoldDelay, %v", d.HoldDelay, d.MaxHoldDelay))
		}
	}
	return errors.Join(errs...)
}

func (p Policy) withDefaults() Policy {
	if p.MaxMessages == 0 {
		p.MaxMessages = max(DefaultMaxMessages, p.MaxPerKey)
	}
	if p.MaxPerKey == 0 {
		p.MaxPerKey = min(DefaultMaxPerKey, p.MaxMessages)
	}
	p.Poll = or(p.Poll, DefaultPoll)
	p.Concurrency = or(p.Concurrency, DefaultConcurrency)
	p.Lease = or(p.Lease, DefaultLease)
	if p.MaxHoldDelay == 0 {
		p.MaxHoldDelay = max(DefaultMaxHoldDelay, p.HoldDelay)
	}
	p.HoldDelay = or(p.HoldDelay, min(DefaultHoldDelay, p.MaxHoldDelay))
	p.Overflow = or(p.Overflow, Hold)
	return p
}

// or returns v, or what it defaults to when it is zero.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

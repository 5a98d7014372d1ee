package parking

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
)

// maxMoved bounds the transactions for one message that find the key's row gone in the moment they lock it.
const maxMoved = 10

var (
	// ErrFull is wrapped by errors about a message for which there is no room.
	ErrFull = errors.New("parking: there is no room")

	// ErrCannotPark says that a store is none of stores/* that can park.
	ErrCannotPark = errors.New("parking: the store cannot park")

	// errRollBack ends a transaction in which nothing was to be done.
	errRollBack = errors.New("parking: roll back")

	errMoved = errors.New("parking: the key was parked and drained again and again meanwhile")
)

// Store is an inbox of a consumer that parks: a message whose key is parked is appended to it instead of being
// handled, and one that comes from a [Source] is handled and taken out of its key in one transaction. It is safe
// for concurrent use.
type Store[Tx any] struct {
	inbox.Store[Tx]
	*Parker
}

// Wrap returns the store of consumer that parks by policy. The error wraps [ErrCannotPark] if store, or what
// inbox.Map made it of, is no [Provider], or names the field of the policy that makes no sense.
func Wrap[Tx any](store inbox.Store[Tx], consumer string, policy Policy) (*Store[Tx], error) {
	if store == nil {
		return nil, errors.New("parking: the store is nil")
	}
	provider, ok := inbox.Base(store).(Provider)
	if !ok {
		return nil, fmt.Errorf("%w: %T; use one of stores/pgxstore, stores/sqlstore or stores/sqlite", ErrCannotPark, inbox.Base(store))
	}
	p, err := newParker(provider.Parking(), consumer, policy)
	if err != nil {
		return nil, err
	}
	p.once = func(ctx context.Context, c inbox.Claim, fn func(context.Context, any) error) (bool, error) {
		return store.Once(ctx, c, func(ctx context.Context, tx Tx) error {
			return fn(ctx, inbox.BaseTx(ctx, store, tx))
		})
	}
	return &Store[Tx]{Store: store, Parker: p}, nil
}

// Unwrap returns the store that s was made of.
func (s *Store[Tx]) Unwrap() inbox.Database { return s.Store }

// Once implements inbox.Store. For a message that is appended it returns true and gives the receipt
// flight.Parked; without room it returns an error that wraps [ErrFull], marked by classify.Stop if the policy is Hold, else permanent.
func (s *Store[Tx]) Once(ctx context.Context, c inbox.Claim, fn func(context.Context, Tx) error) (bool, error) {
	f := flight.From(ctx)
	if t := ticketOf(ctx); t != nil {
		return s.drain(ctx, f, t, fn)
	}
	key := keyOf(f)
	if key == "" {
		return s.Store.Once(ctx, c, fn)
	}
	for range maxMoved {
		out := NotParked
		done, err := s.Store.Once(ctx, c, func(ctx context.Context, tx Tx) error {
			var err error
			if out, err = s.append(ctx, inbox.BaseTx(ctx, s.Store, tx), f, c, key); err != nil || out != NotParked {
				return err
			}
			return fn(ctx, tx)
		})
		switch {
		case out == Moved && errors.Is(err, errRollBack):
			continue
		case out == Reserved && errors.Is(err, errRollBack): // it is parked already, and the inbox has forgotten its claim
			return false, nil
		case out == Reserved && done:
			flight.Give(ctx, flight.Parked)
		}
		return done, err
	}
	return false, fmt.Errorf("append to key %q: %w", key, errMoved)
}

// append adds the message to its key if that is parked.
func (s *Store[Tx]) append(ctx context.Context, tx any, f *flight.Flight, c inbox.Claim, key string) (Outcome, error) {
	seq, out, err := s.ledger.Reserve(ctx, tx, s.consumer, key, s.limits)
	switch {
	case err != nil:
		return out, err
	case out == Moved:
		return out, errRollBack
	case out == Full && s.policy.Overflow == Hold:
		return out, classify.Stop(s.full(key)) // no failure of the message; Middleware holds it
	case out == Full:
		return out, classify.Permanent(s.full(key))
	case out == NotParked:
		return out, nil
	}
	record, _ := poison.Arrival(f) // f is not nil: there is a key
	record.MessageID = c.ID
	put, err := s.ledger.Put(ctx, tx, Message{Consumer: s.consumer, Key: key, Seq: seq, ID: c.ID, Record: record})
	if err == nil && !put {
		err = errRollBack
	}
	return out, err
}

// drain handles a released message. Its own claim was made when it was parked, so this transaction has one that
// nobody else knows; what makes its effect happen once is that it leaves its place. Take makes its own claim anew: the
// inbox is to remember it from its effect on.
func (s *Store[Tx]) drain(ctx context.Context, f *flight.Flight, t *ticket, fn func(context.Context, Tx) error) (bool, error) {
	if f != nil {
		f.ID = t.ID // for the ids of the events that the handler makes
	}
	gone := false
	c := inbox.Claim{Consumer: s.consumer, ID: "parking:" + watermill.NewUUID()}
	done, err := s.Store.Once(ctx, c, func(ctx context.Context, tx Tx) error {
		taken, err := s.ledger.Take(ctx, inbox.BaseTx(ctx, s.Store, tx), t.Message)
		if err != nil {
			return err
		}
		if gone = !taken; gone {
			return errRollBack
		}
		return fn(ctx, tx)
	})
	if gone && errors.Is(err, errRollBack) {
		t.done.Store(true) // another replica was faster, or an operator
		return false, nil
	}
	if done {
		t.done.Store(true)
	}
	return done, err
}

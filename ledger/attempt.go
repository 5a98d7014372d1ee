package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

// suspectCount is how many deliveries make a message a suspect where there is no ledger yet.
const suspectCount = 3

// errDraining ends the wait of an attempt that has not begun when its intake drains.
var errDraining = errors.New("ledger: the attempt did not begin: the intake drains")

// Middleware returns the stage of one consumer. It stands inside the retries, so that each attempt is a start of
// its own and a message that rests between two holds up nobody, and outside everything that may run the
// user's code; once around a handler. It panics if consumer is not a name: 1 to 255 bytes.
//
// Before Begin and after End it lets everything pass.
func (l *Ledger) Middleware(consumer string) message.HandlerMiddleware {
	if !isName(consumer) {
		panic(fmt.Sprintf("ledger: Middleware(%q): want the consumer's name, 1 to 255 bytes of UTF-8", consumer))
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if mode(l.mode.Load()) != quiet {
				return l.attempt(consumer, msg, h)
			}
			return l.together(msg, h)
		}
	}
}

// together runs an attempt among others.
func (l *Ledger) together(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	if l.gate.count.Add(1) <= 0 { // a suspect is alone
		l.gate.leave()
		if err := l.enter(msg, l.gate.enter); err != nil {
			return nil, err
		}
	}
	defer l.gate.leave()
	return h(msg)
}

// enter waits at the gate for as long as the message may be handled.
func (l *Ledger) enter(msg *message.Message, enter func(context.Context, <-chan struct{}) bool) error {
	ctx := msg.Context()
	var drain <-chan struct{}
	if f := flight.From(ctx); f != nil && f.Place != nil {
		drain = f.Place.Draining()
	}
	if enter(ctx, drain) {
		return nil
	}
	if ctx.Err() != nil {
		return classify.Stop(context.Cause(ctx))
	}
	return classify.Stop(errDraining)
}

// attempt is an attempt while there is something to watch.
func (l *Ledger) attempt(consumer string, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	f := flight.Ensure(msg)
	key := Key{Consumer: consumer, ID: f.ID}
	if key.ID == "" {
		id, err := event.Identify(msg, f.Topic)
		if err != nil { // nothing tells it from others
			l.counts.unrecorded.Add(1)
			return l.together(msg, h)
		}
		key.ID = id
	}
	if l.suspects.has(key) || mode(l.mode.Load()) == probing && f.Delivery.Count >= suspectCount {
		return l.alone(key, msg, h)
	}
	return l.recorded(key, msg, h)
}

// recorded runs an attempt among others, its start recorded if that is due.
func (l *Ledger) recorded(key Key, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	if err := l.enter(msg, l.gate.enter); err != nil {
		return nil, err
	}
	entered := true
	leave := func() {
		if entered {
			entered = false
			l.gate.leave()
		}
	}
	defer leave()
	if mode(l.mode.Load()) == recording {
		// Inside the gate: while a suspect is alone, nothing else leaves a start behind.
		suspect, err := l.books.begin(key)
		switch {
		case err != nil:
			l.counts.unrecorded.Add(1)
		case len(suspect.Starts) > 0:
			l.suspects.add(key)
			leave()
			if suspect.Convicted() {
				return nil, l.convict(msg.Context(), suspect)
			}
			return l.alone(key, msg, h)
		default:
			l.counts.recorded.Add(1)
			defer l.books.done(key)
		}
		if ctx := msg.Context(); ctx.Err() != nil {
			return nil, classify.Stop(context.Cause(ctx))
		}
	}
	return h(msg)
}

// alone runs the attempt of a suspect: nothing else runs, and its start is counted before.
func (l *Ledger) alone(key Key, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	if err := l.enter(msg, l.gate.enterAlone); err != nil {
		return nil, err
	}
	defer l.gate.leaveAlone()
	suspect, err := l.books.alone(key)
	switch {
	case err != nil: // the ledger is off: alone all the same
		l.counts.unrecorded.Add(1)
	case suspect.Convicted():
		return nil, l.convict(msg.Context(), suspect)
	default:
		l.counts.alone.Add(1)
	}
	succeeded := false
	defer func() { // after an error too, the start may have been written
		l.books.survived(key, succeeded)
		if succeeded {
			l.counts.cleared.Add(1)
			l.suspects.remove(key)
		}
	}()
	if ctx := msg.Context(); ctx.Err() != nil {
		return nil, classify.Stop(context.Cause(ctx))
	}
	out, err := h(msg)
	succeeded = err == nil
	return out, err
}

func (l *Ledger) convict(ctx context.Context, s Suspect) error {
	l.counts.convicted.Add(1)
	err := &CrashLoopError{Consumer: s.Consumer, ID: s.ID, Starts: s.Starts}
	l.config.Logger.LogAttrs(ctx, slog.LevelError, "a message kills the process: it is not started again",
		slog.String("consumer", s.Consumer), slog.String("id", s.ID), slog.Any("error", err))
	return classify.Permanent(err)
}

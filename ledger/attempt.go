package ledger

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

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

// keyOf names a message that was dead-lettered so many times: one that is redriven, after a repair, is another to
// the ledger, whatever is known of the one before.
func keyOf(consumer, id string, deaths int) Key {
	if deaths > 0 {
		id += " redriven " + strconv.Itoa(deaths)
	}
	if len(id) > maxNameBytes {
		id = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
	}
	return Key{Consumer: consumer, ID: id}
}

// deathsOf is how often a redriven message was dead-lettered. On a router of the user's own its metadata say so; they are not believed,
// only told apart.
func deathsOf(f *flight.Flight, msg *message.Message) int {
	if f.Deaths > 0 {
		return f.Deaths
	}
	deaths, err := strconv.Atoi(msg.Metadata[metaDeaths])
	if err != nil || deaths < 0 {
		return 0
	}
	return deaths
}

// metaDeaths is poison.MetaDeaths.
const metaDeaths = event.MetaPrefix + "dlt_deaths"

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
	id := f.ID
	if id == "" {
		var err error
		if id, err = event.Identify(msg, f.Topic); err != nil { // nothing tells it from others
			l.counts.unrecorded.Add(1)
			return l.together(msg, h)
		}
	}
	key := keyOf(consumer, id, deathsOf(f, msg))
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
	inside := true
	leave := func() {
		if inside {
			inside = false
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
		case suspect.known():
			l.suspects.add(key)
			leave()
			if suspect.Convicted() {
				return nil, l.convict(msg.Context(), suspect)
			}
			if suspect.Elsewhere { // alone asks again
				if err := l.rest(msg); err != nil {
					return nil, err
				}
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

// A message that another process has, as far as is known, waits until that one has returned it or is taken for dead;
// else each process that died without being missed yet would add a start. It looks rests times, for twice the TTL:
// longer than it takes to miss a process.
const rests = 12

// rest waits between two looks. The message keeps its lane, nothing else.
func (l *Ledger) rest(msg *message.Message) error {
	ctx := msg.Context()
	if flight.Ensure(msg).Sleep(ctx, 2*l.config.TTL/rests) {
		return nil
	}
	if ctx.Err() != nil {
		return classify.Stop(context.Cause(ctx))
	}
	return classify.Stop(errDraining)
}

// alone runs the attempt of a suspect: nothing else runs, and its start is counted before.
func (l *Ledger) alone(key Key, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	for look := 1; ; look++ {
		out, elsewhere, err := l.tryAlone(key, look >= rests, msg, h)
		if !elsewhere {
			return out, err
		}
		if err := l.rest(msg); err != nil {
			return nil, err
		}
	}
}

// tryAlone reports elsewhere, and has not run the attempt, if another process has the message, unless force is set.
func (l *Ledger) tryAlone(key Key, force bool, msg *message.Message, h message.HandlerFunc) (out []*message.Message, elsewhere bool, err error) {
	if err := l.enter(msg, l.gate.enterAlone); err != nil {
		return nil, false, err
	}
	defer l.gate.leaveAlone()
	suspect, err := l.books.alone(key, force)
	switch {
	case err != nil: // the ledger is off: alone all the same
		l.counts.unrecorded.Add(1)
	case suspect.Convicted():
		return nil, false, l.convict(msg.Context(), suspect)
	case suspect.Elsewhere && !force:
		return nil, true, nil
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
		return nil, false, classify.Stop(context.Cause(ctx))
	}
	out, err = h(msg)
	succeeded = err == nil
	return out, false, err
}

func (l *Ledger) convict(ctx context.Context, s Suspect) error {
	l.counts.convicted.Add(1)
	err := &CrashLoopError{Consumer: s.Consumer, ID: s.ID, Starts: s.Starts}
	l.config.Logger.LogAttrs(ctx, slog.LevelError, "a message kills the process: it is not started again",
		slog.String("consumer", s.Consumer), slog.String("id", s.ID), slog.Any("error", err))
	return classify.Permanent(err)
}

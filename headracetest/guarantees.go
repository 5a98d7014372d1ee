package headracetest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/internal/lab"
)

// errPlanned is the failure that is planned for an attempt.
var errPlanned = errors.New("headracetest: planned failure")

func (j *judge) effect() {
	j.Helper()
	j.want()
}

func (j *judge) once() {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()
	key := newKey()
	msg := j.event(key, 1)
	l.Deliver(nil, msg)
	state, outputs := j.state(key), l.Outputs()
	l.Deliver(nil, msg)
	j.noDeadLetters(l, "the second delivery")
	if again := j.state(key); again != state {
		j.broken("after the second delivery the state changed from %q to %q", state, again)
	}
	if more := l.Outputs()[len(outputs):]; len(more) > 0 {
		j.broken("the second delivery published %s, under new ids", list(typesOf(more)))
	}
}

func (j *judge) together() {
	j.Helper()
	if differs := j.want().differs; differs != "" {
		j.notChecked(differs)
		return
	}
	l := j.open()
	defer l.Close()
	key := newKey()
	l.DeliverTogether(j.event(key, 1))
	j.noDeadLetters(l, "one of the two deliveries")
	j.asAfterOne(l, key, "after both")
}

func (j *judge) version() {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()

	key := newKey()
	older, newer := j.event(key, 1), j.event(key, 2)
	if older.UUID == newer.UUID {
		j.Fatalf("Spec.Event made version 1 and 2 with the same UUID, %q: each event has an id of its own", older.UUID)
	}
	l.Deliver(nil, older)
	first := j.state(key)
	l.Deliver(nil, newer)
	if j.state(key) == first {
		j.broken("a newer version after an older changes nothing: the state stayed %q", first)
	}

	key = newKey()
	older, newer = j.event(key, 1), j.event(key, 2)
	l.Deliver(nil, newer)
	state := j.state(key)
	l.Deliver(nil, older)
	j.noDeadLetters(l, "a version")
	if after := j.state(key); after != state {
		j.broken("version 1 after version 2 changed the state from %q to %q", state, after)
	}
	l.Deliver(nil, j.event(key, 3))
	if j.state(key) == state {
		j.broken("version 3 after versions 2 and 1 changes nothing: the state stayed %q", state)
	}
}

func (j *judge) killBefore() {
	j.Helper()
	j.killed(lab.BeforeCommit, "before its commit")
}

func (j *judge) killAfter() {
	j.Helper()
	j.killed(lab.AfterCommit, "after its commit and before its ack")
}

func (j *judge) killed(at lab.Moment, when string) {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()
	key := newKey()
	before := j.state(key)
	msg := j.event(key, 1)
	l.Kill(at, msg)
	between := j.state(key)
	l.Restart()
	j.noDeadLetters(l, "the event")
	after := j.state(key)
	switch {
	case j.spec.State != nil && after == before:
		j.broken("a process was killed %s, and the next one did nothing: the effect is lost, the state stayed %q", when, after)
	case between != before && after != between:
		j.broken("a process was killed %s, when the state was %q already; the next one changed it to %q", when, between, after)
	default:
		j.asAfterOne(l, key, "after the next process had it")
	}
}

func (j *judge) retry() {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()
	key := newKey()
	before := j.state(key)

	var (
		mu       sync.Mutex
		between  string
		stateErr error
	)
	l.Deliver(&lab.Plan{
		Begin: func(attempt int) {
			if attempt != 2 {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			between, stateErr = j.tryState(key)
		},
		Fail: func(attempt int) error {
			if attempt == 1 {
				return classify.Transient(errPlanned)
			}
			return nil
		},
	}, j.event(key, 1))
	mu.Lock()
	defer mu.Unlock()
	if stateErr != nil {
		j.Fatalf("Spec.State(%q): %v", key, stateErr)
	}
	j.noDeadLetters(l, "an event whose first attempt failed")
	after := j.state(key)
	switch {
	case j.spec.State != nil && after == before:
		j.broken("the first attempt failed, and the second did nothing: the effect is lost, the state stayed %q", after)
	case between != before && after != between:
		j.broken("the first attempt failed and left the state %q, the second changed it to %q", between, after)
	default:
		j.asAfterOne(l, key, "after the second attempt")
	}
}

func (j *judge) garbage() {
	j.Helper()
	key := newKey()
	j.refused(key, Garbage(j.event(key, 1)))
}

func (j *judge) poison() {
	j.Helper()
	key := newKey()
	msg, err := j.spec.Poison(j.context(), key)
	j.usable(fmt.Sprintf("Spec.Poison(%q)", key), msg, err)
	j.refused(key, msg)
}

// refused delivers msg about key, which must be dead-lettered as it is, and then an event about another key.
func (j *judge) refused(key string, msg *message.Message) {
	j.Helper()
	want := j.want()
	l := j.open()
	defer l.Close()
	nextKey := newKey()
	before, nextBefore := j.state(key), j.state(nextKey)
	next := j.event(nextKey, 1)
	l.Deliver(nil, msg, next)

	found := false
	for _, dead := range l.DeadLetters() {
		if dead.UUID != msg.UUID {
			continue
		}
		found = true
		if !bytes.Equal(dead.Payload, msg.Payload) {
			j.broken("the dead letter holds %d bytes that are not those of the message, which has %d", len(dead.Payload), len(msg.Payload))
		}
	}
	for _, a := range l.Attempts() {
		if a.UUID == msg.UUID && a.Taken() {
			j.broken("the handler of consumer %s took it for a success: it is lost without a trace", a.Consumer)
		}
	}
	if !found && !j.Failed() {
		j.broken("the message %s", failure(l, msg))
	}
	if after := j.state(key); after != before {
		j.broken("the message that was refused changed the state from %q to %q", before, after)
	}
	if reason := failure(l, next); reason != "" {
		j.broken("the next event %s", reason)
	} else if j.spec.State != nil && j.state(nextKey) == nextBefore {
		j.broken("the next event did nothing: its state stayed %q", nextBefore)
	}
	if n := len(l.Outputs()); want.differs == "" && n != len(want.types) {
		j.broken("the service has published %s, want %s, for the next event", list(typesOf(l.Outputs())), list(want.types))
	}
}

func (j *judge) oldSchema() {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()
	old := func(key string) []*message.Message {
		j.Helper()
		msgs, err := j.spec.Old(j.context(), key)
		if err != nil {
			j.Fatalf("Spec.Old(%q): %v", key, err)
		}
		if len(msgs) == 0 {
			j.Fatalf("Spec.Old(%q) returned no message", key)
		}
		return msgs
	}
	for i := range old(newKey()) {
		key := newKey() // each form alone: they are the same fact
		msg := old(key)[i]
		j.usable(fmt.Sprintf("Spec.Old(%q), message %d", key, i+1), msg, nil)
		before, outputs := j.state(key), len(l.Outputs())
		l.Deliver(nil, msg)
		switch reason := failure(l, msg); {
		case reason != "":
			j.broken("the older form %d %s", i+1, reason)
		case j.spec.State != nil && j.state(key) == before:
			j.broken("the older form %d did nothing: the state stayed %q", i+1, before)
		case j.spec.State == nil && len(l.Outputs()) == outputs:
			j.broken("the older form %d did nothing: nothing was published", i+1)
		}
	}
}

func (j *judge) outbox() {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()
	l.Deliver(nil, j.event(newKey(), 1))
	got, want := typesOf(l.Outputs()), slices.Clone(j.spec.Publishes)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		hint := ""
		if len(got) == 0 {
			hint = relayHint(j.spec)
		}
		j.broken("the service has published %s, want %s%s", list(got), list(want), hint)
	}
}

func (j *judge) rollback() {
	j.Helper()
	j.want()
	l := j.open()
	defer l.Close()
	key := newKey()
	before := j.state(key)
	l.Deliver(&lab.Plan{Fail: func(int) error { return classify.Permanent(errPlanned) }}, j.event(key, 1))
	if !slices.ContainsFunc(l.Attempts(), func(a lab.Attempt) bool { return a.InTx }) {
		j.notChecked("the handler has no transaction (runtime.HandleTx) that could be rolled back")
		return
	}
	if out := l.Outputs(); len(out) > 0 {
		j.broken("the transaction was rolled back, and %s was published: add it to the outbox in the handler's transaction", list(typesOf(out)))
	}
	if after := j.state(key); after != before {
		j.broken("the transaction was rolled back, and the state changed from %q to %q", before, after)
	}
}

func (j *judge) schema() {
	j.Helper()
	j.want()
	schemas, err := compile(j.spec.Schemas)
	if err != nil {
		j.Fatal(err)
	}
	l := j.open()
	defer l.Close()
	msg := j.event(newKey(), 1)
	l.Deliver(nil, msg)
	msgs := []*message.Message{msg}
	for _, out := range l.Outputs() {
		msgs = append(msgs, out.Message)
	}
	seen := map[string]bool{}
	for _, m := range msgs {
		envelope, err := event.Parse(m)
		if err != nil {
			j.broken("message %s has no valid envelope: %v", m.UUID, err)
			continue
		}
		if envelope.Data == nil {
			continue // a tombstone
		}
		seen[envelope.Type] = true
		s, known := schemas[envelope.Type]
		if !known {
			j.notChecked(fmt.Sprintf("Spec.Schemas has none for the type %q", envelope.Type))
			continue
		}
		if err := s.validate(envelope.Data); err != nil {
			j.broken("an event of type %q is not valid: %v", envelope.Type, err)
		}
	}
	for eventType := range schemas {
		if !seen[eventType] {
			j.notChecked(fmt.Sprintf("no event of the type %q of Spec.Schemas was seen", eventType))
		}
	}
}

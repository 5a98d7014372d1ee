package headracetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/internal/lab"
)

// Consumer checks every [Guarantee] of a service, each in a subtest of its name, and tells in words which does not hold. One that
// spec says nothing about is not checked; the log names it and the field. Where not even [GuaranteeEffect] holds, the
// others are not tried.
func Consumer(t *testing.T, spec Spec) {
	t.Helper()
	consumer(t, spec, func(name string, f func(testing.TB)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper() // what fails is said of the line that called Consumer
			f(t)
		})
	})
}

// consumer is Consumer with any way to run a subtest.
func consumer(t testing.TB, spec Spec, subtest func(name string, f func(testing.TB))) {
	t.Helper()
	if err := spec.check(true); err != nil {
		t.Fatal(err)
	}
	ref := new(reference)
	for _, c := range checks {
		subtest(string(c.guarantee), func(t testing.TB) {
			t.Helper()
			(&judge{TB: t, spec: &spec, guarantee: c.guarantee, ref: ref}).judge(c)
		})
		if ref.failed {
			t.Logf("not checked: the other guarantees, since this one does not hold: %s", GuaranteeEffect)
			return
		}
	}
}

// check is how a guarantee is checked.
type check struct {
	guarantee Guarantee
	// lacks names what spec does not tell; "": it can be checked.
	lacks func(*Spec) string
	run   func(*judge)
}

var checks = []check{
	{GuaranteeEffect, nil, (*judge).effect},
	{GuaranteeOnce, nil, (*judge).once},
	{GuaranteeTogether, nil, (*judge).together},
	{GuaranteeVersion, lacksVersions, (*judge).version},
	{GuaranteeKillBefore, nil, (*judge).killBefore},
	{GuaranteeKillAfter, nil, (*judge).killAfter},
	{GuaranteeRetry, nil, (*judge).retry},
	{GuaranteeGarbage, nil, (*judge).garbage},
	{GuaranteePoison, func(s *Spec) string { return lacks(s.Poison == nil, "Spec.Poison is nil") }, (*judge).poison},
	{GuaranteeOldSchema, func(s *Spec) string { return lacks(s.Old == nil, "Spec.Old is nil") }, (*judge).oldSchema},
	{GuaranteeOutbox, lacksPublishes, (*judge).outbox},
	{GuaranteeRollback, lacksPublishes, (*judge).rollback},
	{GuaranteeSchema, func(s *Spec) string { return lacks(len(s.Schemas) == 0, "Spec.Schemas is empty") }, (*judge).schema},
}

func lacks(missing bool, what string) string {
	if missing {
		return what
	}
	return ""
}

func lacksVersions(s *Spec) string {
	if s.Versioned {
		return lacks(s.State == nil, "Spec.State is nil")
	}
	return "Spec.Versioned is false"
}

func lacksPublishes(s *Spec) string { return lacks(len(s.Publishes) == 0, "Spec.Publishes is empty") }

// judge checks one guarantee.
type judge struct {
	testing.TB
	spec      *Spec
	guarantee Guarantee
	ref       *reference
}

func (j *judge) judge(c check) {
	j.Helper()
	if reason, waived := j.spec.Waive[c.guarantee]; waived {
		j.Logf("not checked: %s: waived: %s", c.guarantee, reason)
		return
	}
	if c.lacks != nil {
		if what := c.lacks(j.spec); what != "" {
			j.notChecked(what)
			return
		}
	}
	c.run(j)
}

// broken reports that the guarantee does not hold.
func (j *judge) broken(format string, args ...any) {
	j.Helper()
	j.Errorf("guarantee broken: %s: %s", j.guarantee, fmt.Sprintf(format, args...))
}

// notChecked reports that the guarantee, or a part of it, could not be checked.
func (j *judge) notChecked(reason string) {
	j.Helper()
	if j.spec.Strict {
		j.Errorf("not checked: %s: %s; Spec.Strict wants it checked, or waived with a reason in Spec.Waive", j.guarantee, reason)
		return
	}
	j.Logf("not checked: %s: %s", j.guarantee, reason)
}

func (j *judge) open() *lab.Lab {
	j.Helper()
	return lab.Open(j.TB, j.spec.lab())
}

// newKey returns a key that no check had before, in this database.
func newKey() string { return uuid.NewString() }

func (j *judge) context() context.Context {
	return event.ContextWithSource(j.Context(), "/headracetest")
}

// event makes the n-th event about key.
func (j *judge) event(key string, n int) *message.Message {
	j.Helper()
	msg, err := j.spec.Event(j.context(), key, n)
	j.usable(fmt.Sprintf("Spec.Event(%q, %d)", key, n), msg, err)
	return msg
}

// usable ends the test if what a function of the spec has made cannot be delivered.
func (j *judge) usable(call string, msg *message.Message, err error) {
	j.Helper()
	switch {
	case err != nil:
		j.Fatalf("%s: %v", call, err)
	case msg == nil:
		j.Fatalf("%s returned no message", call)
	case msg.UUID == "":
		j.Fatalf("%s returned a message without a UUID, by which it is recognised", call)
	}
}

// state returns the state of key; "" if nothing tells it.
func (j *judge) state(key string) string {
	j.Helper()
	state, err := j.tryState(key)
	if err != nil {
		j.Fatalf("Spec.State(%q): %v", key, err)
	}
	return state
}

func (j *judge) tryState(key string) (string, error) {
	if j.spec.State == nil {
		return "", nil
	}
	return j.spec.State(j.Context(), key)
}

// reference is what one delivery of one event leads to.
type reference struct {
	known, failed bool
	// state is without the key itself, types are sorted.
	state string
	types []string
	// differs says why two keys cannot be compared; "": they can.
	differs string
}

// want returns the reference, which it makes the first time. If an event takes no effect the test ends.
func (j *judge) want() *reference {
	j.Helper()
	r := j.ref
	if r.known {
		return r
	}
	r.failed = true // unless we come to the end
	l := j.open()
	defer l.Close()
	first, second := newKey(), newKey()
	r.state, r.types = j.oneDelivery(l, first)
	state, types := j.oneDelivery(l, second)
	switch {
	case state != r.state:
		r.differs = fmt.Sprintf("Spec.State differs between two keys to which the same happened: %q and %q; leave out generated ids and times", r.state, state)
	case !slices.Equal(types, r.types):
		r.differs = fmt.Sprintf("of two keys to which the same happened one led to %s and the other to %s", list(r.types), list(types))
	}
	r.known, r.failed = true, false
	return r
}

// oneDelivery delivers the first event about key and returns what came of it.
func (j *judge) oneDelivery(l *lab.Lab, key string) (state string, types []string) {
	j.Helper()
	before, published := j.state(key), len(l.Outputs())
	msg := j.event(key, 1)
	l.Deliver(nil, msg)
	if reason := failure(l, msg); reason != "" {
		j.broken("the event %s", reason)
		j.FailNow()
	}
	after := j.state(key)
	types = typesOf(l.Outputs()[published:])
	slices.Sort(types)
	if j.spec.State != nil && after == before {
		j.broken("the state stayed %q", after)
		j.FailNow()
	}
	if j.spec.State == nil && len(types) == 0 {
		j.broken("nothing was published%s", relayHint(j.spec))
		j.FailNow()
	}
	return withoutKey(after, key), types
}

// withoutKey makes the states of different keys comparable.
func withoutKey(state, key string) string { return strings.ReplaceAll(state, key, "<key>") }

// failure tells what went wrong with a message; "" if a handler has taken it.
func failure(l *lab.Lab, msg *message.Message) string {
	for _, dead := range l.DeadLetters() {
		if dead.UUID == msg.UUID {
			return "was dead-lettered: " + dead.Error
		}
	}
	reason := "came to no handler"
	for _, a := range l.Attempts() {
		if a.UUID != msg.UUID {
			continue
		}
		switch {
		case a.Taken():
			return ""
		case a.Ignored():
			eventType, _ := event.TypeOf(msg) // a bad envelope would be a dead letter
			reason = fmt.Sprintf("was ignored: consumer %s has no handler for its type, %q", a.Consumer, eventType)
		case a.Err != nil:
			reason = "was dropped: " + a.Err.Error()
		}
	}
	return reason
}

// relayHint says what may be missing where nothing is published.
func relayHint(spec *Spec) string {
	if spec.Outbox != nil {
		return ""
	}
	return "; if the handler adds to an outbox, let Service relay it, or set Spec.Outbox"
}

// asAfterOne checks that everything is as after one delivery of the first event about key, which is all that was
// delivered in l. when begins a sentence.
func (j *judge) asAfterOne(l *lab.Lab, key, when string) {
	j.Helper()
	want := j.want()
	if want.differs != "" {
		return
	}
	if state := withoutKey(j.state(key), key); state != want.state {
		j.broken("%s the state is %q, want %q as after one delivery", when, state, want.state)
	}
	types := typesOf(l.Outputs())
	slices.Sort(types)
	if !slices.Equal(types, want.types) {
		j.broken("%s the service has published %s, want %s as after one delivery", when, list(types), list(want.types))
	}
}

// noDeadLetters checks that nothing was dead-lettered; what names the message.
func (j *judge) noDeadLetters(l *lab.Lab, what string) {
	j.Helper()
	if dead := l.DeadLetters(); len(dead) > 0 {
		j.broken("%s was dead-lettered: %s", what, dead[0].Error)
	}
}

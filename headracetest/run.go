package headracetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/internal/lab"
	"github.com/headrace-go/headrace/poison"
)

// Result is what came of a scenario, beside what is in the database.
type Result struct {
	// Published is what the service published, by topic: each message once, by its UUID, in the order of the first
	// publications. Dead letters are not among it.
	Published map[string][]*message.Message

	// DeadLetters are in the order in which they were stored, each once.
	DeadLetters []poison.Record
}

// Run plays steps one after the other, each until everything is settled: every consumer has acked every message, and the outboxes
// are empty. It ends with an orderly stop of the service. What the service cannot settle, or ends by itself, fails the test at once.
// Of spec it needs Service and Topic, and Outbox as described there.
//
// It runs in a testing/synctest bubble too, if the database was opened in it: SQLite can be.
func Run(t testing.TB, spec Spec, steps ...Step) Result {
	t.Helper()
	if err := spec.check(false); err != nil {
		t.Fatal(err)
	}
	for i, s := range steps {
		if err := s.check(); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
	l := lab.Open(t, spec.lab())
	defer l.Close()
	for _, s := range steps {
		s.play(t, l)
	}
	result := Result{Published: map[string][]*message.Message{}, DeadLetters: l.DeadLetters()}
	for _, out := range l.Outputs() {
		result.Published[out.Topic] = append(result.Published[out.Topic], out.Message)
	}
	return result
}

// Step is one thing that happens to a service.
type Step struct {
	name string
	msgs []*message.Message
	bad  string // what is wrong with the arguments
	play func(testing.TB, *lab.Lab)
}

func (s Step) check() error {
	switch {
	case s.play == nil:
		return fmt.Errorf("it is the zero Step: make one with Deliver")
	case s.bad != "":
		return fmt.Errorf("%s: %s", s.name, s.bad)
	}
	for i, m := range s.msgs {
		if m == nil {
			return fmt.Errorf("%s: message %d is nil", s.name, i+1)
		}
		if m.UUID == "" {
			return fmt.Errorf("%s: message %d has no UUID, by which it is recognised", s.name, i+1)
		}
	}
	return nil
}

// Deliver publishes messages in this order. So keys are interleaved as the arguments are, and Deliver(newer, older) is an older
// version after a newer. Old schema versions and [Garbage] are messages like any other.
func Deliver(msgs ...*message.Message) Step {
	return Step{name: "Deliver", msgs: msgs, play: func(t testing.TB, l *lab.Lab) {
		t.Helper()
		l.Deliver(nil, msgs...)
	}}
}

// Twice publishes msg, and when it is settled, again.
func Twice(msg *message.Message) Step {
	return Step{name: "Twice", msgs: []*message.Message{msg}, play: func(t testing.TB, l *lab.Lab) {
		t.Helper()
		l.Deliver(nil, msg)
		l.Deliver(nil, msg)
	}}
}

// Together gives msg to two processes, whose handling begins at the same moment.
func Together(msg *message.Message) Step {
	return Step{name: "Together", msgs: []*message.Message{msg}, play: func(t testing.TB, l *lab.Lab) {
		t.Helper()
		l.DeliverTogether(msg)
	}}
}

// KilledBeforeCommit publishes msg and kills the process when the handler has succeeded and its transaction is still open. A new process
// then gets it. A handler without a transaction is killed when it has returned.
func KilledBeforeCommit(msg *message.Message) Step {
	return killed("KilledBeforeCommit", lab.BeforeCommit, msg)
}

// KilledAfterCommit publishes msg and kills the process when the effect is committed and before the ack gets through. A new process then
// gets it.
func KilledAfterCommit(msg *message.Message) Step {
	return killed("KilledAfterCommit", lab.AfterCommit, msg)
}

func killed(name string, at lab.Moment, msg *message.Message) Step {
	return Step{name: name, msgs: []*message.Message{msg}, play: func(t testing.TB, l *lab.Lab) {
		t.Helper()
		l.Kill(at, msg)
		l.Restart()
	}}
}

// FailAttempt publishes msg and makes attempt n of its handling fail with err, 1 is the first. The handler runs, and the error comes in the
// place of the COMMIT; where it has no transaction, after it has returned. An attempt that fails by itself, or that finds the
// message handled before, is left as it is.
func FailAttempt(n int, err error, msg *message.Message) Step {
	s := Step{name: "FailAttempt", msgs: []*message.Message{msg}, play: func(t testing.TB, l *lab.Lab) {
		t.Helper()
		l.Deliver(&lab.Plan{Fail: func(attempt int) error {
			if attempt == n {
				return err
			}
			return nil
		}}, msg)
	}}
	switch {
	case n < 1:
		s.bad = fmt.Sprintf("n is %d: want 1 or more", n)
	case err == nil:
		s.bad = "err is nil"
	}
	return s
}

// Garbage returns msg with an id of its own and a payload that no codec reads.
func Garbage(msg *message.Message) *message.Message {
	g := msg.Copy()
	g.UUID = uuid.NewString()
	if g.Metadata.Get(event.MetaID) != "" {
		g.Metadata.Set(event.MetaID, g.UUID)
	}
	g.Payload = message.Payload("\xff\x00 garbage \xfe")
	return g
}

// typesOf names messages by their event types; one that is no CloudEvent by its topic.
func typesOf(outputs []lab.Output) (types []string) {
	for _, out := range outputs {
		t, err := event.TypeOf(out.Message)
		if err != nil || t == "" {
			t = out.Topic
		}
		types = append(types, t)
	}
	return types
}

// list writes names as text.
func list(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}

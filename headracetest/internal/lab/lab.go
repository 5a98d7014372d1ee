// Package lab runs an application's service in a test: on a message server in memory, in processes that can be killed, with
// failures that are planned for single messages. It knows no guarantee and judges nothing: headracetest does.
package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

// Config describes the service. All but Outbox is required.
type Config struct {
	// Service makes the runtime of one process.
	Service func(brokers.Broker) (*runtime.Runtime, error)

	// Topic is where messages are delivered.
	Topic string

	// Outbox is relayed beside what Service relays itself. nil: nothing is.
	Outbox outbox.Source

	// Limit bounds the start and the stop of a process, and the time until everything is settled.
	Limit time.Duration
}

// Lab is one message server and the process that runs on it. It is for the test's goroutine alone: what goes wrong ends the test.
type Lab struct {
	tb      testing.TB
	cfg     Config
	journal *journal
	server  *memory.Broker
	process *process // nil: none runs
	begun   bool
}

// Open makes a lab. Close it in the test's own goroutine, by defer.
func Open(tb testing.TB, cfg Config) *Lab {
	tb.Helper()
	return &Lab{tb: tb, cfg: cfg, journal: newJournal(), server: newServer(tb)}
}

func newServer(tb testing.TB) *memory.Broker {
	tb.Helper()
	server, err := memory.New(memory.Config{})
	if err != nil {
		tb.Fatalf("make the broker: %v", err)
	}
	return server
}

// Close ends the process and the server.
func (l *Lab) Close() {
	l.tb.Helper()
	defer l.shut(l.server)
	p := l.process
	if p == nil {
		return
	}
	l.process = nil
	l.end(p)
}

func (l *Lab) shut(server *memory.Broker) {
	l.tb.Helper()
	if err := server.Close(); err != nil {
		l.tb.Errorf("close the broker: %v", err)
	}
}

// Deliver publishes messages, in their order, and waits until everything is settled: each message by each consumer, and the
// outboxes are empty. plan is that of all of them; nil: nothing goes wrong.
func (l *Lab) Deliver(plan *Plan, msgs ...*message.Message) {
	l.tb.Helper()
	p := l.running()
	l.publish(p, plan, msgs...)
	l.settle(p)
}

// DeliverTogether gives msg to two processes at once, each on a server of its own, whose first attempts begin at the same moment.
func (l *Lab) DeliverTogether(msg *message.Message) {
	l.tb.Helper()
	other := newServer(l.tb)
	defer l.shut(other)
	a, b := l.running(), l.start(other)
	defer l.end(b)
	plan := &Plan{meeting: newMeeting()}
	l.publish(a, plan, msg)
	l.publish(b, plan, msg)
	l.settle(a, b)
}

// Kill delivers msg and kills the process while it handles it. No process runs when it returns. The process is dead to the
// server and to its handlers' contexts at once: no ack and no output gets through. Its goroutines end a little later.
func (l *Lab) Kill(at Moment, msg *message.Message) {
	l.tb.Helper()
	p := l.running()
	l.publish(p, &Plan{kill: at}, msg)
	limit := time.NewTimer(l.cfg.Limit)
	defer limit.Stop()
	select {
	case <-p.link.dead():
	case err := <-p.ended:
		p.ended <- err      // for bury
		if p.link.alive() { // else it ended because of the kill, and both are ready
			l.tb.Fatalf("the service ended by itself: %v", err)
		}
	case <-limit.C:
		l.tb.Fatalf("message %s was not settled within %v%s", msg.UUID, l.cfg.Limit, l.explain())
	}
	l.process = nil
	l.bury(p) //nolint:errcheck // it was killed
}

// Restart starts a process after a kill and waits until everything is settled.
func (l *Lab) Restart() {
	l.tb.Helper()
	l.settle(l.running())
}

// Outputs returns what the service published, dead letters left out: each message once, in the order of their first
// publications.
func (l *Lab) Outputs() []Output { return l.journal.allOutputs() }

// DeadLetters returns the dead letters, each once, in their order.
func (l *Lab) DeadLetters() []poison.Record { return l.journal.allDeadLetters() }

// Attempts returns the runs of handlers that have ended, in that order.
func (l *Lab) Attempts() []Attempt { return l.journal.allAttempts() }

func (l *Lab) publish(p *process, plan *Plan, msgs ...*message.Message) {
	l.tb.Helper()
	for _, m := range msgs {
		p.link.plan(m.UUID, plan)
	}
	pub, err := p.link.server.Publisher()
	if err == nil {
		err = pub.Publish(l.cfg.Topic, msgs...)
	}
	if err != nil {
		l.tb.Fatalf("publish to %s: %v", l.cfg.Topic, err)
	}
}

// The server and the outboxes do not tell when all is settled. They are asked soon after something has happened, and less
// and less often when nothing does.
const (
	pollMin = time.Millisecond
	pollMax = 16 * time.Millisecond
)

// settle waits until nothing is left to do.
func (l *Lab) settle(processes ...*process) {
	l.tb.Helper()
	limit, poll := time.NewTimer(l.cfg.Limit), time.NewTimer(pollMin)
	defer limit.Stop()
	defer poll.Stop()
	for wait := pollMin; ; wait = min(2*wait, pollMax) {
		before := l.journal.activity()
		waits := ""
		for _, p := range processes {
			select {
			case err := <-p.ended:
				p.ended <- err // for stop
				l.tb.Fatalf("the service ended by itself: %v%s", err, l.explain())
			default:
			}
			if waits == "" {
				waits = p.waits(l.tb)
			}
		}
		if waits == "" && before == l.journal.activity() {
			return
		}
		poll.Reset(wait)
		select {
		case <-l.journal.changed:
			wait = pollMin / 2
		case <-poll.C:
		case <-limit.C:
			l.tb.Fatalf("not settled within %v: %s%s", l.cfg.Limit, waits, l.explain())
		}
	}
}

// explain is what the last attempts say, for an error.
func (l *Lab) explain() string {
	const most = 5
	attempts := l.journal.allAttempts()
	if len(attempts) == 0 {
		return "; no handler has run"
	}
	var s strings.Builder
	if skipped := len(attempts) - most; skipped > 0 {
		attempts = attempts[skipped:]
		fmt.Fprintf(&s, "\n\t(%d attempts before)", skipped)
	}
	for _, a := range attempts {
		fmt.Fprintf(&s, "\n\t%s", a)
	}
	return s.String()
}

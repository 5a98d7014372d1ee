package lab

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// Moment is one at which a process can be killed.
type Moment int

// The moments. A handler without a transaction has no moment before its commit: it is killed when it has returned, as after
// one.
const (
	never        Moment = iota
	BeforeCommit        // the handler has succeeded, its transaction is open
	AfterCommit         // the ack is under way
)

// Plan is what goes wrong with a message. It is the same for all consumers that get it.
type Plan struct {
	// Fail gives the error that an attempt fails with, 1 is the first; nil lets it be. In a transaction it comes in the place of
	// the COMMIT; without one, when the handler has returned.
	Fail func(attempt int) error

	// Begin is called when an attempt begins.
	Begin func(attempt int)

	kill    Moment
	meeting *meeting

	mu    sync.Mutex
	acked map[string]bool // by consumer
}

// lastAck notes that consumer has acked the message, and tells whether all have that read it.
func (p *Plan) lastAck(consumer string, k *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.acked == nil {
		p.acked = map[string]bool{}
	}
	p.acked[consumer] = true
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(p.acked) >= k.readers()
}

// AroundAttempts implements trial.Broker.
func (k *link) AroundAttempts() message.HandlerMiddleware {
	k.steered.Store(true)
	return k.attempt
}

// attempt records each attempt, shortens what its delivery waits for, and does what is planned.
func (k *link) attempt(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		f := flight.From(msg.Context())
		a := Attempt{UUID: f.Original.UUID, Consumer: f.Consumer, Number: f.Attempt, Err: errNotReturned}
		defer func() { k.journal.attempt(a) }()
		f.Trial = &flight.Trial{Wait: shorten}
		if p := k.planOf(a.UUID); p != nil {
			out, err = p.run(k, f, &a, msg, h)
		} else {
			out, err = h(msg)
		}
		a.Err, a.Receipt = err, f.Receipt()
		return out, err
	}
}

func (p *Plan) run(k *link, f *flight.Flight, a *Attempt, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	ctx := msg.Context()
	if p.Begin != nil {
		p.Begin(a.Number)
	}
	if p.meeting != nil && a.Number == 1 {
		p.meeting.join(ctx, a.Consumer)
	}
	f.Trial.BeforeCommit = func(context.Context) error {
		a.InTx = true
		return p.fault(k, a.Number)
	}
	out, err := h(msg)
	if err == nil && f.Receipt() == flight.Handled {
		err = p.fault(k, a.Number)
	}
	return out, err
}

// fault does what is planned for the moment between a handler's success and what makes it count.
func (p *Plan) fault(k *link, attempt int) error {
	if p.kill == BeforeCommit {
		k.cut()
		return classify.Stop(errKilled)
	}
	if p.Fail != nil {
		return p.Fail(attempt)
	}
	return nil
}

// meeting lets two attempts of one consumer begin together.
type meeting struct {
	mu      sync.Mutex
	waiting map[string]chan struct{} // by consumer
}

// meetingLimit is how long the first waits for the second, which may not come: its process was slow.
const meetingLimit = time.Second

func newMeeting() *meeting { return &meeting{waiting: map[string]chan struct{}{}} }

func (m *meeting) join(ctx context.Context, consumer string) {
	m.mu.Lock()
	other, ok := m.waiting[consumer]
	if ok {
		m.mu.Unlock()
		close(other)
		return
	}
	came := make(chan struct{})
	m.waiting[consumer] = came
	m.mu.Unlock()
	limit := time.NewTimer(meetingLimit)
	defer limit.Stop()
	select {
	case <-came:
	case <-limit.C:
	case <-ctx.Done():
	}
}

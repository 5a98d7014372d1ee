package lab

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
)

// Output is a message that the service published.
type Output struct {
	Topic   string
	Message *message.Message
}

// Attempt is one run of a handler.
type Attempt struct {
	UUID, Consumer string
	Number         int  // 1 is the first of its delivery
	InTx           bool // the handler succeeded in a transaction; known of messages with a plan
	Receipt        flight.Receipt
	Err            error
}

var errNotReturned = errors.New("the handler panicked or ended its goroutine")

// String says what came of the attempt.
func (a Attempt) String() string {
	outcome := a.Receipt.String()
	if a.Err != nil {
		outcome = a.Err.Error()
	}
	return fmt.Sprintf("%s, message %s, attempt %d: %s", a.Consumer, a.UUID, a.Number, outcome)
}

// journal is what was seen of all processes. It is safe for concurrent use.
type journal struct {
	changed chan struct{} // something was added, or settled; room for one

	mu          sync.Mutex
	events      int
	outputs     []Output
	deadLetters []poison.Record
	attempts    []Attempt
	known       map[string]bool // by topic and UUID
}

func newJournal() *journal {
	return &journal{changed: make(chan struct{}, 1), known: map[string]bool{}}
}

// change notes that something happened.
func (j *journal) change() {
	j.mu.Lock()
	j.events++
	j.mu.Unlock()
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// activity grows with everything that happens.
func (j *journal) activity() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.events
}

// clear forgets what was seen so far.
func (j *journal) clear() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outputs, j.deadLetters, j.attempts = nil, nil, nil
	clear(j.known)
}

func (j *journal) publish(topic string, m *message.Message) {
	defer j.change()
	own := message.NewMessage(m.UUID, bytes.Clone(m.Payload))
	for k, v := range m.Metadata {
		own.Metadata[k] = v
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if id := topic + "\x00" + m.UUID; m.UUID != "" {
		if j.known[id] {
			return
		}
		j.known[id] = true
	}
	if _, isRedrive := own.Metadata[poison.MetaRedriveVersion]; isRedrive {
		return // the service to itself
	}
	if record, err := poison.Parse(own); err == nil {
		j.deadLetters = append(j.deadLetters, record)
		return
	}
	j.outputs = append(j.outputs, Output{Topic: topic, Message: own})
}

func (j *journal) attempt(a Attempt) {
	defer j.change()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.attempts = append(j.attempts, a)
}

func (j *journal) allOutputs() []Output {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.outputs)
}

func (j *journal) allDeadLetters() []poison.Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.deadLetters)
}

func (j *journal) allAttempts() []Attempt {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.attempts)
}

// Taken tells whether the handler has taken the message for its own, now or in an earlier delivery.
func (a Attempt) Taken() bool {
	switch a.Receipt {
	case flight.Handled, flight.Committed, flight.Duplicate, flight.Stale:
		return a.Err == nil
	default:
		return false
	}
}

// Ignored tells whether the consumer has no handler for the message.
func (a Attempt) Ignored() bool { return a.Err == nil && a.Receipt == flight.Ignored }

package brokers

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// PublishError tells which messages of a call of Publish were not stored. The others were.
type PublishError struct {
	System string // the adapter: "kafka", "amqp", ...
	Topic  string
	Of     int             // messages in the call
	Failed []FailedMessage // in the order of the call, at least one
}

// FailedMessage is a message that was not stored, or of which that is not known.
type FailedMessage struct {
	Index int    // in the call
	UUID  string // Watermill's, may be empty
	Err   error  // the adapter's or its client's; marked permanent where another try cannot help
}

// NewPublishError is for adapters: errs has an error, or nil, for each of messages. It returns nil if there is none.
func NewPublishError(system, topic string, messages []*message.Message, errs []error) error {
	failed := &PublishError{System: system, Topic: topic, Of: len(messages)}
	for i, err := range errs {
		if err != nil {
			failed.Failed = append(failed.Failed, FailedMessage{Index: i, UUID: messages[i].UUID, Err: err})
		}
	}
	if len(failed.Failed) == 0 {
		return nil
	}
	return failed
}

func (e *PublishError) Error() string {
	f := e.Failed[0]
	s := fmt.Sprintf("%s: publish message %q (%d of %d) to topic %q: %v", e.System, f.UUID, f.Index+1, e.Of, e.Topic, f.Err)
	if more := len(e.Failed) - 1; more > 0 {
		s += fmt.Sprintf(" (and %d more)", more)
	}
	return s
}

// Unwrap returns the errors of the messages.
func (e *PublishError) Unwrap() []error {
	errs := make([]error, len(e.Failed))
	for i, f := range e.Failed {
		errs[i] = f.Err
	}
	return errs
}

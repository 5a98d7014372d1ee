package brokers_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

func TestPublishErrorTellsWhichMessagesFailed(t *testing.T) {
	messages := []*message.Message{message.NewMessage("a", nil), message.NewMessage("b", nil), message.NewMessage("c", nil)}
	if err := brokers.NewPublishError("kafka", "orders", messages, make([]error, 3)); err != nil {
		t.Fatalf("no message failed: %v", err)
	}
	first, second := errors.New("too large"), errors.New("gone")
	err := brokers.NewPublishError("kafka", "orders", messages, []error{nil, first, second})
	failed, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || failed.Of != 3 || len(failed.Failed) != 2 || failed.Failed[1] != (brokers.FailedMessage{Index: 2, UUID: "c", Err: second}) {
		t.Errorf("got %#v", err)
	}
	if !errors.Is(err, first) || !errors.Is(err, second) {
		t.Errorf("%v does not wrap both errors", err)
	}
	if got, want := err.Error(), `kafka: publish message "b" (2 of 3) to topic "orders": too large (and 1 more)`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

package adapter_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/event"
)

func TestKeysAreThoseOfEvent(t *testing.T) {
	m := message.NewMessage("", nil)
	if key := adapter.Key(m); key != nil {
		t.Errorf("the key of a message without one is %q", key)
	}
	m.Metadata[event.MetaSubject] = "subject"
	if key := adapter.Key(m); string(key) != "subject" {
		t.Errorf("the key of a message with a subject is %q", key)
	}
	m.Metadata[event.MetaPartitionKey] = "key"
	if key := adapter.Key(m); string(key) != "key" {
		t.Errorf("the key of a message with a partition key and a subject is %q", key)
	}
}

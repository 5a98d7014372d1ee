//go:build !race

// The client (v0.19.0) has a data race of its own where a producer connects again while messages wait in it
// (partitionProducer.grabCnx against internalSingleSend), so that these, and those of the suite that have outages, run without the
// detector: go test -run 'Publish|Suite' ./brokers/pulsar
package pulsar_test

import (
	"crypto/rand"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/pulsar"
)

func TestPublishLastsThroughAnOutage(t *testing.T) {
	p, client := proxied(t)
	b := open(t, pulsar.Config{Client: client})
	topic := rand.Text()
	_, in := subscribe(t, open(t, pulsar.Config{}), "c", topic, 10)
	publish(t, b, topic, numbered("key", 0, 1)...)
	p.Down()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- pub.Publish(topic, numbered("key", 1, 3)...) }()
	select {
	case err := <-done:
		t.Fatalf("Publish without a server returned %v, want it to wait", err)
	case <-time.After(200 * time.Millisecond):
	}
	p.Up()
	if err := <-done; err != nil {
		t.Errorf("Publish: %v", err)
	}
	if got, want := ack(t, in, 4), upTo(4); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPublishWithoutAServerEndsInTime(t *testing.T) {
	p, client := proxied(t)
	b := open(t, pulsar.Config{Client: client, PublishTimeout: 300 * time.Millisecond})
	topic := rand.Text()
	publish(t, b, topic, numbered("key", 0, 1)...)
	p.Down()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = pub.Publish(topic, numbered("key", 1, 2)...)
	failed, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || !errors.Is(err, pulsar.ErrUnconfirmed) || len(failed.Failed) != 2 || failed.Of != 2 || failed.Topic != topic {
		t.Errorf("Publish: %v, want a PublishError of both messages that wraps ErrUnconfirmed", err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Publish took %v, want about 300 ms", took)
	}
	p.Up()
}

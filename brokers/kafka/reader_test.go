package kafka_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/headracetest/readersuite"
)

func TestReader(t *testing.T) {
	for name, seeds := range map[string]func(*testing.T) []string{
		"kfake": func(t *testing.T) []string { _, s := fake(t); return s },
		"real":  func(t *testing.T) []string { return real(t) },
	} {
		t.Run(name, func(t *testing.T) {
			readersuite.Run(t, func(t *testing.T) readersuite.Broker {
				b, err := kafka.New(kafka.Config{Seeds: seeds(t), Partitions: 1, Replicas: 1})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := b.Close(); err != nil {
						t.Error(err)
					}
				})
				return b
			}, func(name string) string { return fmt.Sprintf("%s-%d-%d", name, os.Getpid(), time.Now().UnixNano()) })
		})
	}
}

// An aborted transaction at the end of a partition is a gap that no record comes from: a read waited there for ever.
func TestReadEndsBehindAnAbortedTransaction(t *testing.T) {
	seeds := real(t)
	b, err := kafka.New(kafka.Config{Seeds: seeds, Partitions: 1, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	topic := fmt.Sprintf("aborted-%d-%d", os.Getpid(), time.Now().UnixNano())
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish(topic, message.NewMessage("u", []byte("kept"))); err != nil {
		t.Fatal(err)
	}
	tx, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.TransactionalID(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	if err := tx.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := tx.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("aborted")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := tx.EndTransaction(context.WithoutCancel(t.Context()), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	var got []string
	err = b.Read(t.Context(), topic, brokers.Range{}, func(m *message.Message) error {
		got = append(got, string(m.Payload))
		return nil
	})
	if err != nil || !slices.Equal(got, []string{"kept"}) {
		t.Errorf("read %q, %v; want what was committed", got, err)
	}
}

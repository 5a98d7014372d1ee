package kafka_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
)

// fetch reads n records of a topic without a group.
func fetch(t *testing.T, seeds []string, topic string, n int) []*kgo.Record {
	t.Helper()
	cl := client(t, seeds, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer cl.Close()
	var all []*kgo.Record
	for len(all) < n {
		f := cl.PollFetches(t.Context())
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		all = append(all, f.Records()...)
	}
	return all
}

func publisher(t *testing.T, b *kafka.Broker) message.Publisher {
	t.Helper()
	p, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRecordKeyIsTheEventsKey(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	b := open(t, quick(seeds))
	messages := make([]*message.Message, 6)
	for i := range messages {
		messages[i] = message.NewMessage("id", nil)
	}
	messages[0].Metadata[event.MetaPartitionKey] = "key"
	messages[0].Metadata[event.MetaSubject] = "subject"
	messages[1].Metadata[event.MetaSubject] = "subject"
	messages[3].SetContext(kafka.WithKey(context.Background(), []byte("\x00\xff")))
	messages[4].SetContext(kafka.WithKey(context.Background(), []byte{}))
	messages[5].Metadata[event.MetaPartitionKey] = "key"
	messages[5].SetContext(kafka.WithKey(context.Background(), nil))
	if err := publisher(t, b).Publish("topic", messages...); err != nil {
		t.Fatal(err)
	}
	want := [][]byte{[]byte("key"), []byte("subject"), nil, []byte("\x00\xff"), {}, nil}
	for i, r := range fetch(t, seeds, "topic", len(want)) {
		if !slices.Equal(r.Key, want[i]) || (r.Key == nil) != (want[i] == nil) {
			t.Errorf("record %d has key %q, want %q (nil: %v)", i, r.Key, want[i], want[i] == nil)
		}
	}
}

// A record that is passed on keeps duplicate names, nil values and the order of its headers.
func TestHeadersPassOnByteForByte(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "in"), kfake.SeedTopics(1, "out"))
	b := open(t, quick(seeds))
	sent := &kgo.Record{Topic: "in", Key: []byte("k"), Headers: []kgo.RecordHeader{
		{Key: "b", Value: []byte("1")}, {Key: "a", Value: nil}, {Key: "b", Value: []byte{}}, {Key: "_watermill_message_uuid", Value: []byte("id")},
	}}
	if err := client(t, seeds).ProduceSync(t.Context(), sent).FirstErr(); err != nil {
		t.Fatal(err)
	}
	in := read(t, b, "in", 1).next()
	if in.UUID != "id" {
		t.Errorf("UUID is %q, want id", in.UUID)
	}
	out := message.NewMessage(in.UUID, in.Payload)
	d := brokers.DeliveryOf(in.Context())
	out.SetContext(kafka.WithKey(kafka.WithHeaders(context.Background(), d.Headers), d.Key))
	if err := publisher(t, b).Publish("out", out); err != nil {
		t.Fatal(err)
	}
	in.Ack()
	got := fetch(t, seeds, "out", 1)[0]
	if string(got.Key) != "k" || got.Value != nil {
		t.Errorf("key %q and value %q (nil: %v), want k and a tombstone", got.Key, got.Value, got.Value == nil)
	}
	if len(got.Headers) != len(sent.Headers) {
		t.Fatalf("headers are %v, want %v", got.Headers, sent.Headers)
	}
	for i, h := range got.Headers {
		if w := sent.Headers[i]; h.Key != w.Key || !slices.Equal(h.Value, w.Value) || (h.Value == nil) != (w.Value == nil) {
			t.Errorf("header %d is %q=%q, want %q=%q", i, h.Key, h.Value, w.Key, w.Value)
		}
	}
}

// Each message of a batch fails or not by itself, and the error tells which and whether another try can help.
func TestPublishErrorNamesEachMessage(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	b := open(t, quick(seeds))
	small, large := message.NewMessage("small", []byte("x")), message.NewMessage("large", []byte(strings.Repeat("x", 2<<20)))
	err := publisher(t, b).Publish("topic", small, large)
	var failed *brokers.PublishError
	if !errors.As(err, &failed) {
		t.Fatalf("error is %v, want a PublishError", err)
	}
	if len(failed.Failed) != 1 || failed.Failed[0].Index != 1 || failed.Failed[0].UUID != "large" || failed.Of != 2 {
		t.Errorf("failed are %+v, want message 1 of 2", failed)
	}
	if !errors.Is(err, kerr.MessageTooLarge) {
		t.Errorf("error %v is not kerr.MessageTooLarge", err)
	}
	if got := (*classify.Classifier)(nil).Classify(err).Verdict; got != classify.VerdictPoison {
		t.Errorf("verdict is %v, want Poison: it will not become smaller", got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	late := message.NewMessage("late", nil)
	late.SetContext(ctx)
	if err := publisher(t, b).Publish("topic", late); !errors.Is(err, context.Canceled) {
		t.Errorf("error of a message whose context has ended is %v, want context.Canceled", err)
	}
	if got := fetch(t, seeds, "topic", 1); len(got) != 1 || string(got[0].Value) != "x" {
		t.Errorf("%d records were stored, want the small one", len(got))
	}
}

func TestCheckOnlyMakesNoTopic(t *testing.T) {
	_, seeds := fake(t)
	config := quick(seeds)
	config.CheckOnly = true
	b := open(t, config)
	if err := publisher(t, b).Publish("missing", message.NewMessage("", nil)); err == nil || !strings.Contains(err.Error(), `"missing"`) {
		t.Errorf("Publish to a missing topic: error is %v, want one that names it", err)
	}
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "missing"); err == nil || !strings.Contains(err.Error(), `"missing"`) {
		t.Errorf("Subscribe to a missing topic: error is %v, want one that names it", err)
	}
}

// A service with CheckOnly starts a moment before whoever makes its topic: the next attempt finds the topic, and not the answer that was
// remembered from the first.
func TestCheckOnlySeesATopicAsSoonAsItIsMade(t *testing.T) {
	_, seeds := fake(t)
	config := quick(seeds)
	config.CheckOnly = true
	b := open(t, config)
	pub := publisher(t, b)
	if err := pub.Publish("late", message.NewMessage("", nil)); err == nil {
		t.Fatal("Publish to a missing topic succeeded")
	}
	config.CheckOnly = false
	if err := publisher(t, open(t, config)).Publish("late", message.NewMessage("", nil)); err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish("late", message.NewMessage("", nil)); err != nil {
		t.Errorf("Publish after the topic was made: %v", err)
	}
}

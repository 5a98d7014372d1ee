package poison_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
)

// redriven publishes rec to its redrive topic and restores what arrives there.
func redriven(t testing.TB, rec poison.Record, hops int) *message.Message {
	t.Helper()
	r := poison.Redrive{Kind: poison.KindRedrive, Hops: hops, Batch: "batch-1", Record: rec}
	sent, err := r.Message(0)
	if err != nil {
		t.Fatal(err)
	}
	return arrive(t.Context(), sent)
}

func arrive(ctx context.Context, sent *message.Message) *message.Message {
	got := message.NewMessage(sent.UUID, sent.Payload)
	got.Metadata = maps.Clone(sent.Metadata)
	got.SetContext(brokers.WithDelivery(ctx, &brokers.Delivery{
		Topic: "billing.orders.REDRIVE", Incarnation: "other", Partition: 9, Offset: 7, Key: []byte("wrong"), Count: 1,
	}))
	poison.Restore(got)
	return got
}

// The messages of a redrive topic are a contract between an operator's tool and services of other versions.
func TestRedriveWireForm(t *testing.T) {
	_, rec := die(t, gaveUp(classify.VerdictPoison, errDown), nil)
	r := poison.Redrive{Kind: poison.KindRedrive, Hops: 2, Batch: "batch-1", Record: rec}
	msg, err := r.Message(0)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "redrive.txt", msg)
}

func TestRestoredMessageIsWhatArrivedAtFirst(t *testing.T) {
	for name, change := range map[string]func(*message.Message, *brokers.Delivery){
		"plain":        nil,
		"tombstone":    func(m *message.Message, _ *brokers.Delivery) { m.Payload = nil },
		"no key":       func(_ *message.Message, d *brokers.Delivery) { d.Key = nil },
		"binary key":   func(_ *message.Message, d *brokers.Delivery) { d.Key = []byte{0xff, 0} },
		"odd uuid":     func(m *message.Message, _ *brokers.Delivery) { m.UUID = "\xff" },
		"long headers": func(m *message.Message, _ *brokers.Delivery) { m.Metadata["x"] = strings.Repeat("x", 40<<10) },
		"raw headers": func(_ *message.Message, d *brokers.Delivery) {
			d.Headers = []brokers.Header{{Key: "a"}, {Key: "a", Value: []byte{0xff}}}
		},
		"undecodable": func(_ *message.Message, d *brokers.Delivery) { d.DecodeError = errors.New("bad header") },
	} {
		t.Run(name, func(t *testing.T) {
			want := newMessage(t.Context())
			wantDelivery := *brokers.DeliveryOf(want.Context())
			if change != nil {
				change(want, &wantDelivery)
			}
			_, rec := die(t, gaveUp(classify.VerdictPoison, errDown), change)
			got := redriven(t, rec, 1)
			if got.UUID != want.UUID || string(got.Payload) != string(want.Payload) || (got.Payload == nil) != (want.Payload == nil) ||
				!maps.Equal(got.Metadata, want.Metadata) {
				t.Errorf("got %q %q %q\nwant %q %q %q", got.UUID, got.Payload, got.Metadata, want.UUID, want.Payload, want.Metadata)
			}
			d := *brokers.DeliveryOf(got.Context())
			if (d.DecodeError == nil) != (wantDelivery.DecodeError == nil) {
				t.Errorf("DecodeError is %v, want %v", d.DecodeError, wantDelivery.DecodeError)
			}
			d.Count, d.DecodeError, wantDelivery.Count, wantDelivery.DecodeError = 0, nil, 0, nil
			if !d.Time.Equal(wantDelivery.Time) {
				t.Errorf("time %v, want %v", d.Time, wantDelivery.Time)
			}
			d.Time = wantDelivery.Time
			if !reflect.DeepEqual(d, wantDelivery) {
				t.Errorf("delivery\n%+v\nwant\n%+v", d, wantDelivery)
			}
			if id := poison.RedriveOf(got.Context()).Identify(); id != rec.MessageID {
				t.Errorf("the id is %q, want the frozen one, %q", id, rec.MessageID)
			}
		})
	}
}

// D4 of a kind: what failed after its redrive was dead-lettered as a message of the redrive topic, with a count of one death, so
// that nobody saw that it went round.
func TestRedrivenMessageThatFailsAgain(t *testing.T) {
	_, rec := die(t, gaveUp(classify.VerdictPoison, errDown), nil)
	seen := map[string]bool{rec.ID: true}
	for hop := 1; hop <= 3; hop++ {
		msg := redriven(t, rec, hop)
		dlt := &dltPublisher{}
		f := flight.Ensure(msg)
		f.Topic, f.ID = "billing.orders.REDRIVE", poison.RedriveOf(msg.Context()).Identify()
		if _, err := newPoison(t, dlt).Middleware(fails(gaveUp(classify.VerdictPoison, errDown)))(msg); err != nil {
			t.Fatal(err)
		}
		_, again := dlt.only(t)
		if dlt.topics[0] != "orders.DLT" {
			t.Errorf("hop %d: dead-lettered to %s, want orders.DLT", hop, dlt.topics[0])
		}
		if again.Topic != "orders" || again.Offset != rec.Offset || again.Partition != rec.Partition || again.MessageID != rec.MessageID {
			t.Errorf("hop %d: dead letter of %s/%d/%d %s, want that of the original, %s/%d/%d %s", hop,
				again.Topic, again.Partition, again.Offset, again.MessageID, rec.Topic, rec.Partition, rec.Offset, rec.MessageID)
		}
		if again.Deaths != hop+1 || again.Hops != hop || again.Batch != "batch-1" {
			t.Errorf("deaths %d, hops %d, batch %q; want %d, %d, batch-1", again.Deaths, again.Hops, again.Batch, hop+1, hop)
		}
		if seen[again.ID] {
			t.Errorf("hop %d: the id %s is that of an earlier death", hop, again.ID)
		}
		if again.Fingerprint != rec.Fingerprint {
			t.Errorf("hop %d: fingerprint %s, want %s: the failure is the same", hop, again.Fingerprint, rec.Fingerprint)
		}
		seen[again.ID] = true
		rec = again
	}
}

// A message died, and again after a redrive, and was replayed. Its death then was counted as the first, and its dead letter had the
// id of the first one: whoever indexed it had it already, and dropped it.
func TestDeathsOfAReplayedMessageHaveIDsOfTheirOwn(t *testing.T) {
	comes := func(r poison.Redrive) *message.Message {
		t.Helper()
		sent, err := r.Message(0)
		if err != nil {
			t.Fatal(err)
		}
		return arrive(t.Context(), sent)
	}
	failsForGood := func(msg *message.Message) poison.Record {
		t.Helper()
		dlt := &dltPublisher{}
		flight.Ensure(msg).Topic = "billing.orders.REDRIVE"
		if _, err := newPoison(t, dlt).Middleware(fails(gaveUp(classify.VerdictPoison, errDown)))(msg); err != nil {
			t.Fatal(err)
		}
		_, rec := dlt.only(t)
		return rec
	}
	dies := func(r poison.Redrive) poison.Record { t.Helper(); return failsForGood(comes(r)) }
	_, first := die(t, gaveUp(classify.VerdictPoison, errDown), nil)
	again := func(kind poison.RedriveKind, batch string, rec poison.Record) poison.Redrive {
		return poison.Redrive{Kind: kind, Hops: rec.Hops + 1, Batch: batch, Record: rec}
	}
	original, err := poison.RecordOf("billing.orders", newMessage(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	replay := poison.Redrive{Kind: poison.KindReplay, Batch: "replay-1", Record: original}
	other := poison.Redrive{Kind: poison.KindReplay, Batch: "replay-2", Record: original}
	replayed := dies(replay)
	redriven := again(poison.KindRedrive, "b", replayed)
	deaths := map[string]poison.Record{
		"first": first, "redriven": dies(again(poison.KindRedrive, "a", first)),
		"replayed": replayed, "replayed and redriven": dies(redriven), "replayed twice": dies(other),
	}
	seen := map[string]string{}
	for name, rec := range deaths {
		if rec.MessageID != first.MessageID {
			t.Errorf("%s: message %q, want %q", name, rec.MessageID, first.MessageID)
		}
		if before, is := seen[rec.ID]; is {
			t.Errorf("%s: has the id of another death, %s", name, before)
		}
		seen[rec.ID] = name
	}
	// Copies of one death have one id.
	delayed := original
	delayed.Attempts, delayed.MessageID, delayed.FirstFailure = 1, first.MessageID, first.FirstFailure
	for name, copied := range map[string]poison.Redrive{
		"replayed": replay, "replayed and redriven": redriven,
	} {
		if rec := dies(copied); rec.ID != deaths[name].ID {
			t.Errorf("a copy of %s has id %s, want %s", name, rec.ID, deaths[name].ID)
		}
	}
	if rec := dies(poison.Redrive{Kind: poison.KindDelay, Batch: "replay-1", Record: delayed}); rec.ID != replayed.ID {
		t.Errorf("the replayed message was delayed before it died: id %s, want %s", rec.ID, replayed.ID)
	}
	// A redriven one was delayed, or parked behind others, and died after that: it had the id of a death before the replay.
	delays := func(msg *message.Message) *message.Message {
		rec, _ := poison.Delayed(inConsumer(msg), asked(1))
		return comes(poison.Redrive{Kind: poison.KindDelay, Hops: rec.Hops, Batch: rec.Batch, Record: rec})
	}
	parks := func(msg *message.Message) *message.Message {
		rec, _ := poison.Arrival(inConsumer(msg))
		return drained(t, rec)
	}
	for name, before := range map[string]poison.Redrive{
		"redriven": again(poison.KindRedrive, "a", first), "replayed and redriven": redriven,
	} {
		for how, msg := range map[string]*message.Message{
			"delayed": delays(comes(before)), "delayed twice": delays(delays(comes(before))),
			"parked": parks(comes(before)), "delayed and parked": parks(delays(comes(before))),
		} {
			if rec := failsForGood(msg); rec.ID != deaths[name].ID || rec.Deaths != before.Record.Deaths+1 {
				t.Errorf("%s and %s: death %d has id %s, want %d and %s", name, how, rec.Deaths, rec.ID, before.Record.Deaths+1, deaths[name].ID)
			}
		}
	}
}

// inConsumer is the context of a redriven message in its consumer.
func inConsumer(msg *message.Message) context.Context {
	f := flight.Ensure(msg)
	f.Consumer, f.Topic, f.ID = "billing.orders", "billing.orders.REDRIVE", poison.RedriveOf(msg.Context()).Identify()
	return msg.Context()
}

// drained is the message of rec as it comes from where it was parked, as a document.
func drained(t *testing.T, rec poison.Record) *message.Message {
	t.Helper()
	document, err := rec.MarshalDocument()
	if err != nil {
		t.Fatal(err)
	}
	kept, err := poison.ParseDocument("", document, rec.Payload)
	if err != nil {
		t.Fatal(err)
	}
	msg := kept.Original()
	msg.SetContext(poison.WithRedrive(msg.Context(), &poison.Redrive{Kind: poison.KindRedrive, Hops: kept.Hops, Batch: kept.Batch, Record: kept}))
	return msg
}

// Anybody can send headrace_ headers to a topic of events. They must not change what a message is taken for.
func TestRedriveMarksMeanNothingElsewhere(t *testing.T) {
	_, rec := die(t, gaveUp(classify.VerdictPoison, errDown), func(m *message.Message, _ *brokers.Delivery) {
		m.Metadata[poison.MetaRedriveVersion], m.Metadata[poison.MetaRedriveKind] = "1", "redrive"
		m.Metadata[event.MetaFrozenID] = "ce:/shop stolen"
		m.Metadata[poison.MetaRedriveBatch] = "theirs"
	})
	if rec.MessageID != "ce:/shop e-1" || rec.Batch != "" || rec.Hops != 0 {
		t.Errorf("id %q, batch %q, hops %d; want ce:/shop e-1 and nothing", rec.MessageID, rec.Batch, rec.Hops)
	}
	msg := redriven(t, rec, 1)
	if got := msg.Metadata[poison.MetaRedriveBatch]; got != "" {
		t.Errorf("a redrive mark of the sender came through: %q", got)
	}
	if got := poison.RedriveOf(msg.Context()).Batch; got != "batch-1" {
		t.Errorf("batch %q, want ours", got)
	}
}

// What is on a redrive topic and is no redriven message must not get lost, nor block.
func TestRestoreLeavesWhatItCannotRead(t *testing.T) {
	_, rec := die(t, gaveUp(classify.VerdictPoison, errDown), nil)
	good, err := (&poison.Redrive{Kind: poison.KindRedrive, Hops: 1, Record: rec}).Message(0)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(message.Metadata)
		want   string
	}{
		"no mark":       {func(m message.Metadata) { delete(m, poison.MetaRedriveVersion) }, "not a redriven message"},
		"later version": {func(m message.Metadata) { m[poison.MetaRedriveVersion] = "2" }, "headrace_redrive_version is 2"},
		"bad hops":      {func(m message.Metadata) { m[poison.MetaRedriveHops] = "-1" }, `headrace_redrive_hops is "-1"`},
		"bad kind":      {func(m message.Metadata) { m[poison.MetaRedriveKind] = "x" }, `headrace_redrive_kind is "x"`},
		"no dead letter": {func(m message.Metadata) {
			maps.DeleteFunc(m, func(k, _ string) bool { return strings.HasPrefix(k, poison.MetaPrefix) })
		}, "not a dead letter"},
		"a reference": {func(m message.Metadata) { m[poison.MetaEncoding] = "reference" }, "refers to another message"},
	} {
		sent := good.Copy()
		tc.change(sent.Metadata)
		got := arrive(t.Context(), sent)
		d := brokers.DeliveryOf(got.Context())
		if d.DecodeError == nil || !strings.Contains(d.DecodeError.Error(), tc.want) {
			t.Errorf("%s: DecodeError is %v, want one with %q", name, d.DecodeError, tc.want)
		}
		if d.Topic != "billing.orders.REDRIVE" || poison.RedriveOf(got.Context()) != nil || !maps.Equal(got.Metadata, sent.Metadata) {
			t.Errorf("%s: the message was changed: %v", name, got.Metadata)
		}
	}
}

func TestRedriveRefusesWhatItCannotSend(t *testing.T) {
	for want, r := range map[string]poison.Redrive{
		"names no consumer": {Kind: poison.KindRedrive},
		"it refers to":      {Kind: poison.KindRedrive, Record: poison.Record{Consumer: "c", Reference: true}},
		`kind ""`:           {Record: poison.Record{Consumer: "c"}},
		"batch":             {Kind: poison.KindReplay, Batch: "\n", Record: poison.Record{Consumer: "c"}},
		"-1 hops":           {Kind: poison.KindReplay, Hops: -1, Record: poison.Record{Consumer: "c"}},
	} {
		if _, err := r.Message(0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Message of %+v: %v, want an error with %q", r, err, want)
		}
	}
}

// A consumer with an id function of its own identified a replayed message otherwise than before, and its effect was doubled.
func TestReplayedMessageIsIdentifiedAsBefore(t *testing.T) {
	for name, change := range map[string]func(*message.Message){
		"event":    func(*message.Message) {},
		"uuid":     func(m *message.Message) { m.Metadata = message.Metadata{} },
		"position": func(m *message.Message) { m.Metadata, m.UUID = message.Metadata{}, "" },
	} {
		first := newMessage(t.Context())
		change(first)
		want, err := event.Identify(first, "orders")
		if err != nil {
			t.Fatal(err)
		}
		rec, err := poison.RecordOf("billing.orders", first)
		if err != nil {
			t.Fatal(err)
		}
		sent, err := (&poison.Redrive{Kind: poison.KindReplay, Batch: "b", Record: rec}).Message(0)
		if err != nil {
			t.Fatal(err)
		}
		got := arrive(t.Context(), sent)
		r := poison.RedriveOf(got.Context())
		if r == nil || r.Identify() != "" {
			t.Fatalf("%s: redrive %+v, want a replay without a frozen id", name, r)
		}
		if id, err := event.Identify(got, r.Record.Topic); err != nil || id != want {
			t.Errorf("%s: id %q, %v; want %q", name, id, err, want)
		}
	}
	if _, err := poison.RecordOf("c", message.NewMessage("u", nil)); err == nil {
		t.Error("RecordOf a message from nowhere: no error")
	}
}

// FuzzRestore: whatever is on the topic, Restore neither panics nor loses bytes.
func FuzzRestore(f *testing.F) {
	f.Add("1", "redrive", "1", "{}", "")
	f.Add("1", "replay", "x", "", "envelope")
	f.Fuzz(func(t *testing.T, version, kind, hops, payload, encoding string) {
		msg := message.NewMessage("u", []byte(payload))
		msg.Metadata = message.Metadata{
			poison.MetaRedriveVersion: version, poison.MetaRedriveKind: kind, poison.MetaRedriveHops: hops,
			poison.MetaVersion: "1", poison.MetaEncoding: encoding, poison.MetaVerdict: "poison",
		}
		poison.Restore(msg)
		d := brokers.DeliveryOf(msg.Context())
		if (d.DecodeError == nil) != (poison.RedriveOf(msg.Context()) != nil) {
			t.Errorf("DecodeError %v, redrive %v", d.DecodeError, poison.RedriveOf(msg.Context()))
		}
		if d.DecodeError != nil && string(msg.Payload) != payload {
			t.Errorf("payload %q, want %q", msg.Payload, payload)
		}
	})
}

// A redriven message on the wire and back: the consumer sees the original.
func ExampleRestore() {
	record := poison.Record{
		ID: "dead-1", Consumer: "billing.orders", Topic: "orders", Partition: 3, Offset: 41, UUID: "order-1",
		Payload: []byte(`{"total":1}`), MessageID: "uuid:orders order-1", Deaths: 1,
	}
	sent, err := (&poison.Redrive{Kind: poison.KindRedrive, Hops: 1, Batch: "fix-812", Record: record}).Message(0)
	if err != nil {
		panic(err)
	}
	fmt.Println(poison.RedriveTopic(record.Consumer), "gets", sent.UUID)
	poison.Restore(sent) // as a subscriber decorator does
	r := poison.RedriveOf(sent.Context())
	fmt.Printf("%s %s from %s, redriven %d time, id %q\n", sent.UUID, sent.Payload, r.Record.Topic, r.Hops, r.Identify())
	// Output:
	// billing.orders.REDRIVE gets dead-1
	// order-1 {"total":1} from orders, redriven 1 time, id "uuid:orders order-1"
}

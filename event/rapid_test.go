package event_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

// roundTrip is an event to be made and read again.
type roundTrip struct {
	typ, id, source, subject, key, name, value string
	at                                         int64
	version                                    int
	data                                       []byte
}

// check makes the event and, if New takes it, reads it again.
func (r roundTrip) check() (*message.Message, error) {
	at := time.Unix(0, r.at)
	msg, err := event.New(context.Background(), r.typ, r.data,
		event.WithID(r.id), event.WithSource(r.source), event.WithSubject(r.subject), event.WithKey(r.key),
		event.WithExtension(r.name, r.value), event.WithTime(at), event.WithSchemaVersion(r.version))
	if err != nil {
		return nil, nil //nolint:nilerr // New refuses it, and there is nothing to read
	}
	e, err := event.Parse(msg)
	if err != nil {
		return msg, err
	}
	got := roundTrip{e.Type, e.ID, e.Source, e.Subject, e.PartitionKey, r.name, e.Extensions[r.name], e.Time.UnixNano(), e.SchemaVersion, e.Data}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", r) || !bytes.Equal(msg.Payload, r.data) || msg.UUID != r.id {
		return msg, fmt.Errorf("got %+v, want %+v", got, r)
	}
	if again, err := event.Parse(msg.Copy()); err != nil || fmt.Sprint(again) != fmt.Sprint(e) {
		return msg, fmt.Errorf("a copy: got %+v, %w, want %+v", again, err, e)
	}
	return msg, nil
}

func TestEventsComeBackAsTheyWereMade(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[ -~é世]{1,30}`)
		r := roundTrip{
			typ: text.Draw(t, "type"), id: text.Draw(t, "id"), source: rapid.StringMatching(`/[a-z0-9/?#=.]{0,20}`).Draw(t, "source"),
			subject: text.Draw(t, "subject"), key: text.Draw(t, "key"),
			name: "x" + rapid.StringMatching(`[a-z0-9]{0,19}`).Draw(t, "name"), value: text.Draw(t, "value"),
			at: rapid.Int64Range(0, 1<<62).Draw(t, "time"), version: rapid.IntRange(1, 1<<31-1).Draw(t, "version"),
			data: rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
		}
		msg, err := r.check()
		if err != nil || msg == nil {
			t.Fatalf("%+v: %v, %v", r, msg, err)
		}
	})
}

// Two messages that differ in what identifies them never share an id; one message always has the same.
func TestIdentifyTellsMessagesApart(t *testing.T) {
	part := rapid.OneOf(rapid.StringMatching(`[ab /:]{0,4}`), rapid.StringMatching(`a{240,260}`))
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) (string, string, error) {
			a, b := part.Draw(t, name+" scope"), part.Draw(t, name+" id")
			msg := message.NewMessage("", nil)
			kind := rapid.IntRange(0, 2).Draw(t, name+" kind")
			d := &brokers.Delivery{Offset: -1}
			switch kind {
			case 0:
				msg.Metadata["ce_source"], msg.Metadata["ce_id"] = a, b
			case 1:
				msg.UUID = b
			case 2:
				d.Topic, d.Incarnation, d.Offset = a, b, 1
			}
			msg.SetContext(brokers.WithDelivery(context.Background(), d))
			topic := a
			if kind == 0 {
				topic = "t"
			}
			id, err := event.Identify(msg, topic)
			return id, fmt.Sprintf("%d %q %q", kind, a, b), err
		}
		id1, what1, err1 := draw("first")
		id2, what2, err2 := draw("second")
		if (id1 == "") != (err1 != nil) || len(id1) > event.MaxIDBytes {
			t.Fatalf("%s: got %q, %v", what1, id1, err1)
		}
		if err1 == nil && err2 == nil && (id1 == id2) != (what1 == what2) {
			t.Fatalf("%s has id %q\n%s has id %q", what1, id1, what2, id2)
		}
	})
}

// However often a handler is retried, the n-th event of its attempt has the same id, and no other has it.
func TestDerivedIDsAreStableAndDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seen := make(map[string]string)
		for range rapid.IntRange(1, 4).Draw(t, "deliveries") {
			f := &flight.Flight{
				Context: context.Background(), Consumer: rapid.SampledFrom([]string{"a", "ab", "b"}).Draw(t, "consumer"),
				ID: rapid.SampledFrom([]string{"1", "b1", "12"}).Draw(t, "id"), Source: "/s",
			}
			for range rapid.IntRange(1, 3).Draw(t, "attempts") {
				f.StartAttempt()
				for n := range rapid.IntRange(0, 4).Draw(t, "events") {
					typ := rapid.SampledFrom([]string{"t", "u"}).Draw(t, "type")
					msg, err := event.New(f, typ, nil)
					if err != nil {
						t.Fatal(err)
					}
					what := fmt.Sprintf("%q %q %q %d", f.Consumer, f.ID, typ, n)
					if other, ok := seen[msg.UUID]; ok && other != what {
						t.Fatalf("%s and %s share the id %s", what, other, msg.UUID)
					}
					seen[msg.UUID] = what
				}
			}
		}
		names := make(map[string]string)
		for id, what := range seen {
			if other, ok := names[what]; ok {
				t.Fatalf("%s has the ids %s and %s", what, other, id)
			}
			names[what] = id
		}
	})
}

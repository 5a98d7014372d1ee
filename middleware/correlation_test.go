package middleware_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

func TestCorrelationReadsOrBeginsAConversation(t *testing.T) {
	const structured = `{"specversion":"1.0","id":"e9","source":"/shop","type":"order.placed","correlationid":"conv-7"}`
	long := strings.Repeat("x", 256)
	tests := []struct {
		name        string
		uuid        string
		metadata    message.Metadata
		payload     string
		correlation string // "?": made up
		causation   string
		id          string
	}{
		{"ours", "u1", message.Metadata{"ce_correlationid": "c1", "correlation_id": "w1", "ce_id": "e1", "ce_source": "/shop"}, "", "c1", "e1", "ce:/shop e1"},
		{"Watermill's", "u1", message.Metadata{"correlation_id": "w1"}, "", "w1", "u1", "uuid:orders u1"},
		{"none: its own id", "u1", message.Metadata{"ce_id": "e1"}, "", "e1", "e1", "uuid:orders u1"},
		{"none, and no event id: the UUID", "u1", nil, "", "u1", "u1", "uuid:orders u1"},
		{"nothing at all", "", nil, "", "?", "", ""},
		{"structured mode", "u1", message.Metadata{"content-type": "Application/CloudEvents+json"}, structured, "conv-7", "e9", "ce:/shop e9"},
		{"a broken envelope", "u1", message.Metadata{"content-type": "application/cloudevents+json"}, `{`, "u1", "u1", "uuid:orders u1"},
		{"too long to pass on", "u1", message.Metadata{"ce_correlationid": long, "correlation_id": "w1"}, "", "w1", "u1", "uuid:orders u1"},
		{"control characters", "u1", message.Metadata{"ce_correlationid": "a\r\nb: c"}, "", "u1", "u1", "uuid:orders u1"},
		{"not UTF-8", "u1", message.Metadata{"ce_correlationid": "\xff"}, "", "u1", "u1", "uuid:orders u1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			msg := message.NewMessageWithContext(t.Context(), test.uuid, []byte(test.payload))
			msg.Metadata = maps.Clone(test.metadata)
			flight.Ensure(msg).Topic = "orders"
			var correlation, causation, id string
			out, err := middleware.Correlation(middleware.CorrelationConfig{Source: "/billing", Consumer: "billing.orders"})(
				func(msg *message.Message) ([]*message.Message, error) {
					ctx := msg.Context()
					correlation, causation, id = event.CorrelationID(ctx), event.CausationID(ctx), event.MessageID(ctx)
					if f := flight.From(ctx); f.Source != "/billing" || f.Consumer != "billing.orders" {
						t.Errorf("source %q, consumer %q", f.Source, f.Consumer)
					}
					return []*message.Message{message.NewMessage("o1", nil)}, nil
				})(msg)
			if err != nil {
				t.Fatal(err)
			}
			if test.correlation == "?" {
				if len(correlation) != 36 {
					t.Errorf("correlation %q, want a UUID", correlation)
				}
			} else if correlation != test.correlation {
				t.Errorf("correlation %.40q, want %q", correlation, test.correlation)
			}
			if causation != test.causation || id != test.id {
				t.Errorf("causation %q, id %q, want %q, %q", causation, id, test.causation, test.id)
			}
			if got := out[0].Metadata[event.MetaCorrelationID]; got != correlation {
				t.Errorf("output's correlation %q, want %q", got, correlation)
			}
			if got := out[0].Metadata[event.MetaCausationID]; got != causation {
				t.Errorf("output's causation %q, want %q", got, causation)
			}
			if !maps.Equal(msg.Metadata, test.metadata) {
				t.Errorf("the message itself was changed to %v", msg.Metadata)
			}
		})
	}
}

func TestCorrelationKeepsWhatAnOutputHas(t *testing.T) {
	in := message.NewMessageWithContext(t.Context(), "u1", nil)
	own := message.NewMessage("o1", nil)
	own.Metadata = message.Metadata{event.MetaCorrelationID: "c9", event.MetaCausationID: "x9"}
	watermills := message.NewMessage("o2", nil)
	watermills.Metadata = message.Metadata{event.MetaWatermillCorrelationID: "w9"}
	bare := message.NewMessage("o3", nil)
	bare.Metadata = nil
	out, err := middleware.Correlation(middleware.CorrelationConfig{})(func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{own, watermills, bare, nil, msg}, nil
	})(in)
	if err != nil || len(out) != 5 {
		t.Fatalf("%d outputs, error %v", len(out), err)
	}
	for _, test := range []struct {
		msg                    *message.Message
		correlation, causation string
	}{{own, "c9", "x9"}, {watermills, "w9", "u1"}, {bare, "u1", "u1"}, {in, "", ""}} {
		md := test.msg.Metadata
		if md[event.MetaCorrelationID] != test.correlation || md[event.MetaCausationID] != test.causation {
			t.Errorf("output %s has %v, want correlation %q, causation %q", test.msg.UUID, md, test.correlation, test.causation)
		}
	}
}

func TestCorrelationTakesTheIDFromAFunction(t *testing.T) {
	var id, causation string
	mw := middleware.Correlation(middleware.CorrelationConfig{Identify: func(*message.Message) string { return "key:42" }})
	_, _ = mw(func(msg *message.Message) ([]*message.Message, error) {
		id, causation = event.MessageID(msg.Context()), event.CausationID(msg.Context())
		return nil, nil
	})(message.NewMessageWithContext(t.Context(), "", nil))
	if id != "key:42" || causation != "key:42" {
		t.Errorf("id %q, causation %q, want key:42 for both", id, causation)
	}
}

// published is a publisher that keeps what it gets.
type published struct{ messages []*message.Message }

func (p *published) Publish(_ string, messages ...*message.Message) error {
	p.messages = append(p.messages, messages...)
	return nil
}
func (p *published) Close() error { return nil }

func TestCorrelationPublisher(t *testing.T) {
	sink := &published{}
	pub, err := middleware.CorrelationPublisher(sink)
	if err != nil {
		t.Fatal(err)
	}
	mw := middleware.Correlation(middleware.CorrelationConfig{})
	in := message.NewMessageWithContext(t.Context(), "u1", nil)
	in.Metadata.Set(event.MetaCorrelationID, "c1")
	_, err = mw(func(msg *message.Message) ([]*message.Message, error) {
		return nil, pub.Publish("invoices", message.NewMessageWithContext(msg.Context(), "in a handler", nil),
			message.NewMessage("of no handler", nil))
	})(in)
	if err != nil {
		t.Fatal(err)
	}
	event1 := message.NewMessage("u2", nil)
	event1.Metadata.Set(event.MetaID, "e2")
	watermills := message.NewMessage("u3", nil)
	watermills.Metadata.Set(event.MetaWatermillCorrelationID, "w3")
	if err := pub.Publish("invoices", event1, watermills, nil); err != nil {
		t.Fatal(err)
	}
	want := [][2]string{{"c1", "u1"}, {"of no handler", ""}, {"e2", ""}, {"w3", ""}}
	for i, w := range want {
		md := sink.messages[i].Metadata
		if md[event.MetaCorrelationID] != w[0] || md[event.MetaCausationID] != w[1] {
			t.Errorf("message %d has %v, want correlation %q, causation %q", i, md, w[0], w[1])
		}
	}
}

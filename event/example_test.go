package event_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
)

func newMessage(payload string, metadata message.Metadata) *message.Message {
	msg := message.NewMessage("", []byte(payload))
	msg.Metadata = metadata
	return msg
}

func ExampleParse() {
	msg := newMessage(`{"id":"a-1"}`, message.Metadata{
		"ce_specversion": "1.0", "ce_id": "42", "ce_source": "/shop", "ce_type": "order.placed", "ce_tenant": "blue",
	})
	e, err := event.Parse(msg)
	fmt.Println(e.Type, e.ID, e.Extensions["tenant"], string(e.Data), err)

	msg.Metadata["ce_time"] = "yesterday"
	_, err = event.Parse(msg)
	fmt.Println(err)
	// Output:
	// order.placed 42 blue {"id":"a-1"} <nil>
	// event: ce_time "yesterday": not an RFC 3339 time such as 2006-01-02T15:04:05Z
}

func ExampleTypeOf() {
	structured := newMessage(`{"specversion":"1.0","id":"42","source":"/shop","type":"order.placed","data":{}}`,
		message.Metadata{"content-type": "application/cloudevents+json"})
	fmt.Println(event.TypeOf(structured))

	plain := newMessage(`{}`, nil)
	t, err := event.TypeOf(plain)
	fmt.Printf("%q %v\n", t, err)
	// Output:
	// order.placed <nil>
	// "" <nil>
}

func ExampleIdentify() {
	msg := newMessage(`{}`, message.Metadata{"ce_source": "/shop", "ce_id": "42"})
	fmt.Println(event.Identify(msg, "orders"))

	msg = newMessage(`{}`, nil)
	msg.UUID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
	fmt.Println(event.Identify(msg, "orders"))

	msg.UUID = ""
	_, err := event.Identify(msg, "orders")
	fmt.Println(err)
	// Output:
	// ce:/shop 42 <nil>
	// uuid:orders 0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b <nil>
	// event: id: none can be had: no ce_source with ce_id, no UUID, and for the position no brokers.Delivery
}

func ExampleIdentifyRedriven() {
	msg := newMessage(`{}`, message.Metadata{event.MetaFrozenID: "pos:orders abc/3/7"})
	fmt.Println(event.IdentifyRedriven(msg, "billing.orders.redrive"))
	// Output: pos:orders abc/3/7 <nil>
}

func ExampleNaturalID() {
	fmt.Println(event.NaturalID("payment-7"))
	// Output: key:payment-7 <nil>
}

func ExampleKeyOf() {
	fmt.Println(event.KeyOf(newMessage(`{}`, message.Metadata{"ce_subject": "order/7"})))
	// Output: order/7
}

func ExampleDecode() {
	type placed struct {
		ID string `json:"id"`
	}
	msg := newMessage(`{"id":"a-1","unknown":true}`, message.Metadata{
		"ce_specversion": "1.0", "ce_id": "42", "ce_source": "/shop", "ce_type": "order.placed",
	})
	v, e, err := event.Decode[placed](nil, msg) // nil: JSON, no upcasters
	fmt.Println(e.Type, v.ID, err)

	// A tombstone is refused where nil cannot stand for it, and is nil where it can.
	msg.Payload = nil
	_, _, err = event.Decode[placed](nil, msg)
	fmt.Println(errors.Is(err, event.ErrNoData))
	p, _, err := event.Decode[*placed](nil, msg)
	fmt.Println(p == nil, err)
	// Output:
	// order.placed a-1 <nil>
	// true
	// true <nil>
}

func ExampleUpcasters() {
	var upcasters event.Upcasters
	// Version 1 called the field "no", version 2 "id".
	upcasters.Add("order.placed", 1, func(data []byte) ([]byte, error) {
		return bytes.Replace(data, []byte(`"no"`), []byte(`"id"`), 1), nil
	})
	decoder, err := event.NewDecoder(event.DecoderConfig{Upcasters: &upcasters})
	if err != nil {
		fmt.Println(err)
		return
	}
	type placed struct {
		ID string `json:"id"`
	}
	for version, data := range map[string]string{"1": `{"no":"a-1"}`, "2": `{"id":"a-1"}`} {
		v, _, err := event.Decode[placed](decoder, newMessage(data, message.Metadata{
			"ce_specversion": "1.0", "ce_id": "42", "ce_source": "/shop", "ce_type": "order.placed", "ce_schemaversion": version,
		}))
		fmt.Println(version, v.ID, err)
	}
	// Unordered output:
	// 1 a-1 <nil>
	// 2 a-1 <nil>
}

func ExampleNew() {
	ctx := event.ContextWithSource(context.Background(), "/billing")
	ctx = event.ContextWithCorrelation(ctx, "request-7")
	msg, err := event.New(ctx, "invoice.created", map[string]int{"total": 5}, event.WithID("i-1"), event.WithKey("customer-3"))
	if err != nil {
		fmt.Println(err)
		return
	}
	e, err := event.Parse(msg)
	fmt.Println(msg.UUID == e.ID, e.Source, e.Type, e.PartitionKey, e.CorrelationID, string(e.Data), err)
	// Output: true /billing invoice.created customer-3 request-7 {"total":5} <nil>
}

func ExampleFromContext() {
	handler := func(ctx context.Context) {
		e, ok := event.FromContext(ctx)
		fmt.Println(e.Type, ok)
	}
	handler(event.NewContext(context.Background(), &event.Envelope{Type: "order.placed"}))
	handler(context.Background())
	// Output:
	// order.placed true
	//  false
}

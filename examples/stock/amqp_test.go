//go:build !race

// watermill-amqp has a data race of its own (ConnectionWrapper.IsConnected against handleConnectionClose), so that this
// runs without the detector: go test ./examples/stock

package main

import (
	"context"
	"net/url"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestStockAMQPLosesNothing(t *testing.T) {
	server := testserver.AMQP(t)
	conn, err := amqp091.Dial(server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	// The example's topics have fixed names.
	sweep := func() {
		for _, topic := range []string{"orders", "orders.DLT", "orders.billing.orders.REDRIVE"} {
			for _, q := range []string{topic + ".unrouted", topic + "_billing.orders", topic + "_billing.orders.REDRIVE"} {
				if _, err := ch.QueueDelete(q, false, false, false); err != nil {
					t.Fatal(err)
				}
			}
			for _, x := range []string{topic, topic + ".unrouted"} {
				if err := ch.ExchangeDelete(x, false, false); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	sweep()
	defer sweep()

	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	proxy := testserver.NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	open := func(context.Context) (brokers.Broker, func(*error), error) { return stockAMQP(u.String()) }
	// The consumer's queue has to be there before what it is to get.
	broker, closeBroker, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sub, err := broker.Subscriber(brokers.Subscription{Consumer: "billing.orders", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.(message.SubscribeInitializer).SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	if closeBroker(&err); err != nil {
		t.Error(err)
	}
	losesNothing(t, open, true, func() error { proxy.Cut(); return nil })

	dead, there, err := ch.Get("orders.DLT.unrouted", true)
	if err != nil || !there {
		t.Fatalf("no dead letter, error %v; want one", err)
	}
	for { // a stop between dead letter and ack repeats it
		again, there, err := ch.Get("orders.DLT.unrouted", true)
		if err != nil {
			t.Fatal(err)
		}
		if !there {
			break
		}
		if again.Headers["_watermill_message_uuid"] != dead.Headers["_watermill_message_uuid"] {
			t.Errorf("there are dead letters of several messages: %v, %v", dead.Headers, again.Headers)
		}
	}
}

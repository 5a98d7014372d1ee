package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
)

// openBroker is the one place that knows which broker there is. Nothing else changes with it.
func openBroker(url string) (brokers.Broker, error) {
	scheme, rest, _ := strings.Cut(url, ":")
	switch scheme {
	case "", "memory":
		return memoryWithOrders()
	case "embedded":
		return embedded.New(embedded.Config{Dir: rest}, jetstream.Config{})
	case "nats":
		return jetstream.New(jetstream.Config{URL: url})
	case "kafka":
		return kafka.New(kafka.Config{Seeds: strings.Split(strings.TrimPrefix(rest, "//"), ",")})
	}
	return nil, fmt.Errorf("BROKER_URL is %q: want memory:, embedded:DIR, nats://HOST:PORT or kafka://HOST:PORT", url)
}

// memoryWithOrders has a few orders to handle, since nobody else can publish to it.
func memoryWithOrders() (brokers.Broker, error) {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return nil, err
	}
	pub, err := broker.Publisher()
	if err != nil {
		return nil, closing(broker, err)
	}
	ctx := event.ContextWithSource(context.Background(), "/shop")
	today := time.Now().Format("0102-150405-") // other orders than those of the last run, whose refunds are kept
	for _, o := range []struct {
		eventType string
		data      any
	}{
		{"order.placed", OrderPlaced{OrderID: today + "1", Items: 2}},
		{"order.placed", OrderPlaced{OrderID: today + "2", Items: 1}},
		{"order.cancelled", OrderCancelled{OrderID: today + "1", Cents: 4990}},
	} {
		msg, err := event.New(ctx, o.eventType, o.data, event.WithKey("orders"))
		if err != nil {
			return nil, closing(broker, err)
		}
		if err := pub.Publish("orders", msg); err != nil {
			return nil, closing(broker, err)
		}
	}
	return broker, nil
}

// closing closes what was opened before err.
func closing(c io.Closer, err error) error { return errors.Join(err, c.Close()) }

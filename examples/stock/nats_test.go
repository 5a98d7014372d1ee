//go:build !race

// watermill-nats closes a subscription's channel while it may still send into it (Subscriber.Subscribe against processMessage), so that this
// runs without the detector: go test ./examples/stock

package main

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
)

func TestStockNATSLosesNothing(t *testing.T) {
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	losesNothing(t, func(context.Context) (brokers.Broker, func(*error), error) {
		return stockNATS(server.URL(), 2*time.Second)
	}, true, nil)
	conn, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if m, err := js.GetLastMsg(natsStream, "orders.DLT"); err != nil || m.Header.Get("headrace_dlt_attempts") == "" {
		t.Errorf("there is no dead letter: %v, %v", m, err)
	}
}

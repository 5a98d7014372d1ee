package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	pulsarlog "github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

// pulsarSystem has no stock adapter: there is none.
var pulsarSystem = system{"pulsar", "HEADRACE_PULSAR_URL", 20_000, []subject{
	{raw, "pulsar-client-go", 1, onPulsar(rawPulsar)},
	{headrace, "headrace", window, onPulsar(func(ctx context.Context, l *pace.Load, name string, client pulsarclient.Client) error {
		broker, err := pulsar.New(pulsar.Config{Client: client})
		if err != nil {
			return err
		}
		return errors.Join(onRuntime(ctx, l, name, broker), broker.Close())
	})},
}}

// pulsarAdmin is the environment variable with the address of the server's administration.
const pulsarAdmin = "HEADRACE_PULSAR_ADMIN_URL"

// rawPulsar is a member of the subscription that the adapter has made.
func rawPulsar(ctx context.Context, l *pace.Load, name string, client pulsarclient.Client) error {
	c, err := client.Subscribe(pulsarclient.ConsumerOptions{
		Topic: name, SubscriptionName: consumer, Type: pulsarclient.KeyShared, ReceiverQueueSize: window,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		m, err := c.Receive(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		l.Handle()
		if err := c.Ack(m); err != nil {
			return err
		}
	}
}

// onPulsar has the adapter make topics and their subscription, and deletes them.
func onPulsar(run func(ctx context.Context, l *pace.Load, name string, client pulsarclient.Client) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		if os.Getenv(pulsarAdmin) == "" {
			return topic{}, errors.New(pulsarAdmin + " is not set: topics are deleted there")
		}
		client, err := pulsarclient.NewClient(pulsarclient.ClientOptions{
			URL:               address,
			Logger:            pulsarlog.NewLoggerWithSlog(slog.New(slog.DiscardHandler)),
			MetricsRegisterer: prometheus.NewRegistry(), // of this client, which ends with the row
		})
		if err != nil {
			return topic{}, err
		}
		name := topicName()
		remove := func() error {
			defer client.Close()
			ctx := context.WithoutCancel(ctx)
			return errors.Join(removePulsar(ctx, name), removePulsar(ctx, name+"-"+consumer+"-headrace-delay"))
		}
		broker, err := pulsar.New(pulsar.Config{Client: client})
		if err == nil {
			err = errors.Join(fillBroker(ctx, broker, name, n), broker.Close())
		}
		if err != nil {
			return topic{}, errors.Join(err, remove())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, name, client) },
			remove: remove,
		}, nil
	}
}

// removePulsar deletes a topic of the default namespace if it is there: the client cannot.
func removePulsar(ctx context.Context, name string) error {
	url := os.Getenv(pulsarAdmin) + "/admin/v2/persistent/public/default/" + name + "?force=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	err = resp.Body.Close()
	if resp.StatusCode >= 300 && resp.StatusCode != http.StatusNotFound {
		err = errors.Join(err, fmt.Errorf("delete topic %s: %s", name, resp.Status))
	}
	return err
}

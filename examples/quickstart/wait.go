package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	nats "github.com/nats-io/nats.go/jetstream"
)

// wait blocks until every message was handled, working ends because a service failed, or ctx ends; then its error
// tells what was waited for.
func (j *job) wait(ctx, working context.Context, p *progress) error {
	js, err := nats.New(j.broker.Conn())
	if err != nil {
		return err
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		missing, err := j.missing(ctx, js)
		switch {
		case working.Err() != nil:
			return nil // the service's own error says more
		case ctx.Err() != nil:
			return fmt.Errorf("%w; waiting for %s", context.Cause(ctx), j.waitingFor)
		case err != nil:
			return err
		case missing == "":
			return nil
		}
		j.waitingFor = missing
		p.show(j.line(missing))
		select {
		case <-look.C:
		case <-ctx.Done():
		case <-working.Done():
		}
	}
}

// missing looks along the way of the messages: when a stage has nothing left, it gives nothing more to the next
// one. It returns what the first stage that is not done waits for.
func (j *job) missing(ctx context.Context, js nats.JetStream) (string, error) {
	if !j.producer.done.Load() {
		return fmt.Sprintf("the producer: %d of %d messages published", j.producer.published.Load(), len(j.input)), nil
	}
	if left, err := unsettled(ctx, js, webhooksTopic); left != "" || err != nil {
		return left, err
	}
	backlog, err := j.tracked.Outbox().Backlog(ctx, len(j.input))
	if err != nil {
		return "", err
	}
	if n := backlog.Rows + backlog.Delayed; n > 0 {
		return fmt.Sprintf("the outbox: %d rows", n), nil
	}
	for _, topic := range []string{changesTopic, deadLettersTopic} {
		if left, err := unsettled(ctx, js, topic); left != "" || err != nil {
			return left, err
		}
	}
	return "", nil
}

// unsettled tells what the consumers of a topic have not settled, by JetStream's own count.
func unsettled(ctx context.Context, js nats.JetStream, topic string) (string, error) {
	name, err := js.StreamNameBySubject(ctx, topic)
	if errors.Is(err, nats.ErrStreamNotFound) {
		return topic + ": no stream yet", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the stream of %s: %w", topic, err)
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return "", fmt.Errorf("look at stream %s: %w", name, err)
	}
	consumers := stream.ListConsumers(ctx)
	var left []string
	found := false
	for c := range consumers.Info() {
		found = true
		if c.NumPending > 0 || c.NumAckPending > 0 {
			left = append(left, fmt.Sprintf("%s: %d pending, %d un-acked", c.Name, c.NumPending, c.NumAckPending))
		}
	}
	if err := consumers.Err(); err != nil {
		return "", fmt.Errorf("list the consumers of %s: %w", topic, err)
	}
	if !found {
		return topic + ": no consumer yet", nil
	}
	return strings.Join(left, ", "), nil
}

// line is the line of the progress.
func (j *job) line(missing string) string {
	s := j.webhooks.Stats()
	return fmt.Sprintf("published %d/%d  effects %d  duplicates %d  stale %d  retries %d  dead letters %d  notifications %d  | %s",
		j.producer.published.Load(), len(j.input), s.Effects, s.Duplicates, s.Stale, s.Retries, s.DeadLettered,
		j.changes.Stats().Effects, missing)
}

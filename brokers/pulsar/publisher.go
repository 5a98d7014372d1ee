package pulsar

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/classify"
)

// ErrUnconfirmed says that the server has not confirmed a message in time: it may be stored.
var ErrUnconfirmed = errors.New("not confirmed by the server in time")

type publisher struct {
	broker *Broker
	calls  adapter.Calls
}

// Publish is described at [Broker.Publisher].
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if err := p.begin(); err != nil {
		return fmt.Errorf("pulsar: publish to topic %q: %w", topic, err)
	}
	defer p.calls.Done()
	if err := checkName("topic", topic); err != nil {
		return classify.Permanent(fmt.Errorf("pulsar: publish: %w", err))
	}
	for i, m := range messages {
		if m == nil {
			return classify.Permanent(fmt.Errorf("pulsar: publish to topic %q: message %d is nil", topic, i))
		}
	}
	if len(messages) == 0 {
		return nil
	}
	config := &p.broker.config
	errs := make([]error, len(messages))
	out := make([]*pulsarclient.ProducerMessage, len(messages))
	for i, m := range messages {
		var err error
		if out[i], err = encode(m, config.Key(topic, m), config.MaxMessageBytes); err != nil {
			errs[i] = classify.Permanent(err)
		}
	}
	ctx, cancel := context.WithTimeout(messages[0].Context(), config.PublishTimeout)
	defer cancel()
	p.broker.producers.send(ctx, topic, out, errs)
	return brokers.NewPublishError("pulsar", topic, messages, errs)
}

// begin notes a call, unless the publisher is closed.
func (p *publisher) begin() error {
	if p.broker.pubs.Closed() {
		return fmt.Errorf("broker: %w", ErrClosed)
	}
	if err := p.calls.Begin(); err != nil {
		return fmt.Errorf("publisher: %w", err)
	}
	return nil
}

// Close makes further calls of Publish fail, and waits for those that run. It is idempotent.
func (p *publisher) Close() error {
	p.calls.Close()
	p.broker.pubs.Remove(p)
	return nil
}

// send sends the messages that are not nil, in order, and sets the error of each that the server has not confirmed when ctx ends.
func (s *producers) send(ctx context.Context, topic string, messages []*pulsarclient.ProducerMessage, errs []error) {
	p, err := s.get(ctx, topic)
	if err != nil {
		for i, m := range messages {
			if m != nil {
				errs[i] = err
			}
		}
		return
	}
	type result struct {
		index int
		err   error
	}
	// The client calls back once for each message, also after this call has given up.
	results := make(chan result, len(messages))
	awaited := make(map[int]bool, len(messages))
	for i, m := range messages {
		if m == nil {
			continue
		}
		awaited[i] = true
		p.client.SendAsync(ctx, m, func(_ pulsarclient.MessageID, _ *pulsarclient.ProducerMessage, err error) {
			results <- result{i, err}
		})
	}
	var broken bool
	if len(awaited) > 0 && s.config.Batched {
		// It also waits, and fails as the messages do.
		broken = p.client.FlushWithCtx(ctx) != nil
	}
	for waits := true; waits && len(awaited) > 0; {
		select {
		case r := <-results:
			delete(awaited, r.index)
			errs[r.index] = sendError(r.err)
			broken = broken || r.err != nil && !tooLarge(r.err)
		case <-ctx.Done():
			waits = len(results) > 0
		}
	}
	for i := range awaited {
		errs[i] = fmt.Errorf("%w: %w", ErrUnconfirmed, context.Cause(ctx))
		broken = true
	}
	s.put(p, broken)
}

// sendError marks what another try cannot help.
func sendError(err error) error {
	if err != nil && tooLarge(err) {
		return classify.Permanent(err)
	}
	return err
}

func tooLarge(err error) bool {
	return errors.Is(err, pulsarclient.ErrMessageTooLarge) || errors.Is(err, pulsarclient.ErrMetaTooLarge)
}

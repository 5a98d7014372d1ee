package ordering_test

import (
	"context"
	"io"
	"log"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/ordering"
)

// paired makes one subscriber of both halves of an intake: it plays the router, with a handler that
// gives the message to the reader and waits for its ack or nack.
type paired struct {
	intake *ordering.Intake
	message.Subscriber
	wg sync.WaitGroup
}

func newPaired(t *testing.T, inner message.Subscriber) *paired {
	intake := newIntake(t, ordering.Config{Concurrency: 1000})
	sub, err := intake.Decorate(inner)
	if err != nil {
		t.Fatal(err)
	}
	return &paired{intake: intake, Subscriber: sub}
}

func (p *paired) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := p.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	h := p.intake.Middleware(func(view *message.Message) ([]*message.Message, error) {
		msg := view.CopyWithContext()
		handed := out
		for {
			select {
			case handed <- msg:
				handed = nil
			case <-msg.Acked():
				return nil, nil
			case <-msg.Nacked():
				return nil, errTest
			case <-ctx.Done(): // nobody reads any more
				return nil, ctx.Err()
			case <-view.Context().Done():
				return nil, view.Context().Err()
			}
		}
	})
	p.wg.Go(func() {
		var running sync.WaitGroup
		for view := range in {
			running.Go(func() { _, _ = h(view) })
		}
		running.Wait()
		close(out)
	})
	return out, nil
}

func (p *paired) Close() error {
	defer p.wg.Wait()
	return p.Subscriber.Close()
}

// Watermill's own suite for subscribers, over gochannel.
func TestWatermillSuite(t *testing.T) {
	log.SetOutput(io.Discard)
	tests.TestPubSub(t, tests.Features{ExactlyOnceDelivery: true, RequireSingleInstance: true},
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			broker := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10000, Persistent: true}, watermill.NopLogger{})
			return broker, newPaired(t, broker)
		}, nil)
}

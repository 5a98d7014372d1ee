package sqs

import (
	"context"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// subscribe makes the queue if it is not there, checks its redrive policy, and opens a subscription. It takes up to
// Config.WaitTime to end, and with a slow service Config.CloseTimeout more. Acks that were given by then reach the service; what
// was not settled is given back. So its context has to last as long as anybody holds a delivery.
func (b *Broker) subscribe(ctx context.Context, want brokers.Subscription, topic string) (adapter.Opened, error) {
	q, err := b.consumerQueue(ctx, topic, want.Consumer)
	if err != nil {
		return adapter.Opened{}, err
	}
	if err := b.checkRedrivePolicy(ctx, q); err != nil {
		if isNoQueue(err) {
			b.gone(q.name)
		}
		return adapter.Opened{}, err
	}
	n := newSubscription(b, topic, want.Consumer, want.Window, q)
	return adapter.Opened{Out: n.out, Run: n.run, Abandon: n.abandon}, nil
}

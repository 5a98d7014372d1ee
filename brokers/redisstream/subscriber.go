package redisstream

import (
	"context"
	"fmt"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// subscribe makes the stream and the group, which begins with the stream's first entry, if they are not there, and opens
// a subscription. Acks that were given by its end reach the server; what was not settled is given back. So its context
// has to last as long as anybody holds a delivery.
func (b *Broker) subscribe(ctx context.Context, want brokers.Subscription, topic string) (adapter.Opened, error) {
	name, free := b.member(topic, want.Consumer)
	m := newMembership(&b.config, topic, want.Consumer, name)
	if err := m.join(ctx); err != nil {
		free()
		return adapter.Opened{}, fmt.Errorf("redisstream: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	n := newSubscription(&b.config, m, topic, want.Window)
	n.free = free
	return adapter.Opened{Out: n.out, Run: n.run, Abandon: n.abandon}, nil
}

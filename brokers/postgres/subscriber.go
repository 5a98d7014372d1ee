package postgres

import (
	"context"
	"fmt"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// subscribe registers the consumer with topic, which is I/O, and opens a subscription. It also ends, which is logged, when
// the consumer was unregistered. Acks that were given by its end are stored if the database can be reached; what was not
// settled is given back. So its context has to last as long as anybody holds a delivery.
func (b *Broker) subscribe(ctx context.Context, want brokers.Subscription, topic string) (adapter.Opened, error) {
	if err := b.Register(ctx, topic, want.Consumer); err != nil {
		return adapter.Opened{}, err
	}
	g, err := b.find(ctx, b.pool, topic, want.Consumer)
	if err == nil && g.id == 0 {
		err = errUnregistered
	}
	if err != nil {
		return adapter.Opened{}, fmt.Errorf("postgres: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	n := newSubscription(b, want, topic, g)
	b.enter(n)
	b.notifier.listen()
	return adapter.Opened{Out: n.out, Run: n.run, Abandon: func() { b.exit(n) }}, nil
}

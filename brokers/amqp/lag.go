package amqp

import (
	"context"
	"time"
)

// Lag returns how many messages consumer has not settled of topic, as far as this process is concerned: what the queue has left when
// it was last asked, a few seconds ago, if a subscription of this process is the active one, and what is held un-acked. What waits since no
// queue was bound to get it counts as well. Competing consumers have an equal part each of what is left. It is not known before the first answer.
func (b *Broker) Lag(consumer, topic string) (messages int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range b.reads {
		if n.consumer != consumer || n.topic != topic {
			continue
		}
		s := n.session.Load()
		if s == nil {
			continue
		}
		ready := s.ready.Load()
		if ready < 0 {
			continue
		}
		known = true
		if s.active.Load() || b.config.CompetingConsumers {
			messages += ready
		}
		messages += int64(s.unsettled())
	}
	return messages, known
}

func (b *Broker) noteRead(n *subscription, runs bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if runs {
		b.reads[n] = struct{}{}
	} else {
		delete(b.reads, n)
	}
}

// measure asks how many messages the queue has, from time to time, and sees to it that it gets what is published.
func (s *session) measure(ctx context.Context) {
	n, config := s.subscription, &s.subscription.broker.config
	tick := time.NewTicker(config.LagInterval)
	defer tick.Stop()
	for {
		q, err := checkQueue(s.channel, n.queue)
		waiting := 0
		if err == nil && config.Topology == Declare {
			waiting, err = rebind(s.channel, n.topic, n.queue)
		}
		if err != nil {
			return // the channel is closed: the session ends
		}
		share := 1
		if config.CompetingConsumers {
			share = max(q.Consumers, 1)
		}
		s.ready.Store(int64((q.Messages + waiting + share - 1) / share))
		if waiting > 0 {
			n.log.Warn("amqp: messages wait that no queue was bound to get; registers again", "messages", waiting)
			if err := n.registerAgain(ctx); err != nil && ctx.Err() == nil {
				n.log.Warn("amqp: cannot register again; tries again", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

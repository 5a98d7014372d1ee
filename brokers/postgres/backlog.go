package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrFull is what Publish's error wraps when a consumer of the topic has more than [Config.MaxBacklog] messages to ack.
var ErrFull = errors.New("topic is full")

const (
	// backlogEvery is the least time between two counts of one topic, which are taken when it is published to.
	backlogEvery = 3 * time.Second
	// maxCounted bounds the topics whose counts are remembered.
	maxCounted = 10_000
)

// backlogs knows which topics are full.
type backlogs struct {
	broker *Broker
	mu     sync.Mutex
	topics map[string]*backlog
}

type backlog struct {
	counting bool
	next     time.Time
	full     error
}

func newBacklogs(b *Broker) *backlogs {
	return &backlogs{broker: b, topics: make(map[string]*backlog)}
}

// check returns an error if topic was full when it was counted last. It does not block.
func (c *backlogs) check(topic string) error {
	if c.broker.config.MaxBacklog == Unlimited {
		return nil
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topics[topic]
	if t == nil {
		if len(c.topics) >= maxCounted {
			clear(c.topics)
		}
		t = &backlog{}
		c.topics[topic] = t
	}
	if !t.counting && !now.Before(t.next) {
		t.counting = c.broker.start(func() { c.count(topic, t) })
	}
	return t.full
}

func (c *backlogs) count(topic string, t *backlog) {
	ctx, cancel := context.WithTimeout(c.broker.ctx, time.Minute)
	defer cancel()
	began := time.Now()
	limit := c.broker.config.MaxBacklog
	var consumer string
	var n int
	err := c.broker.pool.QueryRow(ctx, c.broker.sql.backlog, topic, limit+1).Scan(&consumer, &n)
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	t.counting = false
	// A large backlog takes long to count: a twentieth of the time is enough.
	t.next = began.Add(max(backlogEvery, 20*took))
	if err != nil {
		return // what was known stays
	}
	t.full = nil
	if n > limit {
		who := fmt.Sprintf("consumer %q has not acked", consumer)
		if consumer == "" {
			who = "there is no consumer yet for"
		}
		t.full = fmt.Errorf("postgres: publish to topic %q: %w: %s more than %d messages (MaxBacklog)", topic, ErrFull, who, limit)
	}
}

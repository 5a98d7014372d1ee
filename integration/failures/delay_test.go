package failures_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

// The delays of these tests: what is longer than maxHold leaves the lane.
const (
	maxHold = 20 * time.Millisecond
	later   = 300 * time.Millisecond
)

var errLater = errors.New("the carrier asks to come back later")

// asking counts how often orders ask for a delay.
type asking struct {
	mu    sync.Mutex
	times map[string]int
}

// most is a check that lets each of ids ask for a delay n times.
func (a *asking) most(n int, ids map[string]bool) func(string) error {
	a.times = map[string]int{}
	return func(id string) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !ids[id] || a.times[id] >= n {
			return nil
		}
		a.times[id]++
		return classify.RetryAfter(errLater, later)
	}
}

// Orders ask for delays that are too long for the lane. JetStream keeps them itself, Kafka's go through the outbox: the others of
// their keys go on, and each takes effect once.
func TestDelayedOrdersTakeEffectOnceAndHoldUpNobody(t *testing.T) {
	for _, on := range sites {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			v, ids := startDelays(t, on.open(t), nil)
			v.once(ids)
		})
	}
}

// A consumer that parks keeps the order of its keys through all delays.
func TestDelayedOrdersOfAConsumerThatParksKeepTheirPlace(t *testing.T) {
	for _, on := range sites {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			v, _ := startDelays(t, on.open(t), &parking.Policy{Poll: 20 * time.Millisecond})
			v.once(nil)
			if n, err := v.parking.Count(t.Context(), v.consumer); err != nil || n.Keys != 0 {
				t.Errorf("%+v, %v is left parked, want nothing", n, err)
			}
		})
	}
}

// startDelays runs orders of which some ask for a delay three times, until all are handled. The service is drained in the middle, and
// another one goes on.
func startDelays(t *testing.T, s *site, park *parking.Policy) (*service, map[string]bool) {
	t.Helper()
	const keys, each = 23, 6
	change := func(c *runtime.ConsumerConfig) {
		c.MaxHold, c.Park = maxHold, park
		c.Retry.MaxRetryAfter = time.Minute
		c.Retry.MaxAttempts = 20 // JetStream counts what a drain gives back as well
	}
	v := start(s, keys, change)
	ids := map[string]bool{}
	for key := 0; key < keys; key += 3 {
		ids[orderID(key, 2)] = true
	}
	var asks asking
	check := asks.most(3, ids)
	v.failing(check)
	v.publish(keys * each)
	await(t, "some orders are delayed", func() bool { return v.work.Stats().Delayed > 2 })
	v.quit()
	if stats := v.work.Stats(); stats.DeadLettered != 0 {
		t.Errorf("%+v, want no dead letter", stats)
	}

	next := start(s, keys, change)
	next.failing(check)
	next.next, next.sent = v.next, v.sent
	reach(t, "effects", v.sent, func() int { return len(s.effects()) })
	next.quit()
	asks.mu.Lock()
	defer asks.mu.Unlock()
	for id := range ids {
		if asks.times[id] != 3 {
			t.Errorf("%s asked for a delay %d times, want 3", id, asks.times[id])
		}
	}
	stats := next.work.Stats()
	if stats.DeadLettered != 0 {
		t.Errorf("%+v, want no dead letter", stats)
	}
	t.Logf("%d orders, %d of which asked for a delay three times; first process %+v, second %+v", v.sent, len(ids), v.work.Stats(), stats)
	if v.work.Stats().Delayed+stats.Delayed < int64(3*len(ids)) {
		t.Errorf("%d and %d delays, want %d", v.work.Stats().Delayed, stats.Delayed, 3*len(ids))
	}
	return v, ids
}

// An order asks for a delay for ever. Its dead letter tells of all runs, or of all deliveries where the broker kept the delays.
func TestR5DelaysOfAnOrderEndInADeadLetter(t *testing.T) {
	for _, on := range sites {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			s := on.open(t)
			v := start(s, 2, func(c *runtime.ConsumerConfig) {
				c.MaxHold = maxHold
				c.Retry = middleware.RetryConfig{MaxAttempts: 4, MaxRetryAfter: time.Minute}
				c.Breaker.Off = true
			})
			bad := orderID(0, 1)
			var asks asking
			v.failing(asks.most(100, map[string]bool{bad: true}))
			v.publish(4)
			await(t, "the dead letter", func() bool { return v.work.Stats().DeadLettered == 1 })
			v.quit()
			if n := asks.times[bad]; n != 4 {
				t.Errorf("it ran %d times, want 4", n)
			}
			var records []poison.Record
			err := s.reader.Read(t.Context(), v.topic+poison.Suffix, brokers.Range{}, func(m *message.Message) error {
				r, err := poison.Parse(m)
				records = append(records, r)
				return err
			})
			if err != nil || len(records) != 1 {
				t.Fatalf("%d dead letters, %v; want 1", len(records), err)
			}
			if r := records[0]; r.Attempts+max(r.Deliveries-1, 0) != 4 || r.Deaths != 1 || r.Topic != v.topic {
				t.Errorf("dead letter after %d attempts, in %d deliveries, deaths %d, of %s; want 4 in all, 1, %s", r.Attempts, r.Deliveries, r.Deaths, r.Topic, v.topic)
			}
		})
	}
}

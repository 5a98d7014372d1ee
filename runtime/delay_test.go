package runtime_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// undelaying is a broker that cannot delay one message, as Kafka.
type undelaying struct{ brokers.Broker }

func (b undelaying) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	sub, err := b.Broker.Subscriber(s)
	if err != nil {
		return nil, err
	}
	return message.MessageTransformSubscriberDecorator(func(msg *message.Message) {
		d := *brokers.DeliveryOf(msg.Context())
		d.Delay, d.Count = nil, 0
		msg.SetContext(brokers.WithDelivery(msg.Context(), &d))
	})(sub)
}

// timeline notes what was handled, and when.
type timeline struct {
	mu    sync.Mutex
	began time.Time
	got   []string
}

// note returns how often id was handled, this time included.
func (l *timeline) note(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, fmt.Sprintf("%s at %v", id, time.Since(l.began).Round(10*time.Second)))
	n := 0
	for _, entry := range l.got {
		if strings.HasPrefix(entry, id+" ") {
			n++
		}
	}
	return n
}

func (l *timeline) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

// firstAsks is a handler in which the first run of order 1 asks for 4 minutes.
func (l *timeline) firstAsks(mark func(error, time.Duration) error) func(context.Context, order) error {
	return func(_ context.Context, o order) error {
		if l.note(o.ID) == 1 && o.ID == "1" {
			return mark(errBroken, 4*time.Minute)
		}
		return nil
	}
}

// wantOfTwo publishes two orders of a key and checks what was handled when both have taken effect.
func (l *timeline) wantOfTwo(b *bench, c *runtime.Consumer, want ...string) {
	b.t.Helper()
	b.publish("orders", placed(b.t, "1"), placed(b.t, "2"))
	b.start()
	until(b.t, "both handled", 10*time.Minute, func() bool { return c.Stats().Effects == 2 })
	b.mustStop()
	if got := l.all(); !slices.Equal(got, want) {
		b.t.Errorf("handled %q, want %q", got, want)
	}
}

// delayBench is a runtime with an outbox in memory on a broker that cannot delay.
func delayBench(t *testing.T, change func(*runtime.Config)) (*bench, *outboxsuite.Memory, *timeline) {
	t.Helper()
	b := newBench(t, func(c *runtime.Config) {
		realistic(c)
		c.Broker = undelaying{c.Broker}
		if change != nil {
			change(c)
		}
	})
	box := outboxsuite.NewMemory()
	b.rt.Relay(box, outbox.RelayConfig{})
	return b, box, &timeline{began: time.Now()}
}

// The broker cannot delay one message, and a message that asked for a long delay held its key for all of it.
func TestLongRetryAfterGoesToTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, box, line := delayBench(t, nil)
		c := b.rt.Consumer("billing", "orders")
		var before, after *event.Envelope
		runtime.Handle(c, "order.placed", func(ctx context.Context, o order) error {
			e, _ := event.FromContext(ctx)
			if line.note(o.ID) == 1 && o.ID == "1" {
				before = &e
				return classify.RetryAfter(errBroken, 4*time.Minute)
			}
			if o.ID == "1" {
				after = &e
			}
			return nil
		})
		b.publish("orders", placed(t, "1"), placed(t, "2"))
		b.start()
		until(t, "1 is in the outbox", time.Minute, func() bool { return c.Stats().Delayed == 1 })
		if n := b.unacked("orders", "billing"); n > 1 {
			t.Errorf("%d messages are un-acked while one is delayed, want it acked", n)
		}
		if left, err := box.Backlog(t.Context(), 10); err != nil || left.Delayed != 1 {
			t.Errorf("outbox %+v, %v; want 1 delayed", left, err)
		}
		until(t, "both handled", 10*time.Minute, func() bool { return c.Stats().Effects == 2 })
		b.mustStop()
		if want := []string{"1 at 0s", "2 at 0s", "1 at 4m0s"}; !slices.Equal(line.all(), want) {
			t.Errorf("handled %q, want %q: the key went on meanwhile", line.all(), want)
		}
		if s := c.Stats(); s.Deliveries != 3 || s.DeadLettered != 0 {
			t.Errorf("stats are %+v, want 3 deliveries and no dead letter", s)
		}
		if after == nil || after.ID != before.ID || after.Source != before.Source || string(after.Data) != string(before.Data) {
			t.Errorf("came back as %+v, want %+v", after, before)
		}
	})
}

// The budget began anew with each delivery: a message that asks for a delay each time never ended.
func TestR5AttemptsCountOverDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, line := delayBench(t, func(c *runtime.Config) { c.Retry.MaxAttempts, c.Breaker.Off = 4, true })
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			line.note(o.ID)
			return classify.RetryAfter(errBroken, 2*time.Minute)
		})
		b.publish("orders", placed(t, "1"))
		b.start()
		began := time.Now()
		until(t, "the dead letter", time.Hour, func() bool { return c.Stats().DeadLettered == 1 })
		rec := parseDead(t, b.dead("orders", 1)[0])
		b.mustStop()
		if want := []string{"1 at 0s", "1 at 2m0s", "1 at 4m0s", "1 at 6m0s"}; !slices.Equal(line.all(), want) {
			t.Errorf("handled %q, want %q", line.all(), want)
		}
		if rec.Attempts != 4 || rec.Deaths != 1 || rec.Hops != 0 || rec.Topic != "orders" || string(rec.Payload) != `{"id":"1"}` {
			t.Errorf("dead letter has attempts %d, deaths %d, hops %d, topic %q, payload %q; want 4, 1, 0, orders and what was sent",
				rec.Attempts, rec.Deaths, rec.Hops, rec.Topic, rec.Payload)
		}
		if first := rec.FirstFailure.Sub(began); first > time.Second {
			t.Errorf("it had failed first after %v, want at the first attempt", first)
		}
		if s := c.Stats(); s.Delayed != 3 {
			t.Errorf("stats are %+v, want 3 delays", s)
		}
		for key := range rec.Metadata {
			if strings.HasPrefix(key, event.MetaPrefix) {
				t.Errorf("the original has the metadata %q, want it as it was sent", key)
			}
		}
	})
}

// The database is away when a message is to be delayed: it is held until it can be, and no dead letter.
func TestDelayIsTriedUntilItIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, box, line := delayBench(t, nil)
		var away sync.Map
		away.Store("InsertDelayed", true)
		box.Fail(func(op string) error {
			if _, ok := away.Load(op); ok {
				return errBroken
			}
			return nil
		})
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", line.firstAsks(classify.RetryAfter))
		b.publish("orders", placed(t, "1"), placed(t, "2"))
		b.start()
		time.Sleep(2 * time.Minute)
		if got, want := line.all(), []string{"1 at 0s"}; !slices.Equal(got, want) {
			t.Errorf("handled %q while it cannot be stored, want %q: the key is held", got, want)
		}
		away.Clear()
		until(t, "both handled", 10*time.Minute, func() bool { return c.Stats().Effects == 2 })
		b.mustStop()
		got := line.all()
		if len(got) != 3 || got[2] != "1 at 4m0s" || c.Stats().DeadLettered != 0 {
			t.Errorf("handled %q, want 1 at last, after 4 minutes in all, and no dead letter", got)
		}
	})
}

// A drain while the delay cannot be stored: the message is given back, and is handled by the next process.
func TestDrainWhileADelayCannotBeStoredGivesTheMessageBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, box, line := delayBench(t, nil)
		box.Fail(func(op string) error {
			if op == "InsertDelayed" {
				return errBroken
			}
			return nil
		})
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			line.note(o.ID)
			return classify.RetryAfter(errBroken, 4*time.Minute)
		})
		b.publish("orders", placed(t, "1"))
		b.start()
		time.Sleep(time.Minute)
		b.mustStop()
		if s := c.Stats(); s.Released != 1 || s.Delayed != 0 || s.DeadLettered != 0 {
			t.Errorf("stats are %+v, want 1 released", s)
		}
		if n := b.unacked("orders", "billing"); n != 1 {
			t.Errorf("%d messages un-acked, want 1: it comes again", n)
		}
	})
}

// A message is in the outbox when the process drains. The next one has it when it is due.
func TestDrainWhileDelayedLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, box, line := delayBench(t, nil)
		handle := line.firstAsks(classify.RetryAfter)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", handle)
		b.publish("orders", placed(t, "1"))
		b.start()
		until(t, "1 is delayed", time.Minute, func() bool { return c.Stats().Delayed == 1 })
		b.mustStop()

		next := newBench(t, func(cfg *runtime.Config) { realistic(cfg); cfg.Broker = undelaying{b.broker} })
		next.rt.Relay(box, outbox.RelayConfig{})
		c = next.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", handle)
		next.start()
		until(t, "1 is handled", 10*time.Minute, func() bool { return c.Stats().Effects == 1 })
		next.mustStop()
		if want := []string{"1 at 0s", "1 at 4m0s"}; !slices.Equal(line.all(), want) {
			t.Errorf("handled %q, want %q", line.all(), want)
		}
	})
}

// Metadata that an outbox cannot hold as text, and a payload that it cannot hold at all.
func TestDelayOfWhatAnOutboxCannotHold(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*message.Message)
		delayed int64
	}{
		{"metadata of bytes", func(m *message.Message) { m.Metadata["bytes"] = "\xff\xfe" }, 1},
		{"too large", func(m *message.Message) {
			m.Payload = append(slices.Repeat([]byte{' '}, outbox.MaxPayloadBytes), m.Payload...)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _, line := delayBench(t, nil)
				c := b.rt.Consumer("billing", "orders")
				var sent, got *message.Message
				runtime.HandleMessage(c, "order.placed", func(msg *message.Message) error {
					if line.note("1") == 1 {
						return classify.RetryAfter(errBroken, 4*time.Minute)
					}
					got = msg
					return nil
				})
				sent = placed(t, "1")
				tc.change(sent)
				b.publish("orders", sent)
				b.start()
				until(t, "handled", 10*time.Minute, func() bool { return c.Stats().Effects == 1 })
				b.mustStop()
				if want := []string{"1 at 0s", "1 at 4m0s"}; !slices.Equal(line.all(), want) {
					t.Errorf("handled %q, want %q", line.all(), want)
				}
				if n := c.Stats().Delayed; n != tc.delayed {
					t.Errorf("%d delayed, want %d", n, tc.delayed)
				}
				if got.Metadata["bytes"] != sent.Metadata["bytes"] || len(got.Payload) != len(sent.Payload) {
					t.Errorf("came back with %q and %d bytes, want %q and %d", got.Metadata["bytes"], len(got.Payload), sent.Metadata["bytes"], len(sent.Payload))
				}
			})
		})
	}
}

// A handler that asks for order, and a broker or an outbox that keep none: the lane is held.
func TestRetryAfterInOrderHoldsTheLaneWithoutParking(t *testing.T) {
	for _, delaying := range []bool{true, false} {
		t.Run(fmt.Sprintf("the broker delays %t", delaying), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, line := newBench(t, realistic), &timeline{began: time.Now()}
				if !delaying {
					b, _, line = delayBench(t, nil)
				}
				c := b.rt.Consumer("billing", "orders")
				runtime.Handle(c, "order.placed", line.firstAsks(classify.RetryAfterInOrder))
				line.wantOfTwo(b, c, "1 at 0s", "1 at 4m0s", "2 at 4m0s")
			})
		})
	}
}

// Without a relay, or without the redrive topic, there is no place for it.
func TestLongRetryAfterHoldsTheLaneWithoutAnOutbox(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*runtime.Config)
		relay  bool
	}{
		{"no relay", nil, false},
		{"no redrives", func(c *runtime.Config) { c.Redrive = runtime.RedriveOff }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, line := newBench(t, func(c *runtime.Config) {
					realistic(c)
					c.Broker = undelaying{c.Broker}
					if tc.change != nil {
						tc.change(c)
					}
				}), &timeline{began: time.Now()}
				if tc.relay {
					b.rt.Relay(outboxsuite.NewMemory(), outbox.RelayConfig{})
				}
				c := b.rt.Consumer("billing", "orders")
				runtime.Handle(c, "order.placed", line.firstAsks(classify.RetryAfter))
				line.wantOfTwo(b, c, "1 at 0s", "1 at 4m0s", "2 at 4m0s")
			})
		})
	}
}

// The process dies after the message was stored and before its ack: it comes at once and again later, and takes effect once.
func TestCrashBetweenTheOutboxAndTheAckGivesOneEffect(t *testing.T) {
	store := openStore(t)
	b := newBench(t, func(c *runtime.Config) {
		c.Broker = undelaying{c.Broker}
		c.MaxHold = time.Millisecond
	})
	b.rt.Relay(store.Outbox(), outbox.RelayConfig{})
	c := b.rt.Consumer("billing", "orders")
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, o.ID)
		return err
	})
	// What the dead process left: the message un-acked, and its copy in the outbox.
	sent := placed(t, "1")
	b.publish("orders", sent)
	record := poison.Record{
		Version: 1, Consumer: "billing", Topic: "orders", Partition: -1, Offset: -1, Payload: sent.Payload, Metadata: sent.Metadata, UUID: sent.UUID,
		MessageID: "ce:/shop 1", Attempts: 2, FirstFailure: time.Now(), LastFailure: time.Now(), Verdict: classify.VerdictRetryAfter,
	}
	copied, err := (&poison.Redrive{Kind: poison.KindDelay, Record: record}).Message(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Delay(t.Context(), store.Outbox(), time.Millisecond, poison.RedriveTopic("billing"), copied); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.eventually("both are settled", func() bool { s := c.Stats(); return s.Effects == 1 && s.Duplicates == 1 })
	b.mustStop()
	if got, want := effects(t, store), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

// stuttering is an outbox that stores what it is given and answers, the first time, as if the connection was lost.
type stuttering struct {
	*sqlstore.Outbox
	calls atomic.Int64
}

func (s *stuttering) InsertDelayed(ctx context.Context, row outbox.Row, d time.Duration) error {
	if err := s.Outbox.InsertDelayed(ctx, row, d); err != nil || s.calls.Add(1) > 1 {
		return err
	}
	return errBroken
}

// Nobody knows whether the outbox has the message: it is stored again, comes twice, and takes effect once.
func TestDelayOfUnknownOutcomeGivesOneEffect(t *testing.T) {
	store := openStore(t)
	b := newBench(t, func(c *runtime.Config) {
		c.Broker = undelaying{c.Broker}
		c.MaxHold = time.Millisecond
	})
	b.rt.Relay(&stuttering{Outbox: store.Outbox()}, outbox.RelayConfig{})
	c := b.rt.Consumer("billing", "orders")
	var runs atomic.Int64
	runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
		if runs.Add(1) == 1 {
			return classify.RetryAfter(errBroken, 50*time.Millisecond)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, o.ID)
		return err
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	b.eventually("both copies are settled", func() bool { s := c.Stats(); return s.Effects == 1 && s.Duplicates == 1 && s.Delayed == 1 })
	b.mustStop()
	if got, want := effects(t, store), []string{"1"}; !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

// A key whose message asked for a delay: the later ones wait behind it, in order, and other keys go on.
func TestDelayInOrderParksTheKey(t *testing.T) {
	for _, on := range []struct {
		name string
		open func(*testing.T) ordersTx
	}{{"SQLite", onSQLite}, {"Postgres", onPostgres}, {"PostgresGrouped", onPostgres}} {
		t.Run(on.name, func(t *testing.T) {
			db := on.open(t)
			b := newBench(t, func(c *runtime.Config) {
				c.MaxHold = time.Millisecond
				c.Retry.MaxAttempts, c.Breaker.Off = 5, true
			})
			c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()})
			line := &timeline{}
			db.handle(c, func(id string) error {
				if n := line.note(id); id == "1" && n <= 3 {
					return classify.RetryAfter(errBroken, 100*time.Millisecond)
				}
				return nil
			})
			b.start()
			b.publish("orders", placed(t, "1"))
			b.eventually("1 is delayed", func() bool { return c.Stats().Delayed > 0 })
			b.publish("orders", placed(t, "2"), placed(t, "other", event.WithKey("other")), placed(t, "3"))
			b.eventually("all are handled", func() bool { return c.Stats().Effects == 4 })
			b.mustStop()
			got := slices.DeleteFunc(db.effects(), func(id string) bool { return id == "other" })
			if want := []string{"1", "2", "3"}; !slices.Equal(got, want) {
				t.Errorf("effects %v, want %v", got, want)
			}
			if s := c.Stats(); s.Delayed != 3 || s.DeadLettered != 0 {
				t.Errorf("stats %+v, want 3 delays and no dead letter", s)
			}
			if n, err := db.ledger.Count(t.Context(), "billing"); err != nil || n.Keys != 0 {
				t.Errorf("%+v, %v is left; want nothing", n, err)
			}
		})
	}
}

// A message that asks for a delay each time, in order: it ends as a dead letter that counts every attempt, and its key is parked.
func TestR5AttemptsCountOverDelaysInOrder(t *testing.T) {
	db := onSQLite(t)
	b := newBench(t, func(c *runtime.Config) {
		c.MaxHold = time.Millisecond
		c.Retry.MaxAttempts, c.Breaker.Off = 4, true
	})
	c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()})
	began := time.Now()
	db.handle(c, func(id string) error {
		if id == "1" {
			return classify.RetryAfterInOrder(errBroken, 20*time.Millisecond)
		}
		return nil
	})
	b.start()
	b.publish("orders", placed(t, "1"), placed(t, "2"))
	b.eventually("the dead letter", func() bool { return c.Stats().DeadLettered == 1 })
	rec := parseDead(t, b.dead("orders", 1)[0])
	b.eventually("the key is parked", func() bool {
		keys, err := db.ledger.Keys(t.Context(), "billing", "", 10)
		return err == nil && len(keys) == 1 && keys[0].State == "parked" && keys[0].Messages == 2
	})
	b.mustStop()
	if rec.Attempts != 4 || rec.Deaths != 1 || rec.FirstFailure.Before(began.Add(-time.Second)) || rec.LastFailure.Sub(rec.FirstFailure) < 60*time.Millisecond {
		t.Errorf("dead letter has attempts %d, deaths %d, failed from %v to %v; want 4, 1, and three delays between these",
			rec.Attempts, rec.Deaths, rec.FirstFailure, rec.LastFailure)
	}
	if got := db.effects(); len(got) != 0 {
		t.Errorf("effects %v, want none: 2 waits behind 1", got)
	}
}

// A message is delayed in order when the process drains: the next process goes on with its key.
func TestDrainWhileAKeyIsDelayedLosesNothing(t *testing.T) {
	db := onSQLite(t)
	line := &timeline{}
	open := func(b *bench) *runtime.Consumer {
		c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()})
		db.handle(c, func(id string) error {
			if n := line.note(id); id == "1" && n == 1 {
				return classify.RetryAfter(errBroken, 500*time.Millisecond)
			}
			return nil
		})
		return c
	}
	change := func(c *runtime.Config) { c.MaxHold = time.Millisecond }
	b := newBench(t, change)
	c := open(b)
	b.start()
	b.publish("orders", placed(t, "1"), placed(t, "2"))
	b.eventually("1 is delayed and 2 behind it", func() bool { s := c.Stats(); return s.Delayed == 1 && s.Parked == 1 })
	keys, err := db.ledger.Keys(t.Context(), "billing", "", 10)
	if err != nil || len(keys) != 1 || keys[0].DelayedUntil.IsZero() || keys[0].State != "released" {
		t.Fatalf("keys %+v, %v; want one that is delayed", keys, err)
	}
	b.mustStop()
	next := newBench(t, func(c *runtime.Config) { change(c); c.Broker = b.broker })
	c = open(next)
	next.start()
	next.eventually("both are handled", func() bool { return c.Stats().Effects == 2 })
	next.mustStop()
	if got, want := db.effects(), []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

// noPark is a store whose database cannot park.
type noPark struct{ *sqlstore.Store }

func (s noPark) Parking() parking.Ledger { return noParkLedger{s.Store.Parking()} }

type noParkLedger struct{ parking.Ledger }

func (noParkLedger) Open(context.Context, any, parking.Key) error { return errBroken }

// A drain began while a delay in order could not be stored: the broker was told to deliver the message an hour later, and the
// next process handled the later ones of its key at once.
func TestDrainWhileADelayInOrderCannotBeStoredKeepsTheOrder(t *testing.T) {
	store := openStore(t)
	open := func(b *bench, own inbox.Store[*sql.Tx], fails error) *runtime.Consumer {
		c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()})
		runtime.HandleTx(c, "order.placed", own, func(ctx context.Context, tx *sql.Tx, o order) error {
			if fails != nil {
				return classify.RetryAfter(fails, time.Hour)
			}
			return insertEffect(ctx, tx, o)
		})
		return c
	}
	b := newBench(t, func(c *runtime.Config) { c.MaxHold, c.Retry.MaxRetryAfter = time.Millisecond, 2*time.Hour })
	c := open(b, noPark{store}, errBroken)
	b.publish("orders", of(t, "a", "1", "2")...)
	b.start()
	b.eventually("1 cannot be delayed", func() bool { return strings.Contains(b.log.String(), "cannot be delayed yet") })
	b.mustStop()
	if s := c.Stats(); s.Released != 1 || s.Delayed != 0 || s.Nacked != 0 {
		t.Errorf("stats %+v, want 1 released", s)
	}

	next := newBench(t, func(c *runtime.Config) { c.Broker = b.broker })
	c = open(next, store, nil)
	next.start()
	next.eventually("both are handled", func() bool { return c.Stats().Effects == 2 })
	next.mustStop()
	if got, want := effects(t, store), []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("effects %v, want %v", got, want)
	}
}

// A drain began while a message waited for room to be delayed in order, and it became a dead letter.
func TestI5DrainWhileADelayInOrderHasNoRoomDeadLettersNothing(t *testing.T) {
	o, policy := onSQLite(t), parkingPolicy()
	policy.MaxMessages, policy.MaxPerKey = 1, 1
	b := newBench(t, func(c *runtime.Config) { c.MaxHold = time.Millisecond })
	c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: policy})
	o.handle(c, func(id string) error {
		if id == "a1" {
			return classify.Permanent(errBroken)
		}
		return classify.RetryAfter(errBroken, time.Second)
	})
	b.start()
	b.publish("orders", of(t, "a", "a1")...)
	b.eventually("a1 is parked", func() bool { return c.Stats().DeadLettered == 1 })
	b.publish("orders", of(t, "b", "b1")...)
	b.eventually("b1 has no room", func() bool { return strings.Contains(b.log.String(), "cannot be delayed yet") })
	b.mustStop()
	if n := b.unacked("orders.DLT", "anybody"); n != 1 {
		t.Errorf("%d dead letters, want that of a1 alone", n)
	}
	if s := c.Stats(); s.Released != 1 || s.DeadLettered != 1 {
		t.Errorf("stats %+v, want 1 dead letter, and b1 released", s)
	}
}

// The middleware alone has nobody outside who counts; under the runtime it tells of all runs.
func TestOnRetryCountsOverDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var attempts []int
		b, _, line := delayBench(t, func(c *runtime.Config) {
			c.Retry.OnRetry = func(_ context.Context, e middleware.RetryEvent) {
				mu.Lock()
				defer mu.Unlock()
				attempts = append(attempts, e.Attempt)
			}
		})
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			switch line.note(o.ID) {
			case 1:
				return classify.RetryAfter(errBroken, 2*time.Minute)
			case 2:
				return errBroken
			}
			return nil
		})
		b.publish("orders", placed(t, "1"))
		b.start()
		until(t, "handled", 10*time.Minute, func() bool { return c.Stats().Effects == 1 })
		b.mustStop()
		if want := []int{2}; !slices.Equal(attempts, want) {
			t.Errorf("retries after the attempts %v, want %v: the first was in another delivery", attempts, want)
		}
	})
}

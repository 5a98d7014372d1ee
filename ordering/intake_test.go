package ordering_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ordering"
)

func TestNewNamesTheFieldAndTheValue(t *testing.T) {
	for _, tc := range []struct {
		cfg  ordering.Config
		want string
	}{
		{ordering.Config{}, "Consumer is empty"},
		{ordering.Config{Consumer: "c", Window: -1}, "Window is -1"},
		{ordering.Config{Consumer: "c", Window: ordering.MaxWindow + 1}, "Window is 1048577"},
		{ordering.Config{Consumer: "c", Concurrency: -2}, "Concurrency is -2"},
		{ordering.Config{Consumer: "c", Window: 10, Concurrency: 11}, "Concurrency is 11 and Config.Window is 10"},
		{ordering.Config{Consumer: "c", Concurrency: 2000}, "Concurrency is 2000 and Config.Window is 1024"},
		{ordering.Config{Consumer: "c", DrainTimeout: -1}, "DrainTimeout is -1ns"},
		{ordering.Config{Consumer: "c", CancelGrace: -1}, "CancelGrace is -1ns"},
	} {
		if _, err := ordering.New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("New(%+v) = %v, want an error with %q", tc.cfg, err, tc.want)
		}
	}
	for _, cfg := range []ordering.Config{{Consumer: "c"}, {Consumer: "c", Window: 3}, {Consumer: "c", Window: 5, Concurrency: 5}} {
		if _, err := ordering.New(cfg); err != nil {
			t.Errorf("New(%+v) = %v", cfg, err)
		}
	}
}

func TestDefaultKey(t *testing.T) {
	for _, tc := range []struct {
		name     string
		broker   []byte
		delivery bool
		metadata message.Metadata
		payload  string
		want     string
	}{
		{"broker's key first", []byte("b"), true, message.Metadata{"ce_partitionkey": "p", "ce_subject": "s"}, "", "b"},
		{"an empty key is a key", []byte{}, true, message.Metadata{"ce_partitionkey": "p"}, "", ""},
		{"then partitionkey", nil, true, message.Metadata{"ce_partitionkey": "p", "ce_subject": "s"}, "", "p"},
		{"then subject", nil, true, message.Metadata{"ce_subject": "s"}, "", "s"},
		{"without a delivery", nil, false, message.Metadata{"ce_subject": "s"}, "", "s"},
		{"of a structured event", nil, true, message.Metadata{"content-type": "application/cloudevents+json"}, `{"partitionkey":"p"}`, "p"},
		{"none", nil, true, nil, "", ""},
	} {
		msg := message.NewMessage("id", []byte(tc.payload))
		msg.Metadata = tc.metadata
		if tc.delivery {
			msg.SetContext(brokers.WithDelivery(t.Context(), &brokers.Delivery{Key: tc.broker}))
		}
		if got := ordering.DefaultKey(msg); got != tc.want {
			t.Errorf("%s: DefaultKey() = %q, want %q", tc.name, got, tc.want)
		}
	}
}

// Messages without a key, or with an empty one, fell into one lane with all others, or crashed.
func TestL1KeylessShareTheLaneOfTheirPartition(t *testing.T) {
	for _, unkeyed := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, ordering.Config{})
			r.unkeyed = unkeyed
			r.partition = 0
			r.push("orders", "", "a1", "a2")
			r.partition = 1
			r.push("orders", "", "b1", "b2")
			r.subscribe("orders")
			synctest.Wait()
			if got := r.intake.Stats(); got.InFlight != 2 || got.Waiting != 2 || got.Lanes != 2 {
				t.Errorf("unkeyed %v: Stats() = %+v, want 2 in flight and 2 waiting in 2 lanes", unkeyed, got)
			}
			r.finish(nil, "a1", "b1", "a2", "b2")
			r.close()
		})
	}
}

// Without partitions there is nothing that would order messages without a key.
func TestL1KeylessWithoutPartitionRunAtOnce(t *testing.T) {
	for _, bare := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, ordering.Config{})
			r.unkeyed, r.bare = true, bare
			r.push("orders", "", "a", "b", "c")
			r.subscribe("orders")
			synctest.Wait()
			if got := r.intake.Stats(); got.InFlight != 3 || got.Lanes != 0 {
				t.Errorf("bare %v: Stats() = %+v, want 3 in flight, no lane", bare, got)
			}
			r.finish(nil, "b", "a", "c")
			r.close()
		})
	}
}

// Three topics shared keys: the messages of one took the lanes of another, and some never ran.
func TestL2TopicsThatShareKeysDoNotShareLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		for _, topic := range []string{"a", "b", "c"} {
			r.push(topic, "k", topic+"1", topic+"2")
			r.subscribe(topic)
			r.wantEvents("+" + topic + "1")
		}
		r.finish(nil, "b1", "b2", "c1", "c2", "a1", "a2")
		r.wantEvents("-b1", "+b2", "-b2", "-c1", "+c2", "-c2", "-a1", "+a2", "-a2")
		r.close()
	})
}

// A handler of key k ran long; the partition was revoked and given back to the same process; k ran
// on two workers at once.
func TestK3NewDeliveryWaitsForTheOldFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		old := r.push("orders", "k", "old", "queued")
		r.subscribe("orders")
		r.wantEvents("+old")
		for _, d := range old {
			d.cancel()
		}
		// The new assignment may even be a subscription of its own.
		again := r.push("orders", "k", "new")
		r.subscribe("orders")
		r.wantEvents()
		r.finish(context.Canceled, "old")
		r.wantEvents("-old", "+new") // "queued" was taken away while it waited
		wantSettled(t, "released", old...)
		r.finish(nil, "new")
		wantSettled(t, "acked", again...)
		r.close()
	})
}

// 200 records that failed for a long time filled queues until memory ended.
func TestR4HeldDeliveriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Window: 20, Concurrency: 4})
		r.push("orders", "hot", ids("h", 150)...)
		r.push("orders", "cold", ids("c", 50)...)
		r.subscribe("orders")
		synctest.Wait()
		if got := r.taken.Load(); got != 20 {
			t.Errorf("%d were read, want a window of 20", got)
		}
		got := r.intake.Stats()
		if got.InFlight != 1 || got.Waiting != 19 || got.HottestKey != "hot" || got.HottestDepth != 20 {
			t.Errorf("Stats() = %+v, want 1 in flight and 19 waiting, all of them hot", got)
		}
		for _, id := range slices.Concat(ids("h", 150), ids("c", 50)) {
			r.finish(nil, id)
			if held := r.intake.Stats(); held.InFlight+held.Waiting > 20 {
				t.Fatalf("after %s: %+v, want at most 20 held", id, held)
			}
		}
		r.close()
	})
}

func TestConcurrencyBoundsHandlersAndReadinessIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Concurrency: 2})
		r.push("orders", "a", "a1", "a2")
		for _, key := range []string{"b", "c", "d"} {
			r.push("orders", key, key+"1")
		}
		r.subscribe("orders")
		synctest.Wait()
		if got := r.intake.Stats(); got.InFlight != 2 || got.Waiting != 3 {
			t.Errorf("Stats() = %+v, want 2 in flight and 3 waiting", got)
		}
		r.finish(nil, "a1", "c1", "b1", "d1", "a2")
		r.mu.Lock()
		began := slices.DeleteFunc(slices.Clone(r.events), func(e string) bool { return e[0] == '-' })
		r.mu.Unlock()
		// c and d were ready before a2 was. The first two may start in any order.
		if want := []string{"+c1", "+d1", "+a2"}; !slices.Equal(began[2:], want) {
			t.Errorf("began %v, want %v after the first two", began, want)
		}
		r.close()
	})
}

// A handler ran on after its attempt had timed out, while its lane moved on: the key overlapped.
func TestR8HandlerThatIgnoresItsTimeoutKeepsItsLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{CancelGrace: time.Second})
		r.partition = 3
		stuck := r.push("orders", "k", "stuck")
		behind := r.push("orders", "k", "behind")
		r.push("orders", "other", "free")
		r.subscribe("orders")
		r.finish(nil, "free")
		time.Sleep(time.Hour)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := r.intake.Drain(ctx)
		var drain *ordering.DrainError
		if !errors.As(err, &drain) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Drain() = %v, want a DrainError because of the deadline", err)
		}
		want := ordering.HeldKey{Topic: "orders", Partition: 3, Key: "k", UUID: "stuck", For: time.Hour + time.Minute + time.Second}
		if drain.Cancelled != 1 || drain.Held != 1 || len(drain.HeldKeys) != 1 || drain.HeldKeys[0] != want {
			t.Errorf("Drain() = %+v, want one cancelled and held: %+v", drain, want)
		}
		if got, want := err.Error(), `1 still held after they were cancelled: orders/3 key "k" message "stuck" for 1h1m1s`; !strings.Contains(got, want) {
			t.Errorf("Drain() = %q, want it to say %q", got, want)
		}
		wantSettled(t, "released", behind...)
		wantSettled(t, "unsettled", stuck...)

		// Asked again, it tells it again, without another wait.
		began := time.Now()
		if err := r.sub.Close(); !errors.As(err, &drain) || drain.Held != 1 {
			t.Errorf("Close() = %v, want that one is held", err)
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("Close() waited for %v", waited)
		}
		r.finish(nil, "stuck")
		wantSettled(t, "acked", stuck...)
		if err := r.intake.Drain(t.Context()); err != nil {
			t.Errorf("Drain() = %v after it returned", err)
		}
		r.wg.Wait()
	})
}

func TestPauseHoldsUntilTheLastReasonIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.push("orders", "k", "1", "2", "3")
		r.intake.Pause("breaker")
		r.intake.Pause("operator")
		r.intake.Pause("operator")
		r.subscribe("orders")
		r.wantEvents()
		if got := r.intake.Stats().Paused; !slices.Equal(got, []string{"breaker", "operator"}) {
			t.Errorf("Paused = %v, want both reasons", got)
		}
		if got := r.taken.Load(); got != 0 {
			t.Errorf("%d were read while paused, want 0", got)
		}
		r.intake.Resume("unheard of")
		r.intake.Resume("breaker")
		r.wantEvents()
		r.intake.Resume("operator")
		r.wantEvents("+1")
		r.intake.Pause("breaker")
		r.finish(nil, "1") // what runs goes on, and what waits stays
		r.wantEvents("-1")
		r.intake.Resume("breaker")
		r.finish(nil, "2", "3")
		r.wantEvents("+2", "-2", "+3", "-3")
		r.close()
	})
}

func TestSettlementInTheMiddleware(t *testing.T) {
	type outcome struct {
		err     error
		cancel  bool
		settle  func(*flight.Flight)
		panics  any
		goexits bool
		again   bool // it comes again
	}
	for _, tc := range []struct {
		name string
		outcome
		want string
	}{
		{"nil acks", outcome{}, "acked"},
		{"nil acks even when the delivery was taken away: the effect was made", outcome{cancel: true}, "acked"},
		{"an error nacks", outcome{err: errTest}, "nacked"},
		{"an error after the context's end releases", outcome{err: errTest, cancel: true}, "released"},
		{"a foreign cancellation is an error", outcome{err: context.Canceled}, "nacked"},
		{"an ack made before wins over an error", outcome{err: errTest, settle: func(f *flight.Flight) { f.Ack() }}, "acked"},
		{"a nack made before wins over nil", outcome{settle: func(f *flight.Flight) { f.Nack() }}, "nacked"},
		{"a release made before wins over nil", outcome{settle: func(f *flight.Flight) { f.Release() }, again: true}, "released"},
		{"a panic nacks", outcome{panics: "boom"}, "nacked"},
		{"a panic after the context's end releases", outcome{panics: "boom", cancel: true}, "released"},
		{"a panic after an ack", outcome{panics: "boom", settle: func(f *flight.Flight) { f.Ack() }}, "acked"},
		{"Goexit nacks", outcome{goexits: true}, "nacked"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, ordering.Config{})
				first := r.push("orders", "k", "first")[0]
				var second []*sent
				if !tc.again {
					second = r.push("orders", "k", "second")
				}
				panicked := make(chan any, 1)
				r.handler = func(msg *message.Message) ([]*message.Message, error) {
					if msg.UUID == "second" {
						return nil, nil
					}
					if tc.cancel {
						first.cancel()
					}
					if tc.settle != nil {
						tc.settle(flight.From(msg.Context()))
					}
					if tc.goexits {
						runtime.Goexit()
					}
					if tc.panics != nil {
						defer func() { panicked <- tc.panics }()
						panic(tc.panics)
					}
					return nil, tc.err
				}
				r.subscribe("orders")
				synctest.Wait()
				wantSettled(t, tc.want, first)
				if tc.again { // what had come before that would be given back with it
					second = r.push("orders", "k", "second")
					synctest.Wait()
				}
				wantSettled(t, "acked", second...) // the lane went on
				r.close()
			})
		})
	}
}

func TestPanicGoesOnThroughTheMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.push("orders", "k", "1")
		out, err := r.sub.Subscribe(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		h := r.intake.Middleware(func(*message.Message) ([]*message.Message, error) { panic("boom") })
		func() {
			defer func() {
				if got := recover(); got != "boom" {
					t.Errorf("recovered %v, want boom", got)
				}
			}()
			_, _ = h(<-out)
		}()
		r.close()
	})
}

// Invariant I1: the router and the handler settle a view, never the broker's message.
func TestI1ViewCannotSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		d := r.push("orders", "k", "1")[0]
		handler := r.handler
		r.handler = func(msg *message.Message) ([]*message.Message, error) {
			msg.Nack()
			if msg == d.msg {
				t.Error("the handler got the broker's message")
			}
			f := flight.From(msg.Context())
			if f.Original != d.msg || f.Key != "k" || f.Topic != "orders" || f.Consumer != "test" || f.Delivery == nil {
				t.Errorf("flight = %+v", f)
			}
			return handler(msg)
		}
		r.subscribe("orders")
		synctest.Wait()
		wantSettled(t, "unsettled", d)
		r.finish(nil, "1")
		wantSettled(t, "acked", d)
		r.close()
	})
}

// Invariant I5: a delivery that was taken away while it waited did not fail, and does not run.
func TestI5DeliveryTakenAwayWhileItWaitedDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		all := r.push("orders", "k", "1", "2", "3")
		r.subscribe("orders")
		r.wantEvents("+1")
		all[1].cancel()
		r.finish(nil, "1")
		r.wantEvents("-1", "+3")
		wantSettled(t, "released", all[1])
		r.finish(nil, "3")

		// It can also be taken away before it is read.
		gone := &sent{topic: "orders", key: "k", id: "4", partition: -1, msg: message.NewMessage("4", nil), cancelled: true}
		r.deliver(gone)
		r.wantEvents("-3")
		wantSettled(t, "released", gone)
		r.close()
	})
}

// A stuck handler and a revoked partition: what waited behind the handler kept the window full, and
// nothing else was read any more.
func TestDeliveriesTakenAwayGiveTheirWindowBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Window: 5, Concurrency: 2})
		revoked := r.push("orders", "k", "1", "2", "3", "4", "5")
		r.push("orders", "other", "o1", "o2")
		r.subscribe("orders")
		r.wantEvents("+1")
		for _, d := range revoked {
			d.cancel()
		}
		time.Sleep(time.Second)
		r.wantEvents("+o1")
		wantSettled(t, "released", revoked[1:]...)
		r.finish(nil, "o1", "o2", "1")
		r.close()
	})
}

// A subscriber that ended by itself took what waited in lanes with it.
func TestWhatWaitsRunsAfterTheSubscriberHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		all := r.push("orders", "k", "1", "2", "3")
		r.subscribe("orders")
		synctest.Wait()
		if err := r.source.Close(); err != nil {
			t.Fatal(err)
		}
		r.finish(nil, "1", "2", "3")
		wantSettled(t, "acked", all...)
		r.wg.Wait() // the decorated channel was closed, too
		r.close()
	})
}

// A subscription died while an operator had paused the consumer. What waited was taken away with it, but nobody looked: the router's channel
// stayed open, so that nobody noticed before the pause was over.
func TestDeadSubscriptionIsNoticedDuringAPause(t *testing.T) {
	for _, early := range []bool{true, false} { // the deliveries' contexts end before the channel is closed, or after that
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, ordering.Config{Concurrency: 1})
			all := append(r.push("orders", "a", "a1", "a2"), r.push("orders", "b", "b1")...)
			r.subscribe("orders")
			r.intake.Pause("operator")
			r.finish(nil, "a1")
			all = append(all, r.push("orders", "c", "c1")...) // read, since the pause has interrupted nobody who reads
			unread := r.push("orders", "d", "d1")[0]
			synctest.Wait()
			takeAway := func() {
				for _, d := range all {
					d.cancel()
				}
			}
			if early {
				takeAway()
			}
			if err := r.source.Close(); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			takeAway()
			closed := make(chan struct{})
			go func() {
				r.wg.Wait()
				close(closed)
			}()
			select {
			case <-closed:
			case <-time.After(time.Second):
				t.Error("the router's channel is open a second after the subscription has ended")
				r.intake.Resume("operator")
			}
			wantSettled(t, "acked", all[0])
			wantSettled(t, "released", all[1:]...)
			wantSettled(t, "unsettled", unread)
			r.close()
		})
	}
}

// A message that a Key function could not read took the whole process with it, at each start.
func TestPanicOfKeyFallsBackToTheDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := newRig(t, ordering.Config{
			Key:    func(msg *message.Message) string { return "custom-" + string(msg.Payload[:1]) },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		d := r.push("orders", "k", "good", "bad")
		d[1].msg.Payload = nil // a tombstone
		r.handler = func(msg *message.Message) ([]*message.Message, error) {
			r.note(flight.From(msg.Context()).Key)
			return nil, nil
		}
		r.subscribe("orders")
		r.mu.Lock()
		keys := slices.Sorted(slices.Values(r.events))
		r.mu.Unlock()
		if want := []string{"custom-g", "k"}; !slices.Equal(keys, want) {
			t.Errorf("keys = %q, want %q", keys, want)
		}
		if !strings.Contains(log.String(), "message=bad") {
			t.Errorf("logged %q, want it to name the message", &log)
		}
		wantSettled(t, "acked", d...)
		r.close()
	})
}

func TestMiddlewareNeedsTheDecorator(t *testing.T) {
	intake := newIntake(t, ordering.Config{Consumer: "billing"})
	h := intake.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})
	if _, err := h(message.NewMessage("id-1", nil)); err == nil || !strings.Contains(err.Error(), `"id-1"`) {
		t.Errorf("error = %v, want one that names the message", err)
	}
	if _, err := intake.Decorate(nil); err == nil {
		t.Error("Decorate(nil) = nil, want an error")
	}
}

func TestMiddlewareAddedTwiceSettlesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		d := r.push("orders", "k", "1", "2", "3")
		r.handler = r.intake.Middleware(r.handler)
		r.subscribe("orders")
		r.finish(nil, "1")
		r.wantEvents("+1", "-1", "+2") // not 3: the lane was given back once
		r.finish(errTest, "2")
		r.finish(nil, "3")
		wantSettled(t, "acked", d[0], d[2])
		wantSettled(t, "nacked", d[1])
		r.close()
	})
}

func TestStatsTellTheOldestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		if got := r.intake.Stats().OldestStart; !got.IsZero() {
			t.Errorf("OldestStart = %v, want zero", got)
		}
		r.subscribe("orders")
		began := time.Now()
		r.push("orders", "a", "1")
		time.Sleep(time.Minute)
		r.push("orders", "b", "2")
		time.Sleep(time.Minute)
		if got := r.intake.Stats().OldestStart; !got.Equal(began) {
			t.Errorf("OldestStart = %v, want %v", got, began)
		}
		r.finish(nil, "1")
		if got, want := r.intake.Stats().OldestStart, began.Add(time.Minute); !got.Equal(want) {
			t.Errorf("OldestStart = %v, want %v", got, want)
		}
		r.finish(nil, "2")
		r.close()
	})
}

func TestAllowLetsSoManyThroughAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.intake.Pause("outage")
		r.subscribe("orders")
		r.intake.Allow("outage", 1) // before anything has come
		r.push("orders", "a", "1")
		r.push("orders", "b", "2")
		r.push("orders", "c", "3")
		r.push("orders", "d", "4")
		r.wantEvents("+1")
		r.finish(nil, "1") // its end allows nothing more
		r.wantEvents("-1")
		if got := r.taken.Load(); got != 1 {
			t.Errorf("%d were read for one that was allowed, want 1", got)
		}
		r.intake.Allow("outage", 2)
		synctest.Wait()
		r.mu.Lock()
		slices.Sort(r.events) // the two run at once
		r.mu.Unlock()
		r.wantEvents("+2", "+3")
		r.intake.Resume("outage")
		r.wantEvents("+4")
		r.finish(nil, "2", "3", "4")
		r.wantEvents("-2", "-3", "-4")
		r.close()
	})
}

func TestAllowGivesWayToAnyOtherReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.intake.Allow("outage", 1) // not paused: it means nothing
		r.intake.Pause("outage")
		r.intake.Allow("outage", 1)
		r.intake.Pause("operator")
		r.push("orders", "a", "1")
		r.subscribe("orders")
		r.intake.Allow("outage", 1)
		r.wantEvents()
		r.intake.Resume("operator")
		r.wantEvents() // the breaker allows again when it looks
		r.intake.Allow("outage", 1)
		r.wantEvents("+1")
		r.finish(nil, "1")
		r.intake.Resume("outage")
		r.wantEvents("-1")
		r.close()
	})
}

// A lane whose head is held cannot be probed by what is behind it: reading goes on to a key that can run.
func TestAllowReadsPastLanesThatAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{})
		r.push("orders", "held", "1")
		r.subscribe("orders")
		r.wantEvents("+1")
		r.intake.Pause("outage")
		r.push("orders", "held", "2", "3")
		r.push("orders", "free", "4")
		r.push("orders", "other", "5")
		r.intake.Allow("outage", 1)
		r.wantEvents("+4")
		r.intake.Resume("outage")
		r.finish(nil, "1", "2", "3", "4", "5")
		r.close()
	})
}

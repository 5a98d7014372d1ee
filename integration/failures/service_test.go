package failures_test

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/integration/history"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

// standstill is how long nothing may happen. A slow machine is no fault, as long as it goes on.
const standstill = 2 * time.Minute

// service is a consumer of orders, beside one that indexes its dead letters, and the history of both.
type service struct {
	*site
	work     *runtime.Consumer
	consumer string
	topic    string
	parks    bool

	pub  message.Publisher
	next []int // by key: how many orders were published
	sent int

	check atomic.Pointer[func(id string) error] // why an order cannot be handled

	mu   sync.Mutex
	tape []history.Record

	stop  context.CancelFunc
	ended chan error
}

// start runs the service on s until its test ends, or quit.
func start(s *site, keys int, change func(*runtime.ConsumerConfig)) *service {
	s.t.Helper()
	v := &service{
		site: s, consumer: s.prefix + "billing", topic: s.prefix + "orders", next: make([]int, keys), ended: make(chan error, 1),
	}
	v.failing(func(string) error { return nil })
	config := runtime.ConsumerConfig{Name: v.consumer, Topic: v.topic, Policy: runtime.Policy{
		Middleware: []message.HandlerMiddleware{v.recorded},
	}}
	change(&config)
	v.parks = config.Park != nil
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: recorder{s.broker, v}, Logger: logger(s.t)})
	if err != nil {
		s.t.Fatal(err)
	}
	v.work = rt.ConsumerWith(config)
	rt.Relay(s.outbox, outbox.RelayConfig{})
	s.handle(v.work, func(ctx context.Context, id string) error {
		*ctx.Value(ranKey{}).(*bool) = true
		return (*v.check.Load())(id)
	})
	s.index(rt.Consumer(s.prefix+"billing.deadletters", v.topic+poison.Suffix))
	if v.pub, err = s.broker.Publisher(); err != nil {
		s.t.Fatal(err)
	}
	closes(s.t, "the publisher", v.pub)
	ctx, stop := context.WithCancel(context.Background())
	v.stop = stop
	go func() { v.ended <- rt.Run(ctx) }()
	s.t.Cleanup(v.quit)
	select {
	case <-rt.Running():
	case err := <-v.ended:
		v.stop = nil
		s.t.Fatalf("the service ended: %v", err)
	case <-time.After(standstill):
		s.t.Fatalf("the service did not start within %v", standstill)
	}
	return v
}

// quit ends the service, which it must do without an error. It is idempotent.
func (v *service) quit() {
	if v.stop == nil {
		return
	}
	v.stop()
	v.stop = nil
	select {
	case err := <-v.ended:
		if err != nil {
			v.t.Errorf("the service ended with %v, want nil", err)
		}
	case <-time.After(standstill):
		v.t.Errorf("the service did not end within %v", standstill)
	}
}

// failing makes orders fail as check says.
func (v *service) failing(check func(id string) error) { v.check.Store(&check) }

// publish sends n orders, of one key after another.
func (v *service) publish(n int) {
	v.t.Helper()
	const batch = 500
	for n > 0 {
		var msgs []*message.Message
		var records []history.Record
		for range min(n, batch) {
			key := v.sent % len(v.next)
			v.sent++
			v.next[key]++
			id := orderID(key, v.next[key])
			ctx := event.ContextWithSource(context.Background(), "/shop")
			msg, err := event.New(ctx, orderPlaced, order{}, event.WithID(id), event.WithKey(keyOf(id)))
			if err != nil {
				v.t.Fatal(err)
			}
			msgs = append(msgs, msg)
			records = append(records, history.Record{Kind: history.Published, ID: id, Key: keyOf(id), Seq: int64(v.next[key])})
		}
		if err := v.pub.Publish(v.topic, msgs...); err != nil {
			v.t.Fatal(err)
		}
		v.note(records...)
		n -= len(msgs)
	}
}

func orderID(key, seq int) string { return fmt.Sprintf("k%04d/%06d", key, seq) }

func keyOf(id string) string { key, _, _ := strings.Cut(id, "/"); return key }

// note adds to the history.
func (v *service) note(records ...history.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range records {
		r.Time = int64(len(v.tape))
		if r.Kind != history.Published {
			r.Process, r.Consumer = cmp.Or(r.Process, "one"), v.consumer
		}
		v.tape = append(v.tape, r)
	}
}

// judge fails the test for each promise that the history shows to be broken.
func (v *service) judge() {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	verdict := history.Check(v.tape, history.Options{All: true, Drained: true, Limit: 5})
	for _, broken := range verdict.Violations {
		v.t.Errorf("history: %v", broken)
	}
	v.t.Logf("history: %d records %v, broken %v", len(v.tape), verdict.Counts, verdict.Broken)
}

// ranKey is of the flag in an attempt's context that says that the handler ran.
type ranKey struct{}

// recorded writes down what becomes of each attempt: it is around the inbox, so what returns nil is committed.
func (v *service) recorded(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		id := msg.Metadata[event.MetaID]
		process := ""
		if parking.IsDrained(msg.Context()) {
			process = "drain" // it has a lane of its own: between that and the live one the key's row in the database keeps the order
		}
		r := func(kind history.Kind) history.Record {
			return history.Record{Kind: kind, Process: process, ID: id, Key: keyOf(id)}
		}
		if parking.IsDrained(msg.Context()) {
			v.note(r(history.Unpark))
		}
		v.note(r(history.Start))
		ran := false
		before := msg.Context()
		msg.SetContext(context.WithValue(before, ranKey{}, &ran))
		out, err := h(msg)
		msg.SetContext(before)
		switch {
		case err != nil:
			v.note(r(history.Failed))
		case ran:
			v.note(r(history.Effect), r(history.End))
		case v.parks && !parking.IsDrained(before):
			v.note(r(history.Park), r(history.End))
		default:
			v.note(r(history.Skipped), r(history.End))
		}
		return out, err
	}
}

// recorder is a broker whose publishers write down that a dead letter is stored.
type recorder struct {
	brokers.Broker
	v *service
}

func (b recorder) Publisher() (message.Publisher, error) {
	pub, err := b.Broker.Publisher()
	return recordingPublisher{pub, b.v}, err
}

type recordingPublisher struct {
	message.Publisher
	v *service
}

func (p recordingPublisher) Publish(topic string, msgs ...*message.Message) error {
	if err := p.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	for _, msg := range msgs {
		id := msg.Metadata[event.MetaID]
		r := history.Record{Kind: history.Dead, ID: id, Key: keyOf(id)}
		p.v.note(r)
		if p.v.parks { // it will be, before its delivery is settled
			r.Kind = history.Park
			p.v.note(r)
		}
	}
	return nil
}

// await waits until ok.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	reach(t, what, 1, func() int {
		if ok() {
			return 1
		}
		return 0
	})
}

// reach waits until count is want, for as long as it goes on.
func reach(t testing.TB, what string, want int, count func() int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last, since := count(), time.Now()
	for last < want {
		<-tick.C
		now := count()
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) > standstill {
			t.Fatalf("%s: %d, want %d, and nothing has happened for %v", what, last, want, standstill)
		}
	}
	if last > want {
		t.Errorf("%s: %d, want %d", what, last, want)
	}
}

// once checks that every order published took effect once, and which orders of a key were not in their turn.
func (v *service) once(outOfTurn map[string]bool) {
	v.t.Helper()
	got := v.effects()
	times, at, wrong := map[string]int{}, map[string]string{}, 0
	report := func(format string, args ...any) {
		v.t.Helper()
		if wrong++; wrong <= 10 {
			v.t.Errorf(format, args...)
		}
	}
	for _, id := range got {
		times[id]++
		if outOfTurn[id] {
			continue
		}
		key := keyOf(id)
		if id <= at[key] {
			report("%s took effect after %s", id, at[key])
		}
		at[key] = id
	}
	for key, n := range v.next {
		for seq := 1; seq <= n; seq++ {
			if id := orderID(key, seq); times[id] != 1 {
				report("%s took effect %d times, want once", id, times[id])
			}
		}
	}
	if len(got) != v.sent || wrong > 0 {
		v.t.Errorf("%d effects of %d orders, %d faults", len(got), v.sent, wrong)
	}
}

package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// fetched is a broker whose subscriptions get records without a cluster: what is measured begins where franz-go ends.
type fetched struct {
	partitions int
}

func (f *fetched) Capabilities() brokers.Capabilities    { return (&Broker{}).Capabilities() }
func (f *fetched) Publisher() (message.Publisher, error) { return nowhere{}, nil }
func (f *fetched) Close() error                          { return nil }
func (f *fetched) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	return &fetchedSubscriber{fetched: f, window: s.Window}, nil
}

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

type fetchedSubscriber struct {
	*fetched
	window int
	feeds  sync.WaitGroup
}

func (s *fetchedSubscriber) Close() error { s.feeds.Wait(); return nil }

func (s *fetchedSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.open(ctx, topic, false).out, nil
}

func (s *fetchedSubscriber) Pull(ctx context.Context, topic string) (brokers.Pull, error) {
	return s.open(ctx, topic, true), nil
}

func (s *fetchedSubscriber) open(ctx context.Context, topic string, pulled bool) *member {
	config, err := Config{Seeds: []string{"none"}}.withDefaults()
	if err != nil {
		panic(err)
	}
	m := &member{
		config:  &config,
		topic:   topic,
		limits:  config.limits(s.window),
		log:     config.Logger,
		ctx:     ctx,
		out:     make(chan *message.Message),
		queue:   queue{ready: make(chan struct{}, 1)},
		pulled:  pulled,
		budget:  newBudget(s.window),
		drained: make(chan struct{}, 1),
		soon:    make(chan struct{}, 1),
		parts:   make(map[partitionID]*assignment),
	}
	for p := range s.partitions {
		id := partitionID{topic, int32(p)}
		m.parts[id] = newAssignment(ctx, m, id, nil)
	}
	for _, a := range m.parts {
		go a.run()
	}
	s.feeds.Go(func() {
		feedAll(m)
		for _, a := range m.parts {
			a.stop()
			a.freeze(context.Canceled)
		}
		m.gone.Store(true)
		close(m.out)
		close(m.queue.ready)
	})
	return m
}

// feedAll does what poll and commitLoop do.
func feedAll(m *member) {
	offset := int64(0)
	for m.ctx.Err() == nil {
		idle := true
		for _, a := range m.parts {
			if !a.full() {
				idle = false
				a.push(batch(a.partitionID, offset))
			}
			if p, _, ok := a.beginCommit(maxMetadata); ok {
				a.endCommit(p, true)
			}
		}
		offset += batchSize
		if !idle {
			continue
		}
		select {
		case <-m.drained:
		case <-m.soon:
		case <-m.ctx.Done():
		}
	}
}

const batchSize = 500

var value = make([]byte, 1024)

// batch makes records as franz-go does: in one piece.
func batch(id partitionID, offset int64) []*kgo.Record {
	type record struct {
		kgo.Record
		headers [4]kgo.RecordHeader
	}
	records := make([]record, batchSize)
	pointers := make([]*kgo.Record, batchSize)
	now := time.Now()
	for i := range records {
		n := offset + int64(i)
		r := &records[i]
		r.headers = [4]kgo.RecordHeader{
			{Key: "ce_id", Value: fmt.Appendf(nil, "%d-%d", id.partition, n)},
			{Key: "ce_source", Value: []byte("/bench")},
			{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_type", Value: []byte("order.placed")},
		}
		r.Record = kgo.Record{
			Topic: id.topic, Partition: id.partition, Offset: n, Timestamp: now,
			Key: fmt.Appendf(nil, "key-%d-%d", id.partition, n%1250), Value: value, Headers: r.headers[:],
		}
		pointers[i] = &r.Record
	}
	return pointers
}

// cpuTime is what this process has used of processors.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// goroutines is how many were ever started.
func goroutines() uint64 {
	sample := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// BenchmarkConsume compares a bare Watermill router and the whole runtime on records that lie ready: of either the processor's time, the
// goroutines and the allocations for each message, which hold less of what else the machine does than the time by the clock.
func BenchmarkConsume(b *testing.B) {
	for _, subject := range []struct {
		name string
		run  func(context.Context, *fetched, int, time.Duration, func()) error
	}{{"router", onRouter}, {"headrace", onRuntime}} {
		for _, wait := range []time.Duration{0, 5 * time.Millisecond} {
			for _, window := range []int{256, 1024} {
				b.Run(fmt.Sprintf("%s/wait=%v/window=%d", subject.name, wait, window), func(b *testing.B) {
					benchmarkConsume(b, wait, func(ctx context.Context, handle func()) error {
						return subject.run(ctx, &fetched{partitions: 8}, window, wait, handle)
					})
				})
			}
		}
	}
}

func benchmarkConsume(b *testing.B, wait time.Duration, run func(ctx context.Context, handle func()) error) {
	b.ReportAllocs()
	var handled atomic.Int64
	done := make(chan struct{})
	handle := func() {
		if wait > 0 {
			time.Sleep(wait)
		}
		if handled.Add(1) == int64(b.N) {
			close(done)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	cpu, started := cpuTime(b), goroutines()
	go func() { ended <- run(ctx, handle) }()
	<-done
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/1000/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(goroutines()-started)/float64(b.N), "goroutines/op")
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

func onRouter(ctx context.Context, f *fetched, window int, _ time.Duration, handle func()) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	sub, err := f.Subscriber(brokers.Subscription{Window: window})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("bench", "orders", sub, func(*message.Message) error { handle(); return nil })
	return router.Run(ctx)
}

func onRuntime(ctx context.Context, f *fetched, window int, wait time.Duration, handle func()) error {
	concurrency := 0
	if wait > 0 {
		concurrency = window
	}
	rt, err := runtime.New(runtime.Config{
		Service: "bench", Broker: f, Logger: slog.New(slog.DiscardHandler),
		Policy:         runtime.Policy{Window: window, Concurrency: concurrency, Redrive: runtime.RedriveOff},
		TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(),
	})
	if err != nil {
		return err
	}
	runtime.Handle(rt.Consumer("bench", "orders"), "order.placed", func(context.Context, []byte) error { handle(); return nil })
	return rt.Run(ctx)
}

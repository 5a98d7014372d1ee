package ordering_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/ordering"
)

// benchSource delivers n messages with 1,000 keys, holds at most a window of them un-acked, and waits
// for their acks in order, as an adapter's settler does.
type benchSource struct {
	n    int
	keys []string
	body []byte
	done chan struct{}
	wg   sync.WaitGroup
}

func newBenchSource(n int) *benchSource {
	s := &benchSource{n: n, body: make([]byte, 256), done: make(chan struct{})}
	for i := range 1000 {
		s.keys = append(s.keys, fmt.Sprintf("key-%d", i))
	}
	return s
}

func (s *benchSource) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	held := make(chan *message.Message, 1024)
	delivery := &brokers.Delivery{Topic: topic, Partition: -1, Offset: -1}
	s.wg.Go(func() {
		for range s.n {
			select {
			case m := <-held:
				<-m.Acked()
			case <-ctx.Done():
				return
			}
		}
		close(s.done)
	})
	s.wg.Go(func() {
		defer close(out)
		for i := range s.n {
			m := message.NewMessage("", s.body)
			m.Metadata[event.MetaPartitionKey] = s.keys[i*7919%1000]
			m.SetContext(brokers.WithDelivery(ctx, delivery))
			held <- m
			out <- m
		}
		<-ctx.Done()
	})
	return out, nil
}

func (s *benchSource) Close() error { s.wg.Wait(); return nil }

func benchmarkRouter(b *testing.B, setUp func(*message.Router), depth int) {
	b.ReportAllocs()
	router := message.NewDefaultRouter(watermill.NopLogger{})
	setUp(router)
	source := newBenchSource(b.N)
	var ran atomic.Int64
	router.AddConsumerHandler("bench", "orders", source, func(*message.Message) error {
		ran.Add(int64(useStack(depth)))
		return nil
	})
	b.ResetTimer()
	go func() { _ = router.Run(context.Background()) }()
	<-source.done
	b.StopTimer()
	if err := router.Close(); err != nil {
		b.Fatal(err)
	}
}

// useStack makes a goroutine's stack grow as a real chain of stages does.
//
//go:noinline
func useStack(depth int) int {
	var frame [512]byte
	if depth == 0 {
		return 1 + int(frame[0])
	}
	frame[depth%512] = 0
	return useStack(depth-1) + int(frame[depth%512])
}

// BenchmarkRouter compares a bare Watermill router with one that has an intake, no-op handlers both.
func BenchmarkRouter(b *testing.B) {
	for _, depth := range []int{0, 10} {
		b.Run(fmt.Sprintf("bare/stack=%d", depth), func(b *testing.B) { benchmarkRouter(b, func(*message.Router) {}, depth) })
		b.Run(fmt.Sprintf("intake/stack=%d", depth), func(b *testing.B) {
			benchmarkRouter(b, func(r *message.Router) {
				intake, err := ordering.New(ordering.Config{Consumer: "bench"})
				if err != nil {
					b.Fatal(err)
				}
				r.AddSubscriberDecorators(intake.Decorate)
				r.AddMiddleware(intake.Middleware)
			}, depth)
		})
	}
}

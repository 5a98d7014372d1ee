package outboxsuite

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
)

// Benchmark measures Add in a transaction of its own and of 100, and a relay that publishes to a broker
// that costs nothing. It reports per message: 256 bytes, 1,000 keys, 4 topics.
func Benchmark[Tx any](b *testing.B, open func(b *testing.B) Subject[Tx]) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprintf("Add/%d", n), func(b *testing.B) {
			s := open(b)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%n == 0 {
					s.addForBench(b, i, n)
				}
			}
		})
	}
	b.Run("Relay", func(b *testing.B) {
		s := open(b)
		const perTx = 1_000
		for i := 0; i < b.N; i += perTx {
			s.addForBench(b, i, min(perTx, b.N-i))
		}
		p := &counter{want: int64(b.N), done: make(chan struct{})}
		r, err := outbox.NewRelay(s.Source, p, outbox.RelayConfig{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		b.ReportAllocs()
		b.ResetTimer()
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		<-p.done
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	})
}

func (s Subject[Tx]) addForBench(b *testing.B, from, n int) {
	ctx := context.Background()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = message.NewMessage(fmt.Sprint("message-", from+i), make([]byte, 256))
		msgs[i].Metadata = message.Metadata{
			event.MetaPartitionKey: fmt.Sprint("key-", (from+i)%1000), event.MetaType: "order.placed",
			event.MetaSource: "billing", event.MetaCorrelationID: "0190c6f4-5f3c-7cc0-8b1d-2f6a3b1c9d10",
		}
	}
	tx, commit, _, err := s.Begin(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := outbox.Add(ctx, s.Writer, tx, fmt.Sprint("topic-", from/1000%4), msgs...); err != nil {
		b.Fatal(err)
	}
	if err := commit(); err != nil {
		b.Fatal(err)
	}
}

// counter is a broker that counts.
type counter struct {
	got  atomic.Int64
	want int64
	done chan struct{}
}

func (c *counter) Publish(_ string, msgs ...*message.Message) error {
	n := int64(len(msgs))
	if got := c.got.Add(n); got >= c.want && got-n < c.want {
		close(c.done)
	}
	return nil
}

func (c *counter) Close() error { return nil }

package adapter_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger notes what a settler settles.
type ledger struct {
	mu       sync.Mutex
	outcomes map[int]adapter.Outcome
	calls    int
}

func (l *ledger) settle(batch []*adapter.Held[int]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.outcomes == nil {
		l.outcomes = map[int]adapter.Outcome{}
	}
	l.calls++
	for _, h := range batch {
		l.outcomes[h.Entry] = h.Outcome
	}
}

func (l *ledger) of(entry int) adapter.Outcome {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outcomes[entry]
}

func hold(t *testing.T, s *adapter.Settler[int], entry int) *message.Message {
	m := message.NewMessage("", nil)
	s.Hold(t.Context(), m, brokers.Delivery{}, entry)
	return m
}

func TestEachOutcomeIsFoundWithoutARing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		s := adapter.NewSettler(10, l.settle)
		messages := []*message.Message{hold(t, s, 0), hold(t, s, 1), hold(t, s, 2), hold(t, s, 3)}
		synctest.Wait()
		messages[1].Ack() // not the oldest: only a look finds it
		messages[2].Nack()
		brokers.DeliveryOf(messages[3].Context()).Release()
		time.Sleep(20 * time.Millisecond)
		for entry, want := range []adapter.Outcome{adapter.Undecided, adapter.Acked, adapter.Nacked, adapter.Released} {
			if got := l.of(entry); got != want {
				t.Errorf("outcome of %d: %d, want %d", entry, got, want)
			}
		}
		for entry, ended := range []bool{false, true, true, true} {
			if got := messages[entry].Context().Err() != nil; got != ended {
				t.Errorf("context of %d has ended: %t, want %t", entry, got, ended)
			}
		}
		if got, want := s.Len(), 1; got != want {
			t.Errorf("Len: %d, want %d", got, want)
		}
		messages[0].Ack()
		synctest.Wait() // the oldest is watched
		if got := l.of(0); got != adapter.Acked {
			t.Errorf("outcome of the oldest: %d, want acked", got)
		}
		if rest := s.Close(); len(rest) != 0 {
			t.Errorf("rest: %d, want none", len(rest))
		}
	})
}

func TestRingSettlesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		s := adapter.NewSettler(10, l.settle)
		hold(t, s, 0)
		m := hold(t, s, 1)
		synctest.Wait()
		m.Ack()
		brokers.DeliveryOf(m.Context()).Settled()
		synctest.Wait() // no time passes
		if got := l.of(1); got != adapter.Acked {
			t.Errorf("outcome: %d, want acked", got)
		}
		if rest := s.Close(); len(rest) != 1 || rest[0].Entry != 0 || rest[0].Outcome != adapter.Undecided || rest[0].Message.Context().Err() == nil {
			t.Errorf("rest: %+v, want the one that was not settled, its context ended", rest)
		}
	})
}

func TestRoomIsWhatTheWindowHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		s := adapter.NewSettler(2, l.settle)
		if got := s.Room(t.Context()); got != 2 {
			t.Errorf("Room of an empty settler: %d, want 2", got)
		}
		first := hold(t, s, 0)
		hold(t, s, 1)
		room := make(chan int)
		go func() { room <- s.Room(t.Context()) }()
		synctest.Wait()
		select {
		case n := <-room:
			t.Errorf("Room of a full settler: %d, want it to wait", n)
		default:
		}
		first.Ack()
		if got := <-room; got != 1 {
			t.Errorf("Room after one ack: %d, want 1", got)
		}
		hold(t, s, 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got := s.Room(ctx); got != 0 {
			t.Errorf("Room with an ended context: %d, want 0", got)
		}
		s.Reserve(-1)
		if got := s.Room(t.Context()); got != 1 {
			t.Errorf("Room after a place was given back: %d, want 1", got)
		}
		s.Close()
	})
}

func TestWhatIsDecidedBeforeCloseIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		s := adapter.NewSettler(100, l.settle)
		for i := range 50 {
			m := hold(t, s, i)
			if i%2 == 0 {
				m.Ack()
			}
		}
		rest := s.Close()
		var left []int
		for _, h := range rest {
			left = append(left, h.Entry)
		}
		if len(left) != 25 || !slices.IsSorted(left) {
			t.Errorf("rest: %v, want the 25 odd ones in order", left)
		}
		for i := 0; i < 50; i += 2 {
			if l.of(i) != adapter.Acked {
				t.Errorf("%d was acked before Close and is not settled", i)
			}
		}
	})
}

func TestDelayIsARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got *adapter.Held[int]
		s := adapter.NewSettler(2, func(batch []*adapter.Held[int]) { got = batch[0] })
		if d := brokers.DeliveryOf(hold(t, s, 0).Context()); d.Delay != nil {
			t.Error("Delay is set although the adapter cannot")
		}
		s.Delays = true
		d := brokers.DeliveryOf(hold(t, s, 1).Context())
		if !d.Delay(time.Minute) {
			t.Error("Delay is false")
		}
		synctest.Wait()
		if got == nil || got.Entry != 1 || got.Outcome != adapter.Released || got.Delay() != time.Minute {
			t.Errorf("settled %+v, want 1, released, with a delay of a minute", got)
		}
		s.Close()
	})
}

func TestDroppedDeliveryHasNoOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		s := adapter.NewSettler(1, l.settle)
		m := message.NewMessage("", nil)
		h := s.Hold(t.Context(), m, brokers.Delivery{}, 0)
		synctest.Wait()
		if !s.Drop(h) || s.Drop(h) {
			t.Error("Drop: want true once")
		}
		m.Ack()
		h.Delivery.Settled()
		if got := s.Room(t.Context()); got != 1 {
			t.Errorf("Room: %d, want 1", got)
		}
		if m.Context().Err() == nil {
			t.Error("the context goes on")
		}
		s.Close()
		if got := l.of(0); got != adapter.Undecided {
			t.Errorf("outcome: %d, want none", got)
		}
	})
}

func TestSlowSettleGetsManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		s := adapter.NewSettler(100, func(batch []*adapter.Held[int]) {
			time.Sleep(time.Second)
			l.settle(batch)
		})
		for i := range 100 {
			hold(t, s, i).Ack()
		}
		time.Sleep(time.Minute)
		s.Close()
		if l.calls > 3 || len(l.outcomes) != 100 {
			t.Errorf("%d calls settled %d, want 100 in at most 3", l.calls, len(l.outcomes))
		}
	})
}

func TestEveryDeliveryIsSettledOnceUnderLoad(t *testing.T) {
	const n, window = 2000, 16
	var mu sync.Mutex
	times := make([]int, n)
	s := adapter.NewSettler(window, func(batch []*adapter.Held[int]) {
		mu.Lock()
		defer mu.Unlock()
		if len(batch) > window {
			t.Errorf("a batch of %d, want at most the window, %d", len(batch), window)
		}
		for _, h := range batch {
			times[h.Entry]++
		}
	})
	var settling sync.WaitGroup
	for i := 0; i < n; {
		for range s.Room(t.Context()) {
			if i == n {
				break
			}
			m := message.NewMessage("", nil)
			s.Hold(t.Context(), m, brokers.Delivery{}, i)
			i++
			how := rand.IntN(4)
			settling.Go(func() {
				switch how {
				case 0:
					m.Nack()
				case 1:
					brokers.DeliveryOf(m.Context()).Release()
				case 2:
					m.Ack()
				default:
					m.Ack()
					brokers.DeliveryOf(m.Context()).Settled()
				}
			})
		}
	}
	settling.Wait()
	if rest := s.Close(); len(rest) != 0 {
		t.Errorf("rest: %d, want none", len(rest))
	}
	for i, k := range times {
		if k != 1 {
			t.Fatalf("delivery %d was settled %d times, want once", i, k)
		}
	}
}

func TestSubscriptionsEndWithCloseAndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s adapter.Subscriptions
		ended := make(chan string, 2)
		ctx, cancel := context.WithCancel(t.Context())
		run := func(name string) func(context.Context) {
			return func(ctx context.Context) {
				<-ctx.Done()
				ended <- name
			}
		}
		if err := errors.Join(s.Go(ctx, run("own context")), s.Go(t.Context(), run("close"))); err != nil {
			t.Fatal(err)
		}
		cancel()
		if got := <-ended; got != "own context" {
			t.Errorf("ended first: %s", got)
		}
		s.Close()
		s.Close()
		if got := <-ended; got != "close" {
			t.Errorf("ended by Close: %s", got)
		}
		if err := s.Go(t.Context(), run("late")); !errors.Is(err, adapter.ErrClosed) {
			t.Errorf("Go after Close: %v, want ErrClosed", err)
		}
	})
}

func BenchmarkHoldAndSettle(b *testing.B) {
	s := adapter.NewSettler(256, func([]*adapter.Held[int]) {})
	b.ReportAllocs()
	for b.Loop() {
		s.Room(b.Context())
		m := message.NewMessage("", nil)
		h := s.Hold(b.Context(), m, brokers.Delivery{}, 0)
		m.Ack()
		h.Delivery.Settled()
	}
	s.Close()
}

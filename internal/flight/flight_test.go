package flight_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/flight"
)

// told records what the broker is told of one delivery.
type told struct {
	msg                *message.Message
	released, deferred atomic.Int32
	flight             *flight.Flight
}

func newTold() *told {
	t := &told{msg: message.NewMessage("1", nil)}
	t.flight = &flight.Flight{Context: t.msg.Context(), Original: t.msg, Delivery: &brokers.Delivery{
		Release: func() { t.released.Add(1) },
		Delay:   func(time.Duration) bool { t.deferred.Add(1); return true },
	}}
	return t
}

// String tells all of it.
func (t *told) String() string {
	is := func(c <-chan struct{}) int {
		select {
		case <-c:
			return 1
		default:
			return 0
		}
	}
	return fmt.Sprintf("acked %d nacked %d released %d delayed %d", is(t.msg.Acked()), is(t.msg.Nacked()), t.released.Load(), t.deferred.Load())
}

var settlers = []struct {
	settlement flight.Settlement
	settle     func(*flight.Flight) bool
	want       string
}{
	{flight.Acked, (*flight.Flight).Ack, "acked 1 nacked 0 released 0 delayed 0"},
	{flight.Nacked, (*flight.Flight).Nack, "acked 0 nacked 1 released 0 delayed 0"},
	{flight.Released, (*flight.Flight).Release, "acked 0 nacked 0 released 1 delayed 0"},
	{flight.Delayed, func(f *flight.Flight) bool { return f.Delay(time.Second) }, "acked 0 nacked 0 released 0 delayed 1"},
}

// A stage released a message at the drain limit, and the handler that returned later acked it: the broker was told both.
func TestI1FirstSettlementIsTheOnlyOne(t *testing.T) {
	for _, first := range settlers {
		d := newTold()
		if !first.settle(d.flight) {
			t.Errorf("settlement %d: the first is refused", first.settlement)
		}
		for _, later := range settlers {
			if later.settle(d.flight) {
				t.Errorf("settlement %d is taken after %d", later.settlement, first.settlement)
			}
		}
		if got := d.String(); got != first.want || d.flight.Settlement() != first.settlement {
			t.Errorf("settlement %d: the broker is told %q, and the flight %d; want %q", first.settlement, got, d.flight.Settlement(), first.want)
		}
	}
}

func TestI1OneOfManySettlementsAtOnceWins(t *testing.T) {
	for range 200 {
		d := newTold()
		var wins atomic.Int32
		var all sync.WaitGroup
		for _, s := range settlers {
			all.Go(func() {
				if s.settle(d.flight) {
					wins.Add(1)
				}
			})
		}
		all.Wait()
		if got, won := d.String(), settlers[d.flight.Settlement()-1]; wins.Load() != 1 || got != won.want {
			t.Fatalf("%d calls won, and the broker is told %q; want one, and %q", wins.Load(), got, won.want)
		}
	}
}

// An adapter that cannot take a message back was told nothing of the end of a hold, and waited for a verdict for ever.
func TestGiveBackNacksWhereNothingElseTellsTheAdapter(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name    string
		release bool // the broker can take it back
		ended   bool // it was taken away
		want    string
		is      flight.Settlement
	}{
		{"release", true, false, "acked 0 nacked 0 released 1 delayed 0", flight.Released},
		{"no release", false, false, "acked 0 nacked 1 released 0 delayed 0", flight.Nacked},
		{"taken away", false, true, "acked 0 nacked 0 released 0 delayed 0", flight.Released},
	} {
		d := newTold()
		if !test.release {
			d.flight.Delivery.Release = nil
		}
		if test.ended {
			d.flight.Context = over //nolint:fatcontext // each flight has its own
		}
		d.flight.GiveBack()
		if got := d.String(); got != test.want || d.flight.Settlement() != test.is {
			t.Errorf("%s: the broker is told %q, and the flight %d; want %q and %d", test.name, got, d.flight.Settlement(), test.want, test.is)
		}
	}
}

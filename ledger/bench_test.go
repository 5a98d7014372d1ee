package ledger_test

import (
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/stores/testonly"
)

// quietLedger is one that has begun and has nothing to watch.
func quietLedger(tb testing.TB) *ledger.Ledger {
	store := testonly.NewLedger()
	var l *ledger.Ledger
	for range 2 {
		var err error
		if l, err = ledger.New(ledger.Config{Service: "s", Instance: "i", Store: store}); err != nil {
			tb.Fatal(err)
		}
		if err := l.Begin(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		if l.Stats().State == "probing" {
			if err := l.End(tb.Context()); err != nil {
				tb.Fatal(err)
			}
		}
	}
	return l
}

func nothing(*message.Message) ([]*message.Message, error) { return nil, nil }

// BenchmarkQuiet compares an attempt with the stage and without.
func BenchmarkQuiet(b *testing.B) {
	l := quietLedger(b)
	defer func() {
		if err := l.End(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	for _, c := range []struct {
		name string
		h    message.HandlerFunc
	}{{"without", nothing}, {"with", l.Middleware("c")(nothing)}} {
		b.Run(c.name, func(b *testing.B) {
			msg := message.NewMessage("m", nil)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.h(msg)
			}
		})
		b.Run(c.name+", parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				msg := message.NewMessage("m", nil)
				for p.Next() {
					_, _ = c.h(msg)
				}
			})
		})
	}
}

func TestQuietPathAllocatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := quietLedger(t)
		h := l.Middleware("c")(nothing)
		msg := message.NewMessage("m", nil)
		if n := testing.AllocsPerRun(100, func() { _, _ = h(msg) }); n != 0 {
			t.Errorf("got %v allocations for each message, want none", n)
		}
		if err := l.End(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

package poison_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/poison"
)

type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

// BenchmarkMiddleware is a message that succeeds, and one that is dead-lettered.
func BenchmarkMiddleware(b *testing.B) {
	for _, bench := range []struct {
		name     string
		err      error
		readOnly bool
	}{
		{"success", nil, false},
		{"successReadOnly", nil, true},
		{"deadLetter", gaveUp(classify.VerdictPoison, errDown), false},
	} {
		b.Run(bench.name, func(b *testing.B) {
			p := newPoison(b, discard{}, func(c *poison.Config) { c.ReadOnly = bench.readOnly })
			h := p.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, bench.err })
			msg := newMessage(b.Context())
			b.ReportAllocs()
			for b.Loop() {
				if _, err := h(msg); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

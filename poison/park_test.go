package poison_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
)

// parkChain dead-letters a message of the topic orders and asks park.
func parkChain(t *testing.T, published *int, park func(context.Context, poison.Record) error) (*poison.Poison, message.HandlerFunc) {
	t.Helper()
	p, err := poison.New(poison.Config{
		Consumer: "billing", Park: park, WriteDelay: time.Second, MaxWriteDelay: time.Minute,
		Publisher: publishFunc(func(...*message.Message) error { *published++; return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, p.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, classify.Permanent(errors.New("bad")) })
}

type publishFunc func(...*message.Message) error

func (f publishFunc) Publish(_ string, msgs ...*message.Message) error { return f(msgs...) }
func (publishFunc) Close() error                                       { return nil }

func arrived(ctx context.Context) *message.Message {
	msg := message.NewMessage("m", []byte("x"))
	msg.SetContext(ctx)
	flight.Ensure(msg).Topic = "orders"
	return msg
}

// The database was away when a message was to be parked: it was acked with its dead letter alone, and those
// behind it went on without it.
func TestD2ParkIsTriedUntilItSucceedsAndTheLetterWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		published, tries := 0, 0
		var p *poison.Poison
		p, h := parkChain(t, &published, func(_ context.Context, r poison.Record) error {
			tries++
			if r.MessageID != "uuid:orders m" || r.ID == "" {
				t.Errorf("record %+v; want the message's id and the letter's", r)
			}
			switch tries {
			case 1:
				return errors.New("the database is away")
			case 2:
				panic("a mistake")
			}
			if p.Blocked() != 1 {
				t.Errorf("Blocked is %d while the message is held, want 1", p.Blocked())
			}
			return nil
		})
		msg := arrived(t.Context())
		if _, err := h(msg); err != nil {
			t.Fatalf("handler: %v", err)
		}
		if tries != 3 || published != 1 || p.Blocked() != 0 || flight.From(msg.Context()).Receipt() != flight.DeadLettered {
			t.Errorf("%d tries, %d letters, %d blocked, receipt %v; want 3, 1, 0, dead-lettered",
				tries, published, p.Blocked(), flight.From(msg.Context()).Receipt())
		}
	})
}

func TestD5ParkThatFailsUntilTheContextEndsLeavesTheMessageUnacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		published := 0
		errAway := errors.New("the database is away")
		p, h := parkChain(t, &published, func(context.Context, poison.Record) error { return errAway })
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		msg := arrived(ctx)
		_, err := h(msg)
		if v := new(classify.Classifier).Classify(err).Verdict; v != classify.VerdictStop || !errors.Is(err, errAway) {
			t.Errorf("error %v, verdict %v; want Stop and the database's", err, v)
		}
		if r := flight.From(msg.Context()).Receipt(); r != flight.NoReceipt || p.Blocked() != 0 {
			t.Errorf("receipt %v, %d blocked; want none", r, p.Blocked())
		}
	})
}

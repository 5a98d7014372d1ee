package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// opener opens subscriptions that do nothing until their context ends.
type opener struct {
	opening          chan struct{} // nil: at once; else an Open returns when there is a value
	opened           int
	ended, abandoned int
	failure          error
}

func (o *opener) open(context.Context, brokers.Subscription, string) (adapter.Opened, error) {
	o.opened++
	if o.opening != nil {
		<-o.opening
	}
	out := make(chan *message.Message)
	return adapter.Opened{
		Out: out,
		Run: func(ctx context.Context) {
			<-ctx.Done()
			o.ended++
			close(out)
		},
		Abandon: func() { o.abandoned++ },
	}, o.failure
}

func TestSubscriptionIsChecked(t *testing.T) {
	free := &adapter.Subscribers{System: "test", Window: 7}
	limited := &adapter.Subscribers{System: "test", Window: 7, MaxWindow: 10}
	for _, tt := range []struct {
		all    *adapter.Subscribers
		s      brokers.Subscription
		window int
		want   string // of the error
	}{
		{free, brokers.Subscription{Consumer: "c"}, 7, ""},
		{free, brokers.Subscription{Consumer: "c", Window: 1000}, 1000, ""},
		{free, brokers.Subscription{Window: 1}, 0, "test: Subscription.Consumer is empty"},
		{free, brokers.Subscription{Consumer: "c", Window: -1}, 0, `test: Subscription.Window of consumer "c" is -1: want at least 0`},
		{limited, brokers.Subscription{Consumer: "c", Window: 10}, 10, ""},
		{limited, brokers.Subscription{Consumer: "c", Window: 11}, 0, `test: Subscription.Window of consumer "c" is 11: want 0 to 10`},
		{limited, brokers.Subscription{Consumer: "c", Window: -1}, 0, `test: Subscription.Window of consumer "c" is -1: want 0 to 10`},
	} {
		got, err := tt.all.Check(tt.s)
		if tt.want == "" && (err != nil || got.Window != tt.window) || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("Check(%+v) gave window %d, error %v; want window %d, error %q", tt.s, got.Window, err, tt.window, tt.want)
		}
		if sub, err := tt.all.New(tt.s); (sub == nil) != (tt.want != "") || (err == nil) != (tt.want == "") {
			t.Errorf("New(%+v) gave %v, error %v, want an error: %v", tt.s, sub, err, tt.want != "")
		}
	}
}

func TestSubscribeRefusesWithoutOpening(t *testing.T) {
	var o opener
	all := &adapter.Subscribers{System: "test", Open: o.open}
	sub, err := all.New(brokers.Subscription{Consumer: "c", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]string{"": "the topic is empty", "others": `the subscriber is for topic "orders"`} {
		want = fmt.Sprintf(`test: subscribe consumer "c" to topic %q: %s`, topic, want)
		if _, err := sub.Subscribe(t.Context(), topic); err == nil || err.Error() != want {
			t.Errorf("Subscribe to %q: %v, want %q", topic, err, want)
		}
	}
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, adapter.ErrClosed) {
		t.Errorf("Subscribe after Close: %v, want %v", err, adapter.ErrClosed)
	}
	if o.opened > 0 {
		t.Errorf("%d subscriptions were opened", o.opened)
	}
}

func TestCloseEndsAllSubscriptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o opener
		all := &adapter.Subscribers{System: "test", Open: o.open}
		sub, err := all.New(brokers.Subscription{Consumer: "c"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, err := sub.Subscribe(ctx, "orders")
		if err != nil {
			t.Fatal(err)
		}
		second, err := sub.Subscribe(t.Context(), "others")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		<-first
		select {
		case <-second:
			t.Error("the end of one context ended both subscriptions")
		default:
		}
		if err := all.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if o.ended != 2 || !all.Closed() {
			t.Errorf("after Close %d of 2 subscriptions have ended; closed: %v", o.ended, all.Closed())
		}
		if _, err := sub.Subscribe(t.Context(), "orders"); !errors.Is(err, adapter.ErrClosed) {
			t.Errorf("Subscribe after Close: %v, want %v", err, adapter.ErrClosed)
		}
		if sub, err := all.New(brokers.Subscription{Consumer: "c"}); sub != nil || !errors.Is(err, adapter.ErrClosed) {
			t.Errorf("New after Close: %v, %v, want %v", sub, err, adapter.ErrClosed)
		}
	})
}

// The subscriber is closed while a subscription is being opened: it must neither run nor be forgotten.
func TestSubscriptionThatComesTooLateIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := opener{opening: make(chan struct{})}
		all := &adapter.Subscribers{System: "test", Open: o.open}
		sub, err := all.New(brokers.Subscription{Consumer: "c"})
		if err != nil {
			t.Fatal(err)
		}
		subscribed := make(chan error)
		go func() {
			_, err := sub.Subscribe(t.Context(), "orders")
			subscribed <- err
		}()
		synctest.Wait()
		if err := all.Close(); err != nil {
			t.Fatal(err)
		}
		o.opening <- struct{}{}
		if err := <-subscribed; !errors.Is(err, adapter.ErrClosed) {
			t.Errorf("Subscribe: %v, want %v", err, adapter.ErrClosed)
		}
		if o.abandoned != 1 || o.ended != 0 {
			t.Errorf("%d subscriptions were abandoned and %d ran, want 1 and 0", o.abandoned, o.ended)
		}
	})
}

// A subscriber that subscribes again and again kept something of each subscription until it was closed.
func TestEndedSubscriptionIsForgotten(t *testing.T) {
	type key struct{}
	var subs adapter.Subscriptions
	defer subs.Close()
	gone := func() weak.Pointer[[64]byte] {
		value, ended := new([64]byte), make(chan struct{})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, value))
		if err := subs.Go(ctx, func(ctx context.Context) { <-ctx.Done(); close(ended) }); err != nil {
			t.Fatal(err)
		}
		cancel()
		<-ended
		return weak.Make(value)
	}()
	for late := time.After(10 * time.Second); gone.Value() != nil; runtime.GC() {
		select {
		case <-late:
			t.Fatal("the context of a subscription that has ended is still there")
		default:
		}
	}
}

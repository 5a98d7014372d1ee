package brokertest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

func share(t *T) {
	const n = 60
	size := t.window(cmp.Or(t.SharedWindow, 4))
	a, b := t.read("c", size), t.read("c", size)
	t.publish(0, n)
	var got []int
	limit := time.After(t.Wait)
	for len(got) < n {
		var m *message.Message
		select {
		case m = <-a.in:
		case m = <-b.in:
		case <-limit:
			t.Fatalf("received %d of %d messages in %v: %v", len(got), n, t.Wait, got)
		}
		got = append(got, number(m))
		m.Ack()
	}
	slices.Sort(got)
	if !slices.Equal(got, upTo(n)) {
		t.Errorf("two subscribers of one name received %v, want each of %d messages once", got, n)
	}
	a.quiet("at the first subscriber after all")
	b.quiet("at the second subscriber after all")
	// One goes, the other has all.
	a.close()
	t.publish(n, 5)
	t.same("the second subscriber alone", b.ack(5), []int{n, n + 1, n + 2, n + 3, n + 4})
}

func order(t *T, window int) {
	const n = 200
	t.publish(0, n/2)
	r := t.read("c", t.window(window))
	t.publish(n/2, n/2)
	t.same("received", r.ack(n), upTo(n))
}

// window checks that as many deliveries as the window allows are un-acked at once, and that each settlement lets one more
// through.
func window(t *T, size int) {
	size = t.window(size)
	t.publishWide(3 * size)
	r := t.read("c", size)
	held := r.take(size)
	r.quiet("beyond the window")
	for i := range 2 * size {
		held[0].Ack()
		held = append(held[1:], r.next())
		if i%4 == 0 {
			r.quiet("beyond the window after an ack")
		}
	}
	for _, m := range held {
		m.Ack()
	}
	r.quiet("after all")
}

// A delivery that is not settled for long holds back no other than itself.
func stuck(t *T) {
	size := t.window(4)
	if size < 2 {
		t.Skip("the broker allows one un-acked delivery")
	}
	const n = 40
	inOrder := t.publishWide(n)
	r := t.read("c", size)
	first := r.next()
	got := append([]int{number(first)}, r.ack(n-1)...)
	if !inOrder {
		slices.Sort(got)
	}
	t.same("received", got, upTo(n))
	first.Ack()
	r.quiet("after all")
}

func nackRedelivers(t *T) {
	t.publish(0, 1)
	r := t.read("c", t.window(4))
	offset := int64(0)
	for i := range 4 {
		m := r.next()
		if number(m) != 0 {
			t.Fatalf("delivery %d is of message %s, want 0", i+1, m.Payload)
		}
		t.count(m, i+1)
		d := t.delivery(m)
		if i > 0 && d.Offset != offset {
			t.Errorf("delivery %d has offset %d, the first had %d", i+1, d.Offset, offset)
		}
		offset = d.Offset
		if i < 3 {
			m.Nack()
		} else {
			m.Ack()
		}
	}
	r.quiet("after the ack")
}

// Stock watermill-nats prefetches behind a nack: 0 1 2 3 4 5 became 0 1 2 3 4 5 1.
func nackKeepsOrder(t *T) {
	if !t.ordered() {
		t.Skip("the broker keeps no order")
	}
	t.publish(0, 6)
	r := t.read("c", 1)
	nacked := false
	var got []int
	for len(got) < 6 {
		m := r.next()
		if number(m) == 1 && !nacked {
			nacked = true
			m.Nack()
			continue
		}
		got = append(got, number(m))
		m.Ack()
	}
	t.same("received", got, upTo(6))
}

// loops waits until one message, which is given back each time, has come so often as least says, and counts how often it comes in
// the 300 ms after that.
func loops(t *T, least int, giveBack func(*message.Message)) int {
	t.publish(0, 1)
	r := t.read("c", 1)
	for range least {
		giveBack(r.next())
	}
	n := 0
	until := time.After(300 * time.Millisecond)
	for {
		select {
		case m := <-r.in:
			n++
			giveBack(m)
		case <-until:
			r.close()
			return n
		}
	}
}

// maxLoops is a bound on what a pause between redeliveries lets through in 300 ms. A hot loop has made 155,000 in 200 ms.
const maxLoops = 200

// S5: a consumer that nacks while it stops must not make the broker resend as fast as it can.
func nackLoop(t *T) {
	if n := loops(t, 2, func(m *message.Message) { m.Nack() }); n > maxLoops {
		t.Errorf("a message that is always nacked came %d times in 300 ms, want at most %d", n, maxLoops)
	}
}

// S5: releasing on stop, while the subscription is not closed yet, must not either.
func releaseLoop(t *T) {
	if !t.caps.Releases {
		t.Skip("the broker does not take back")
	}
	if n := loops(t, 1, func(m *message.Message) { t.delivery(m).Release() }); n > maxLoops {
		t.Errorf("a message that is always released came %d times in 300 ms, want at most %d", n, maxLoops)
	}
}

func release(t *T) {
	if !t.caps.Releases {
		t.Skip("the broker does not take back")
	}
	size := t.window(4)
	t.publish(0, size)
	a := t.read("c", size)
	for _, m := range a.take(size) {
		d := t.delivery(m)
		if d.Release == nil {
			t.Fatal("Delivery.Release is nil, but Capabilities.Releases is true")
		}
		d.Release()
	}
	a.close()
	b := t.read("c", size)
	got := b.take(size)
	t.same("the next subscriber", numbers(got), upTo(size))
	for _, m := range got {
		if t.caps.CountsDeliveries && t.delivery(m).Count < 2 {
			t.Errorf("message %s: Delivery.Count is %d, want at least 2", m.Payload, t.delivery(m).Count)
		}
		m.Ack()
	}
	if t.ReleasedMayRepeat {
		return
	}
	b.quiet("after all")
}

// I1: the first settlement is the one that counts.
func settleTwice(t *T) {
	t.publish(0, 2)
	r := t.read("c", t.window(2))
	for range 2 {
		m := r.next()
		m.Ack()
		m.Ack()
		m.Nack()
		if d := t.delivery(m); d.Release != nil {
			d.Release()
			d.Release()
		}
	}
	r.quiet("after the acks")
	r.close()
	r = t.read("c", t.window(2))
	r.quiet("at the next subscriber")
}

// S1: an ack that is given before the end is not lost by the end, whichever of many it is.
func acksBeforeClose(t *T) {
	acksBeforeEnd(t, func(r *reader, _ context.CancelFunc) { r.close() })
}

func acksBeforeCancel(t *T) {
	acksBeforeEnd(t, func(r *reader, cancel context.CancelFunc) {
		cancel()
		r.closed()
	})
}

func acksBeforeEnd(t *T, end func(*reader, context.CancelFunc)) {
	size, rounds := t.window(8), 8
	t.publish(0, rounds*size)
	var got []int
	for range rounds {
		ctx, cancel := t.withCancel()
		sub := t.subscriber("c", size)
		in, err := sub.Subscribe(ctx, t.topic)
		if err != nil {
			t.Fatalf("Subscribe: %v", err)
		}
		r := &reader{t: t, sub: sub, in: in}
		held := r.take(size)
		got = append(got, numbers(held)...)
		for _, m := range slices.Backward(held) {
			m.Ack()
		}
		end(r, cancel)
	}
	t.same("received", got, upTo(rounds*size))
	t.read("c", size).quiet("at the next subscriber: acks were lost")
}

func closeGivesBack(t *T) {
	size := t.window(5)
	t.publish(0, 2*size)
	r := t.read("c", size)
	before := numbers(r.take(size))
	r.close()
	r = t.read("c", size)
	var got []int
	for range 2 * size {
		m := r.next()
		if t.caps.CountsDeliveries && slices.Contains(before, number(m)) && t.delivery(m).Count < 2 {
			t.Errorf("message %s: Delivery.Count is %d, want at least 2", m.Payload, t.delivery(m).Count)
		}
		got = append(got, number(m))
		m.Ack()
	}
	t.same("the next subscriber", got, upTo(2*size))
	r.quiet("after all")
}

// K1, K6: acks out of order must not take un-acked messages with them.
func ackOutOfOrder(t *T) {
	size := t.window(10)
	t.publish(0, size+3)
	r := t.read("c", size)
	held := r.take(size)
	want := upTo(size + 3)
	for i := size - 1; i >= 0; i-- {
		if i%2 == 1 {
			held[i].Ack()
			want = slices.DeleteFunc(want, func(n int) bool { return n == number(held[i]) })
		}
	}
	r.close()
	r = t.read("c", size)
	t.same("the next subscriber", r.ack(len(want)), want)
	r.quiet("after all")
	r.close()
	t.read("c", size).quiet("at the one after that")
}

// slowHandler holds deliveries for longer than the broker's patience.
func slowHandler(t *T) {
	if t.caps.Patience == 0 || !t.caps.ExtendsPatience {
		t.Skip("the broker has patience without end, or cannot extend it")
	}
	size := t.window(3)
	t.publish(0, size)
	r := t.read("c", size)
	held := r.take(size)
	other := t.read("c", size)
	var wg sync.WaitGroup
	hold := t.caps.Patience*5/2 + t.Quiet
	for _, s := range []*reader{r, other} {
		wg.Go(func() {
			select {
			case m := <-s.in:
				t.Errorf("Capabilities.ExtendsPatience is true, but message %s came again while it was held for %v, with a patience of %v", m.Payload, hold, t.caps.Patience)
			case <-time.After(hold):
			}
		})
	}
	wg.Wait()
	for _, m := range held {
		if err := m.Context().Err(); err != nil {
			t.Errorf("the context of message %s has ended while it was held: %v", m.Payload, err)
		}
		m.Ack()
	}
	r.close()
	other.quiet("after the acks")
}

// The stock JetStream adapter lets prefetched messages run out of their patience in a buffer: 20 messages of 150 ms with an
// AckWait of 1 s became 42 deliveries.
func prefetch(t *T) {
	if t.caps.Patience == 0 || !t.caps.ExtendsPatience {
		t.Skip("the broker has patience without end, or cannot extend it")
	}
	n := 6
	each := t.caps.Patience / 2
	t.publish(0, n)
	r := t.read("c", t.window(20))
	var got []int
	for range n {
		m := r.next()
		got = append(got, number(m))
		<-time.After(each) // a handler at work, one message at a time; others wait in the adapter
		m.Ack()
	}
	t.same("received", got, upTo(n))
	r.quiet("after all")
}

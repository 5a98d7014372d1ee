package brokertest

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
)

// The tests of this file hold each field of Capabilities against what the broker does, in both directions where a difference can be seen.
// What cannot: that a broker does more than it says (keeps order, keeps messages, delivers for longer), and Retention.

func claimConstant(t *T) {
	c := t.caps
	if again := t.broker.Capabilities(); again != c {
		t.Errorf("Capabilities changed from %+v to %+v", c, again)
	}
	if c.System == "" {
		t.Error("Capabilities.System is empty")
	}
	switch c.Ordering {
	case brokers.OrderingNone, brokers.OrderingKey, brokers.OrderingPartition, brokers.OrderingTopic:
	default:
		t.Errorf("Capabilities.Ordering is %q, which is no unit of order", c.Ordering)
	}
	if c.ExtendsPatience && c.Patience <= 0 {
		t.Errorf("Capabilities.ExtendsPatience without a Patience (%v)", c.Patience)
	}
	if c.PatienceLimit > 0 && c.PatienceLimit < c.Patience {
		t.Errorf("Capabilities.PatienceLimit is %v, less than Patience, %v", c.PatienceLimit, c.Patience)
	}
	if c.MaxUnacked < 0 || c.MaxHeaderBytes < 0 || c.Patience < 0 || c.Retention < 0 || c.DeliveryLimit < 0 {
		t.Errorf("a limit of Capabilities is negative: %+v", c)
	}
}

func claimOrdering(t *T) {
	const n, keys = 60, 6
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = numbered(i, strconv.Itoa(i%keys))
	}
	t.publishAll(messages)
	r := t.read("c", t.window(8))
	last := make(map[string]int)              // by unit of order, the number that came last
	partitions := make(map[string]int32)      // by key
	unit := func(m *message.Message) string { // the unit that m is in
		switch t.caps.Ordering {
		case brokers.OrderingTopic:
			return "the topic"
		case brokers.OrderingPartition:
			return "partition " + strconv.Itoa(int(t.delivery(m).Partition))
		case brokers.OrderingKey:
			return "key " + m.Metadata["ce_partitionkey"]
		case brokers.OrderingNone:
		}
		return "message " + string(m.Payload)
	}
	for range n {
		m := r.next()
		u, i, key := unit(m), number(m), m.Metadata["ce_partitionkey"]
		if before, there := last[u]; there && before > i {
			t.Errorf("Capabilities.Ordering is %q, but in %s message %d came after message %d", t.caps.Ordering, u, i, before)
		}
		last[u] = i
		p := t.delivery(m).Partition
		if before, there := partitions[key]; t.caps.Ordering == brokers.OrderingPartition && (p < 0 || there && before != p) {
			t.Errorf("Capabilities.Ordering is %q, but key %s was in partition %d and is in %d", t.caps.Ordering, key, before, p)
		}
		partitions[key] = p
		m.Ack()
	}
	r.quiet("after all")
}

func claimMaxUnacked(t *T) {
	limit := t.caps.MaxUnacked
	size := t.window(32)
	messages := make([]*message.Message, size+3)
	for i := range messages {
		messages[i] = numbered(i, strconv.Itoa(i)) // an adapter may give a key no more than a part of the window
	}
	t.publishAll(messages)
	r := t.read("c", size)
	var held []*message.Message
	for range size {
		m := r.poll(t.Wait)
		if m == nil {
			t.Fatalf("Capabilities.MaxUnacked is %d, but with a window of %d no more than %d came un-acked", limit, size, len(held))
		}
		held = append(held, m)
	}
	r.close()
	if limit == 0 || limit > size {
		return
	}
	// A window that is wider than the limit is refused, or does not exceed it.
	sub, err := t.broker.Subscriber(brokers.Subscription{Consumer: "c", Topic: t.topic, Window: limit + 3})
	if err != nil {
		return
	}
	in, err := sub.Subscribe(t.Context(), t.topic)
	if err != nil {
		t.Fatalf("Subscribe: %v", err)
	}
	r = &reader{t: t, sub: sub, in: in}
	r.take(limit)
	if m := r.poll(t.Quiet); m != nil {
		t.Errorf("Capabilities.MaxUnacked is %d, but %d came un-acked", limit, limit+1)
	}
}

// claimPatience holds a delivery. It must come again if the broker's patience, which nobody extends, is over, and not
// before; with patience without end, never.
func claimPatience(t *T) {
	end := t.caps.Patience
	if t.caps.ExtendsPatience {
		end = t.caps.PatienceLimit
	}
	if end > t.Wait/2 {
		t.Skipf("a test cannot wait for a patience of %v", end)
	}
	t.publish(0, 1)
	r := t.read("c", t.window(2))
	held := r.next()
	began := time.Now()
	other := t.read("c", t.window(2))
	wait := end + t.Wait
	if end == 0 {
		wait = max(t.caps.Patience*5/2, 2*time.Second) + t.Quiet
	}
	var m *message.Message
	select {
	case m = <-r.in:
	case m = <-other.in:
	case <-time.After(wait):
	}
	took := time.Since(began).Round(time.Millisecond)
	switch {
	case m == nil && end > 0:
		t.Errorf("Capabilities.Patience is %v (PatienceLimit %v), but a delivery that was held for %v did not come again", t.caps.Patience, t.caps.PatienceLimit, took)
	case m != nil && end == 0 && t.caps.ExtendsPatience:
		t.Errorf("Capabilities.ExtendsPatience is true, but a delivery that was held came again after %v", took)
	case m != nil && end == 0:
		t.Errorf("Capabilities.Patience is 0, but a delivery that was held came again after %v", took)
	case m != nil && took < end*9/10:
		t.Errorf("Capabilities.Patience is %v (PatienceLimit %v), but a delivery that was held came again after %v", t.caps.Patience, t.caps.PatienceLimit, took)
	case m != nil: // the patience was exceeded
		r.contextEnds(held, "its patience was exceeded")
		m.Ack()
	}
	held.Ack()
}

func claimCountsDeliveries(t *T) {
	t.publish(0, 1)
	r := t.read("c", t.window(4))
	for i := range 4 {
		m := r.next()
		want := 0
		if t.caps.CountsDeliveries {
			want = i + 1
		}
		if got := t.delivery(m).Count; got != want {
			t.Errorf("Capabilities.CountsDeliveries is %v, but Delivery.Count of delivery %d is %d, want %d", t.caps.CountsDeliveries, i+1, got, want)
		}
		if i < 3 {
			m.Nack()
		} else {
			m.Ack()
		}
	}
}

func claimReleases(t *T) {
	t.publish(0, 1)
	r := t.read("c", t.window(2))
	m := r.next()
	d := t.delivery(m)
	if t.caps.Releases != (d.Release != nil) {
		t.Fatalf("Capabilities.Releases is %v, but Delivery.Release is there: %v", t.caps.Releases, d.Release != nil)
	}
	if d.Release == nil {
		m.Ack()
		return
	}
	d.Release()
	r.contextEnds(m, "its release")
	again := r.poll(t.Wait)
	if again == nil {
		t.Fatalf("Capabilities.Releases is true, but what was released did not come again in %v", t.Wait)
	}
	again.Ack()
}

func claimFanOut(t *T) {
	const n = 20
	a, b := t.read("a", t.window(4)), t.read("b", t.window(4))
	t.publish(0, n)
	want := n
	if t.caps.FanOut {
		want = 2 * n
	}
	got := make(map[*reader][]int)
	for range want {
		from, m := t.either(a, b, t.Wait)
		if m == nil {
			t.Fatalf("Capabilities.FanOut is %v, but of %d messages consumer a got %v, consumer b %v, and no more came in %v",
				t.caps.FanOut, n, got[a], got[b], t.Wait)
		}
		got[from] = append(got[from], number(m))
		m.Ack()
	}
	if from, m := t.either(a, b, t.Quiet); m != nil {
		t.Fatalf("Capabilities.FanOut is %v, but of %d messages consumer a got %v, consumer b %v, and then one of them %s: %v",
			t.caps.FanOut, n, got[a], got[b], m.Payload, from == b)
	}
	if t.caps.FanOut {
		t.same("consumer a", got[a], upTo(n))
		t.same("consumer b", got[b], upTo(n))
		return
	}
	all := slices.Sorted(slices.Values(slices.Concat(got[a], got[b])))
	if !slices.Equal(all, upTo(n)) {
		t.Errorf("Capabilities.FanOut is false, but both consumers together got %v", all)
	}
}

// either returns the next message of a or b, or nil if none comes in the time.
func (t *T) either(a, b *reader, d time.Duration) (*reader, *message.Message) {
	select {
	case m := <-a.in:
		return a, m
	case m := <-b.in:
		return b, m
	case <-time.After(d):
		return nil, nil
	}
}

// claimReplays acks all messages. Whoever comes later must get them all.
func claimReplays(t *T) {
	if !t.caps.Replays {
		t.Skip("what is acked may be gone")
	}
	const n = 5
	t.publish(0, n)
	r := t.read("c", t.window(4))
	t.same("consumer c", r.ack(n), upTo(n))
	r.close()
	late := t.read("late", t.window(8))
	var got []int
	for range n {
		m := late.poll(t.Wait)
		if m == nil {
			t.Fatalf("Capabilities.Replays is true, but of %d messages, which were acked before, a later consumer got %v", n, got)
		}
		got = append(got, number(m))
		m.Ack()
	}
	t.same("the later consumer", got, upTo(n))
}

// claimDelays delays two messages: what is published later comes before them, the longer delay, which was asked for first, ends last.
// They are the consumer's own: another one is not concerned.
func claimDelays(t *T) {
	const long, short = 2 * time.Second, time.Second
	var other *reader
	size := t.window(4) // a delayed delivery may take a place of the window
	if size < 3 {
		t.Skip("the broker allows too few un-acked deliveries")
	}
	r := t.read("c", size)
	if t.caps.FanOut {
		other = t.read("other", t.window(4))
	}
	t.publishWide(3)
	if other != nil {
		other.ack(3)
	}
	held := r.take(3)
	if has := t.delivery(held[0]).Delay != nil; has != t.caps.Delays {
		t.Fatalf("Capabilities.Delays is %v, but Delivery.Delay is there: %v", t.caps.Delays, has)
	}
	if !t.caps.Delays {
		return
	}
	began := time.Now()
	for i, d := range []time.Duration{long, short} {
		if !t.delivery(held[i]).Delay(d) {
			t.Fatalf("Capabilities.Delays is true, but Delay(%v) of message %s is false", d, held[i].Payload)
		}
		r.contextEnds(held[i], "its delay")
	}
	held[2].Ack()
	after := message.NewMessage("after", []byte("3"))
	after.Metadata["ce_partitionkey"] = "key"
	t.publishAll([]*message.Message{after})
	third := r.next()
	if took := time.Since(began); number(third) != 3 || took > short {
		t.Errorf("Capabilities.Delays is true, but message %s came after %v, want 3 while %s and %s are delayed", third.Payload, took, held[0].Payload, held[1].Payload)
	}
	third.Ack()
	for _, want := range []struct {
		m     *message.Message
		after time.Duration
	}{{held[1], short}, {held[0], long}} {
		m := r.poll(t.Wait)
		if m == nil {
			t.Fatalf("Capabilities.Delays is true, but message %s, which was delayed for %v, did not come in %v", want.m.Payload, want.after, t.Wait)
		}
		if took := time.Since(began); number(m) != number(want.m) || took < want.after {
			t.Errorf("Capabilities.Delays is true, but message %s came after %v, want %s after %v", m.Payload, took, want.m.Payload, want.after)
		}
		t.count(m, 2)
		m.Ack()
	}
	r.quiet("after all")
	if other != nil {
		other.ack(1)
		other.quiet("at another consumer")
	}
}

// claimDeliveryLimit nacks a message as often as the broker says it can be delivered, or more often than servers allow by themselves
// (RabbitMQ 4: 20): it must go on coming.
func claimDeliveryLimit(t *T) {
	n := 25
	if limit := t.caps.DeliveryLimit; limit > 0 {
		n = min(n, limit)
	}
	t.publish(0, 1)
	r := t.read("c", t.window(4))
	for i := range n {
		m := r.poll(t.Wait)
		if m == nil {
			t.Fatalf("Capabilities.DeliveryLimit is %d, but after %d deliveries the message does not come again", t.caps.DeliveryLimit, i)
		}
		if i < n-1 {
			m.Nack()
		} else {
			m.Ack()
		}
	}
	r.quiet("after the ack")
}

// claimMaxHeaderBytes publishes one value of all the bytes that the broker says it takes, of the kind that takes most room on any wire.
// A value of 64 KB arrives as well, or is refused for good; nothing else is lost by that.
func claimMaxHeaderBytes(t *T) {
	limit := t.caps.MaxHeaderBytes
	size := limit
	if size == 0 {
		size = 64 << 10
	}
	text := message.NewMessage("text", []byte("1"))
	text.Metadata["k"] = strings.Repeat("v", 64<<10-1)
	most := message.NewMessage("most", []byte("2"))
	most.Metadata["k"] = strings.Repeat("\xff\x00", size)[:size-1]
	t.arrivesOrRefused(most, false, "Capabilities.MaxHeaderBytes is "+strconv.Itoa(limit)+", but ")
	t.arrivesOrRefused(text, limit > 0 && limit < 64<<10, "Capabilities.MaxHeaderBytes is "+strconv.Itoa(limit)+", but ")
}

// arrivesOrRefused publishes m between two others. They arrive as they are, but m may be refused with an error that no other try can mend.
func (t *T) arrivesOrRefused(m *message.Message, mayRefuse bool, claim string) {
	t.Helper()
	t.publish(0, 1)
	err := t.publisher().Publish(t.topic, m.Copy())
	t.publish(2, 1)
	if err != nil && !mayRefuse {
		t.Errorf("%sPublish of message %s gave an error: %.300v", claim, m.UUID, err)
	}
	if verdict := (*classify.Classifier)(nil).Classify(err).Verdict; err != nil && verdict != classify.VerdictPoison {
		t.Errorf("the error of message %s, which is too large, is judged %v, want %v (no other try can mend it): %.300v", m.UUID, verdict, classify.VerdictPoison, err)
	}
	if err != nil && !strings.Contains(err.Error(), m.UUID) {
		t.Errorf("the error of message %s, which is too large, does not name it: %.300v", m.UUID, err)
	}
	r := t.read("c", 1)
	want := 3
	if err != nil {
		want = 2
	}
	var got []string
	for range want {
		in := r.poll(t.Wait)
		if in == nil {
			t.Fatalf("%sof a message before, message %s and one after only %q came (Publish: %.300v)", claim, m.UUID, got, err)
		}
		got = append(got, in.UUID)
		if in.UUID == m.UUID && !(bytes.Equal(in.Payload, m.Payload) && in.Metadata["k"] == m.Metadata["k"]) {
			t.Errorf("%smessage %s has not arrived as it was: %d bytes of payload, %d of metadata", claim, m.UUID, len(in.Payload), len(in.Metadata["k"]))
		}
		in.Ack()
	}
	if err == nil && !slices.Contains(got, m.UUID) {
		t.Errorf("%smessage %s did not come: %q", claim, m.UUID, got)
	}
	r.quiet("after all")
	r.close()
}

// poll returns the next message, or nil if none comes in the time.
func (r *reader) poll(d time.Duration) *message.Message {
	r.t.Helper()
	select {
	case m, open := <-r.in:
		if !open {
			r.t.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(d):
		return nil
	}
}

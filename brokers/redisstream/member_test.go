package redisstream_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/redisstream"
)

const wait = 15 * time.Second

// take settles the next n messages and returns their payloads.
func take(t *testing.T, in <-chan *message.Message, n int, settle func(*message.Message)) (got []string) {
	t.Helper()
	for range n {
		m := adaptertest.Next(t, in)
		got = append(got, string(m.Payload))
		settle(m)
	}
	return got
}

// A process is killed. What it held has no key that says that it lives, and goes to the next member, before what is new.
func TestDeadMembersEntriesAreTakenOverInOrder(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 5)...)
	if err := c.XGroupCreateMkStream(t.Context(), topic, "c", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: "c", Consumer: "headrace.dead", Streams: []string{topic, ">"}, Count: 3,
	}).Err(); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	counts := map[string]int{}
	got := take(t, in, 5, func(m *message.Message) {
		counts[string(m.Payload)] = brokers.DeliveryOf(m.Context()).Count
		m.Ack()
	})
	if want := []string{"0", "1", "2", "3", "4"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if counts["0"] != 2 || counts["4"] != 1 {
		t.Errorf("deliveries: %v, want 2 of what the dead member had, 1 of the rest", counts)
	}
}

// XAUTOCLAIM goes by age alone: a handler that took longer than the age lost its entry to another member, which ran it at
// the same time. A member that lives keeps what it has, however long it takes; and so do members that are not ours.
func TestBusyMembersKeepWhatTheyHave(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{Patience: 500 * time.Millisecond})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 3)...)
	if err := c.XGroupCreateMkStream(t.Context(), topic, "c", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: "c", Consumer: "somebody-else", Streams: []string{topic, ">"}, Count: 1,
	}).Err(); err != nil {
		t.Fatal(err)
	}
	_, busy := adaptertest.Subscribe(t, b, "c", topic, 10)
	var held []*message.Message
	take(t, busy, 2, func(m *message.Message) { held = append(held, m) })
	_, idle := adaptertest.Subscribe(t, b, "c", topic, 10)
	select {
	case m := <-idle:
		t.Errorf("message %s was taken from a member that lives", m.Payload)
	case m := <-busy:
		t.Errorf("message %s came again", m.Payload)
	case <-time.After(1500 * time.Millisecond): // three times the patience
	}
	for _, m := range held {
		if m.Context().Err() != nil {
			t.Errorf("the context of %s has ended", m.Payload)
		}
		m.Ack()
	}
}

// A process is stopped for longer than its patience, and another one has its entries. When it goes on, its handlers'
// contexts end, and what they still do with their messages changes nothing for the new owner.
func TestZombieLosesWhatOthersHaveTakenOver(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{Patience: 900 * time.Millisecond})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	_, zombie := adaptertest.Subscribe(t, b, "c", topic, 10)
	var held *message.Message
	take(t, zombie, 1, func(m *message.Message) { held = m })
	// As if the member had been silent: its key is gone, and somebody has claimed its entry.
	keys, err := c.Keys(t.Context(), "headrace:alive:{"+topic+"}:*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys of members: %v, %v; want one", keys, err)
	}
	ids, err := c.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), keys[0])
		p.XClaim(t.Context(), &redis.XClaimArgs{Stream: topic, Group: "c", Consumer: "heir", Messages: []string{ids[0].ID}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Context().Done():
	case <-time.After(wait):
		t.Fatal("the zombie's context goes on")
	}
	held.Nack()
	brokers.DeliveryOf(held.Context()).Release()
	pending, err := c.XPendingExt(t.Context(), &redis.XPendingExtArgs{Stream: topic, Group: "c", Start: "-", End: "+", Count: 10}).Result()
	if err != nil || len(pending) != 1 || pending[0].Consumer != "heir" {
		t.Errorf("pending: %+v, %v; want it with the heir", pending, err)
	}
}

func TestStableMemberHasItsEntriesAgainAtOnce(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{Member: "pod-0", Patience: time.Hour})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 4)...)
	if err := c.XGroupCreateMkStream(t.Context(), topic, "c", "0").Err(); err != nil {
		t.Fatal(err)
	}
	// The earlier run was killed: its key lives for another hour.
	if err := c.Set(t.Context(), fmt.Sprintf("headrace:alive:{%s}:%s:c:headrace.pod-0", topic, topic), 1, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: "c", Consumer: "headrace.pod-0", Streams: []string{topic, ">"}, Count: 2,
	}).Err(); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	if got, want := adaptertest.Ack(t, in, 4), []string{"0", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The number that tells the members of one broker apart counted all of its subscriptions. After a crash the same topics in
// another order, or after one more, had other names: what the dead ones held waited for the patience, and newer messages were read.
func TestStableMemberHasItsEntriesAgainInWhateverOrderItSubscribes(t *testing.T) {
	one, two := rand.Text(), rand.Text()
	publisher := open(t, redisstream.Config{})
	c := redis.NewClient(options(t))
	crashing := open(t, redisstream.Config{Client: c, Member: "a", Patience: time.Hour})
	_, first := adaptertest.Subscribe(t, crashing, "c", one, 10)
	adaptertest.Publish(t, publisher, two, adaptertest.Numbered("", 0, 3)...)
	_, second := adaptertest.Subscribe(t, crashing, "c", two, 10)
	adaptertest.Take(t, second, 3)
	if err := c.Close(); err != nil { // it can tell the server nothing any more
		t.Fatal(err)
	}
	for _, in := range []<-chan *message.Message{first, second} {
		for range in {
		}
	}
	adaptertest.Publish(t, publisher, two, adaptertest.Numbered("", 3, 2)...)
	b := open(t, redisstream.Config{Member: "a", Patience: time.Hour})
	_, in := adaptertest.Subscribe(t, b, "c", two, 10)
	adaptertest.Subscribe(t, b, "c", one, 10)
	if got, want := adaptertest.Ack(t, in, 5), adaptertest.Numbers(0, 5); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A Subscribe that failed, or had ended, kept its number: the next one had another name.
func TestNumbersOfMembersAreGivenBack(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{Member: "a"})
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sub.Subscribe(ended, topic); err == nil {
		t.Fatal("Subscribe with a context that has ended gave no error")
	}
	for range 2 {
		one, _ := adaptertest.Subscribe(t, b, "c", topic, 10)
		two, _ := adaptertest.Subscribe(t, b, "c", topic, 10)
		for _, name := range []string{"headrace.a", "headrace.a.2"} {
			key := fmt.Sprintf("headrace:alive:{%s}:%s:c:%s", topic, topic, name)
			if n, err := c.Exists(t.Context(), key).Result(); err != nil || n != 1 {
				t.Errorf("keys of member %s: %d, %v; want it alive", name, n, err)
			}
		}
		for _, sub := range []message.Subscriber{one, two} {
			if err := sub.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestClosedMembersLeaveTheGroup(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{ForgetAfter: time.Millisecond})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 2)...)
	sub, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	adaptertest.Ack(t, in, 1)
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	members := func() (names []string) {
		infos, err := c.XInfoConsumers(t.Context(), topic, "c").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			names = append(names, i.Name)
		}
		return names
	}
	if got, want := members(), []string{"headrace:released"}; !slices.Equal(got, want) {
		t.Errorf("members after Close: %v, want %v, which has what was given back", got, want)
	}
	// One that died, and has nothing, is forgotten by the others.
	if err := c.XGroupCreateConsumer(t.Context(), topic, "c", "headrace.orphan").Err(); err != nil {
		t.Fatal(err)
	}
	_, in = adaptertest.Subscribe(t, b, "c", topic, 10)
	adaptertest.Ack(t, in, 1)
	adaptertest.Eventually(t, func() (bool, string) {
		names := members()
		return !slices.Contains(names, "headrace.orphan"), fmt.Sprintf("members: %v, want no orphan", names)
	})
}

// MAXLEN drops whatever is oldest, read or not: a consumer that was slow lost messages. Trimming here stops at the first
// entry that some group has not read or not acked.
func TestTrimmingKeepsWhatSomeGroupNeeds(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{Retention: time.Nanosecond, TrimInterval: 20 * time.Millisecond})
	const n = 1000 // trimming is by nodes of 100 entries
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, n)...)
	if err := c.XGroupCreateMkStream(t.Context(), topic, "slow", "0").Err(); err != nil {
		t.Fatal(err)
	}
	length := func() int64 {
		l, err := c.XLen(t.Context(), topic).Result()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	adaptertest.Ack(t, in, n)
	// Some rounds of trimming pass: it is seen to have run by what another stream loses.
	other := rand.Text()
	adaptertest.Publish(t, b, other, adaptertest.Numbered("", 0, n)...)
	_, in = adaptertest.Subscribe(t, b, "c", other, 10)
	adaptertest.Ack(t, in, n)
	adaptertest.Eventually(t, func() (bool, string) {
		l, err := c.XLen(t.Context(), other).Result()
		if err != nil {
			t.Fatal(err)
		}
		return l <= 200, fmt.Sprintf("%d entries of a stream that all have acked, want it trimmed", l)
	})
	if got := length(); got != n {
		t.Errorf("%d entries, want all %d: the group slow has read none", got, n)
	}
	// The slow group reads all and acks all but the 500th.
	streams, err := c.XReadGroup(t.Context(), &redis.XReadGroupArgs{Group: "slow", Consumer: "x", Streams: []string{topic, ">"}, Count: n}).Result()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range streams[0].Messages {
		if i == 499 {
			continue
		}
		if err := c.XAck(t.Context(), topic, "slow", m.ID).Err(); err != nil {
			t.Fatal(err)
		}
	}
	adaptertest.Eventually(t, func() (bool, string) {
		l := length()
		return l < n && l >= 501, fmt.Sprintf("%d entries, want those from the 500th on, and at most a node more", l)
	})
	if kept, err := c.XRange(t.Context(), topic, streams[0].Messages[499].ID, streams[0].Messages[499].ID).Result(); err != nil || len(kept) != 1 {
		t.Errorf("the entry that is pending: %v, %v; want it kept", kept, err)
	}
}

// The stream is deleted under a running consumer (a flush, an operator): it is made again, and what comes arrives.
func TestDeletedStreamIsMadeAgain(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{})
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	adaptertest.Ack(t, in, 1)
	if err := c.Del(t.Context(), topic).Err(); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	if got := adaptertest.Ack(t, in, 1); got[0] != "0" {
		t.Errorf("got %v", got)
	}
}

// The stream is deleted while the whole window was nacked: nothing was read, which would have found out, and what could not come again
// kept its place for ever.
func TestDeletedStreamIsMadeAgainWhileAllIsNacked(t *testing.T) {
	topic, c := rand.Text(), client(t)
	b := open(t, redisstream.Config{})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	m := adaptertest.Next(t, in)
	if err := c.Del(t.Context(), topic).Err(); err != nil {
		t.Fatal(err)
	}
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 1, 1)...)
	m.Nack()
	if got := adaptertest.Ack(t, in, 1); got[0] != "1" {
		t.Errorf("got %q, want 1: 0 was deleted", got)
	}
}

// failing is a hook that fails commands of one name, so many times.
type failing struct {
	name string
	left atomic.Int32
}

func (f *failing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *failing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f *failing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == f.name && f.left.Add(-1) >= 0 {
			err := errors.New("no answer")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// A member was silent for longer than its patience, and could not be told at once what others had taken over meanwhile. It never asked again,
// and its handlers went on beside those of the new owner.
func TestZombieAsksAgainWhatOthersHaveTakenOver(t *testing.T) {
	topic, c, own := rand.Text(), client(t), client(t)
	f := &failing{name: "xpending"}
	own.AddHook(f)
	b := open(t, redisstream.Config{Client: own, Patience: 600 * time.Millisecond})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	held := adaptertest.Next(t, in)
	ids, err := c.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	f.left.Store(1)
	if _, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Del(t.Context(), fmt.Sprintf("headrace:alive:{%s}:%s:c:%s", topic, topic, member(t, c, topic)))
		p.XClaim(t.Context(), &redis.XClaimArgs{Stream: topic, Group: "c", Consumer: "heir", Messages: []string{ids[0].ID}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	adaptertest.Ends(t, held)
	if left := f.left.Load(); left >= 0 {
		t.Errorf("%d failures are left: no look has failed", left)
	}
}

// member is the name of the only member of the group c.
func member(t *testing.T, c *redis.Client, topic string) string {
	t.Helper()
	members, err := c.XInfoConsumers(t.Context(), topic, "c").Result()
	if err != nil || len(members) != 1 {
		t.Fatalf("members: %v, %v; want one", members, err)
	}
	return members[0].Name
}

func TestClientIsLeftOpen(t *testing.T) {
	c := client(t)
	b, err := redisstream.New(redisstream.Config{Client: c})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Errorf("Ping after the broker's Close: %v", err)
	}
}

// The application closes its client too early: the subscription cannot go on, and says so by its end.
func TestClosedClientEndsTheSubscription(t *testing.T) {
	c := redis.NewClient(options(t))
	b := open(t, redisstream.Config{Client: c})
	_, in := adaptertest.Subscribe(t, b, "c", rand.Text(), 10)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case _, more := <-in:
		if more {
			t.Error("a message came")
		}
	case <-time.After(wait):
		t.Error("the channel is open still")
	}
}

func TestOnProtocolTwo(t *testing.T) {
	o := options(t)
	o.Protocol = 2
	c := redis.NewClient(o)
	b := open(t, redisstream.Config{Client: c})
	topic := rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 3)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	if got, want := adaptertest.Ack(t, in, 3), []string{"0", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPublishOutlivesNoContext(t *testing.T) {
	b := open(t, redisstream.Config{})
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := message.NewMessageWithContext(ctx, "id", nil)
	if err := pub.Publish(rand.Text(), m); err == nil {
		t.Error("Publish with an ended context gave no error")
	}
}

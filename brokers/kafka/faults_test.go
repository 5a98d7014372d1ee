package kafka_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
)

// commits records every commit that reaches the cluster, in order.
type commits struct {
	mu  sync.Mutex
	all map[string][]int64 // by topic and partition
}

func watchCommits(c *kfake.Cluster) *commits {
	w := &commits{all: make(map[string][]int64)}
	c.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, t := range r.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range t.Partitions {
				id := fmt.Sprintf("%s%x/%d", t.Topic, t.TopicID, p.Partition)
				w.all[id] = append(w.all[id], p.Offset)
			}
		}
		return nil, nil, false
	})
	return w
}

// check fails if a commit went back.
func (w *commits) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		t.Error("there were no commits")
	}
	for id, offsets := range w.all {
		if !slices.IsSorted(offsets) {
			t.Errorf("commits of partition %s went back: %v", id, offsets)
		}
	}
}

// reader reads one subscription of the consumer "c".
type reader struct {
	t   *testing.T
	sub message.Subscriber
	in  <-chan *message.Message
}

func read(t *testing.T, b *kafka.Broker, topic string, window int) *reader {
	t.Helper()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: topic, Window: window})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return &reader{t, sub, in}
}

func (r *reader) next() *message.Message {
	r.t.Helper()
	select {
	case m, ok := <-r.in:
		if !ok {
			r.t.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(15 * time.Second):
		r.t.Fatal("no message in 15 s")
	}
	return nil
}

func (r *reader) take(n int) []*message.Message {
	r.t.Helper()
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = r.next()
	}
	return all
}

func (r *reader) quiet(for_ time.Duration) {
	r.t.Helper()
	select {
	case m := <-r.in:
		r.t.Fatalf("offset %d came, want nothing", at(m).Offset)
	case <-time.After(for_):
	}
}

func (r *reader) close() {
	r.t.Helper()
	if err := r.sub.Close(); err != nil {
		r.t.Errorf("Close: %v", err)
	}
}

func at(m *message.Message) *brokers.Delivery { return brokers.DeliveryOf(m.Context()) }

func offsets(messages []*message.Message) []int64 {
	all := make([]int64, len(messages))
	for i, m := range messages {
		all[i] = at(m).Offset
	}
	return all
}

// fill writes n records with their number as value into partition, in one batch.
func fill(t testing.TB, seeds []string, topic string, partition int32, n int, key func(i int) string) {
	t.Helper()
	fillBatches(t, seeds, topic, partition, 1, n, key)
}

func fillBatches(t testing.TB, seeds []string, topic string, partition int32, batches, n int, key func(i int) string) {
	t.Helper()
	cl := client(t, seeds, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	defer cl.Close()
	for range batches {
		records := make([]*kgo.Record, n)
		for i := range records {
			records[i] = &kgo.Record{Topic: topic, Partition: partition, Key: []byte(key(i)), Value: []byte(strconv.Itoa(i))}
		}
		if err := cl.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func quick(seeds []string) kafka.Config {
	return kafka.Config{
		Seeds: seeds, Options: fast(), CommitInterval: 5 * time.Millisecond,
		NackDelay: time.Millisecond, MaxNackDelay: 10 * time.Millisecond, RevokeWait: 5 * time.Second,
	}
}

func key(i int) string { return "key" + strconv.Itoa(i) }

// expel removes all members of the group "c": they find themselves unknown, lose everything and join again.
func expel(t *testing.T, seeds []string) {
	t.Helper()
	cl := client(t, seeds)
	defer cl.Close()
	groups, err := kadm.NewClient(cl).DescribeGroups(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group = "c"
	for _, m := range groups["c"].Members {
		one := kmsg.NewLeaveGroupRequestMember()
		one.MemberID = m.MemberID
		req.Members = append(req.Members, one)
	}
	if len(req.Members) == 0 {
		t.Fatal("the group has no members")
	}
	if _, err := req.RequestWith(t.Context(), cl); err != nil {
		t.Fatal(err)
	}
}

// A consumer polls ten records, hands out two, and loses the partition. A client that commits what it has seen commits 10, and the
// eight are lost.
func TestK1CommitIsNotWhatWasPolled(t *testing.T) {
	c, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	w := watchCommits(c)
	fill(t, seeds, "topic", 0, 10, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 2)
	held := r.take(2)
	held[0].Ack()
	r.next()
	eventually(t, "a commit of 1", 5*time.Second, func() bool { o, _ := offsetOf(t, seeds, "c", "topic", 0); return o == 1 })
	r.close()
	if o, _ := offsetOf(t, seeds, "c", "topic", 0); o != 1 {
		t.Errorf("committed offset is %d, want 1: only record 0 was acked", o)
	}
	r = read(t, b, "topic", 16)
	if got, want := offsets(r.take(9)), []int64{1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(got, want) {
		t.Errorf("the next owner got offsets %v, want %v", got, want)
	}
	w.check(t)
}

// The log ends at 5. The records from 1 on are not complete when a new owner comes; one of them completes. A tracker that counts the
// incomplete ones commits beyond the end, and the owner after that begins where its reset policy says.
func TestK2CommitIsAtMostCompletedPlusOne(t *testing.T) {
	c, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	w := watchCommits(c)
	fill(t, seeds, "topic", 0, 5, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 16)
	r.next().Ack()
	r.close()
	r = read(t, b, "topic", 16)
	m := r.next()
	m.Ack()
	eventually(t, "a commit of 2", 5*time.Second, func() bool { o, _ := offsetOf(t, seeds, "c", "topic", 0); return o == 2 })
	r.close()
	if o, _ := offsetOf(t, seeds, "c", "topic", 0); o != at(m).Offset+1 {
		t.Errorf("committed offset is %d, want %d", o, at(m).Offset+1)
	}
	w.check(t)
}

// A handler is slow with a record of key1 when its partition is lost; it does not look at its context. The partition comes back to the same
// process. Handing the record out again would run key1 twice at once.
func TestK3KeyWaitsForItsHandlerOfAnEarlierAssignment(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 3, func(i int) string { return key(min(i, 1)) }) // key0, key1, key1
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 16)
	held := r.take(3)
	expel(t, seeds)
	for _, m := range held {
		<-m.Context().Done()
		if cause := context.Cause(m.Context()); !errors.Is(cause, kafka.ErrLost) {
			t.Errorf("cause of the end of offset %d is %v, want ErrLost", at(m).Offset, cause)
		}
	}
	held[0].Ack() // too late to count
	if m := r.next(); at(m).Offset != 0 {
		t.Fatalf("offset %d came, want 0: the handlers of the others still run", at(m).Offset)
	} else {
		m.Ack()
	}
	held[1].Nack()
	r.quiet(50 * time.Millisecond)
	at(held[2]).Release()
	if got := offsets(r.take(2)); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("after the handlers have ended, offsets %v came, want 1 and 2", got)
	}
	for _, s := range b.Stats() {
		if s.Former != 0 {
			t.Errorf("Stats.Former is %d, want 0", s.Former)
		}
	}
}

// A member gives up one of two partitions and waits for its handler. One that stops polling meanwhile starves the partition that it
// keeps, and holds up the group.
func TestK4OtherPartitionsGoOnWhileOneDrains(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(2, "topic"))
	b := open(t, quick(seeds))
	for p := range int32(2) {
		fill(t, seeds, "topic", p, 1, key)
	}
	r := read(t, b, "topic", 16)
	held := r.take(2)
	other := read(t, b, "topic", 16)
	var given int32 = -1 // the partition that is given up: it is the one that gets nothing more
	for given < 0 {
		for p := range int32(2) {
			fill(t, seeds, "topic", p, 1, key)
		}
		got := map[int32]bool{}
		limit := time.After(300 * time.Millisecond)
		for more := true; more; {
			select {
			case m := <-r.in:
				got[at(m).Partition] = true
				m.Ack()
			case <-limit:
				more = false
			}
		}
		if len(got) == 1 {
			for p := range got {
				given = 1 - p
			}
		}
	}
	select {
	case m := <-other.in:
		t.Fatalf("partition %d offset %d came to the new member while its handler runs at the old one", at(m).Partition, at(m).Offset)
	default:
	}
	for _, m := range held {
		if err := m.Context().Err(); err != nil {
			t.Errorf("the context of partition %d ended while its handler may finish: %v", at(m).Partition, err)
		}
		m.Ack()
	}
	m := other.next()
	if d := at(m); d.Partition != given || d.Offset == 0 {
		t.Errorf("the new member got partition %d offset %d, want %d and not offset 0, which was acked in time", d.Partition, d.Offset, given)
	}
}

// A handler does not finish in the time that a revocation gives it. Its ack, later, is not counted; its context has ended with a cause that
// nobody takes for a failure.
func TestRevokedDeliveryIsDroppedAfterTheWait(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 1, key)
	config := quick(seeds)
	config.RevokeWait = 100 * time.Millisecond
	config.Options = append(config.Options, kgo.Balancers(kgo.RangeBalancer()))
	b := open(t, config)
	r := read(t, b, "topic", 16)
	m := r.next()
	other := read(t, b, "topic", 16)
	<-m.Context().Done()
	if cause := context.Cause(m.Context()); !errors.Is(cause, kafka.ErrRevoked) {
		t.Errorf("cause is %v, want ErrRevoked", cause)
	}
	m.Ack()
	var again *message.Message
	select {
	case again = <-r.in:
	case again = <-other.in:
	case <-time.After(10 * time.Second):
		t.Fatal("the record did not come again")
	}
	if at(again).Offset != 0 {
		t.Errorf("offset %d came, want 0", at(again).Offset)
	}
}

// A member stops while its group waits for another one that is dead and not yet known to be. Waiting with it for the session
// timeout holds up the deploy; leaving without a commit runs again what was acked during the rebalance.
func TestCloseDoesNotWaitForARebalance(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(2, "topic"))
	config := quick(seeds)
	config.CloseTimeout = 200 * time.Millisecond
	config.CommitInterval = time.Hour
	dead := newNetwork(t)
	b := open(t, config)
	config.Options = append(config.Options, kgo.Dialer(dead.dial))
	other := open(t, config)
	r := read(t, b, "topic", 4)
	read(t, other, "topic", 4)
	one := func(b *kafka.Broker) bool { return len(b.Stats()) == 1 }
	eventually(t, "each has a partition", 5*time.Second, func() bool { return one(b) && one(other) })
	mine := b.Stats()[0].Partition
	fill(t, seeds, "topic", mine, 2, key)
	r.next().Ack()
	dead.cut()
	third := read(t, open(t, quick(seeds)), "topic", 4)
	admin := kadm.NewClient(client(t, seeds))
	eventually(t, "a rebalance is under way", 5*time.Second, func() bool {
		groups, err := admin.DescribeGroups(t.Context(), "c")
		return err == nil && groups["c"].State == "PreparingRebalance"
	})
	late := r.next()
	r.quiet(300 * time.Millisecond) // several heartbeats: it has joined again, and waits
	late.Ack()
	begin := time.Now()
	r.close()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("Close took %v, want little more than CloseTimeout", took)
	}
	if o, _ := offsetOf(t, seeds, "c", "topic", mine); o != 2 {
		t.Errorf("committed offset is %d, want 2", o)
	}
	fill(t, seeds, "topic", mine, 1, key)
	for {
		if d := at(third.next()); d.Partition == mine {
			if d.Offset != 2 {
				t.Errorf("the next owner got offset %d, want 2", d.Offset)
			}
			break
		}
	}
}

// Acks come in any order while commits are sent all the time. Two commits at once can arrive in the wrong order, and then the older one
// counts.
func TestK5CommitsNeverGoBack(t *testing.T) {
	const n = 400
	c, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	w := watchCommits(c)
	fill(t, seeds, "topic", 0, n, key)
	config := quick(seeds)
	config.CommitInterval = time.Millisecond
	b := open(t, config)
	r := read(t, b, "topic", 64)
	var held []*message.Message
	for done := 0; done < n; {
		for len(held) < 64 && len(held)+done < n {
			held = append(held, r.next())
		}
		i := (done * 7) % len(held)
		held[i].Ack()
		held = slices.Delete(held, i, i+1)
		done++
	}
	r.close()
	w.check(t)
	if o, _ := offsetOf(t, seeds, "c", "topic", 0); o != n {
		t.Errorf("committed offset is %d, want %d", o, n)
	}
}

// 1 and 3 are done, 2 is not. Committing 4 loses 2.
func TestK6CommitStopsAtTheFirstGap(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 4, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 16)
	held := r.take(4)
	held[0].Ack()
	held[1].Ack()
	held[3].Ack()
	eventually(t, "a commit of 2 that knows of 3", 5*time.Second, func() bool {
		o, metadata := offsetOf(t, seeds, "c", "topic", 0)
		if o > 2 {
			t.Fatalf("committed offset is %d, want 2", o)
		}
		return o == 2 && metadata != ""
	})
	r.close()
	r = read(t, b, "topic", 16)
	if m := r.next(); at(m).Offset != 2 {
		t.Errorf("offset %d came, want 2", at(m).Offset)
	} else {
		m.Ack()
	}
	r.quiet(50 * time.Millisecond) // 3 is done: it does not run again
	r.close()
	if o, _ := offsetOf(t, seeds, "c", "topic", 0); o != 4 {
		t.Errorf("committed offset is %d, want 4", o)
	}
}

// A record is nacked and waits to come again, the ones after it are acked: the commit passes it, and after a restart nobody reads it.
func TestK6CommitStopsAtANackedRecord(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 3, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 16)
	held := r.take(3)
	held[0].Nack()
	held[1].Ack()
	held[2].Ack()
	again := r.next()
	if at(again).Offset != 0 {
		t.Fatalf("offset %d came again, want 0", at(again).Offset)
	}
	eventually(t, "a commit that knows of 1 and 2", 5*time.Second, func() bool {
		o, metadata := offsetOf(t, seeds, "c", "topic", 0)
		if o > 0 {
			t.Fatalf("committed offset is %d, want 0: record 0 is not done", o)
		}
		return metadata != ""
	})
	r.close()
	r = read(t, b, "topic", 16)
	if m := r.next(); at(m).Offset != 0 {
		t.Errorf("offset %d came, want 0", at(m).Offset)
	}
	r.close()
}

// A commit holds the offset of the last record instead of the next: at each restart that record runs again.
func TestK7CommitIsTheNextToRead(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 3, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", 16)
	for _, m := range r.take(3) {
		m.Ack()
	}
	r.close()
	if o, _ := offsetOf(t, seeds, "c", "topic", 0); o != 3 {
		t.Errorf("committed offset is %d, want 3", o)
	}
	read(t, b, "topic", 16).quiet(200 * time.Millisecond)
}

// An eager rebalance takes all partitions while hundreds of records are buffered. What is handed out from the buffer after that runs at the new
// owner as well, and its commits go back.
func TestK8EagerRebalancePurgesWhatIsBuffered(t *testing.T) {
	const partitions, each = 4, 200
	c, seeds := fake(t, kfake.SeedTopics(partitions, "topic"))
	w := watchCommits(c)
	for p := range int32(partitions) {
		fill(t, seeds, "topic", p, each, key)
	}
	config := quick(seeds)
	config.Options = append(config.Options, kgo.Balancers(kgo.RangeBalancer()))
	b := open(t, config)
	readers := []*reader{read(t, b, "topic", 4)}
	seen := make(map[string]int)
	for handled := range partitions * each {
		if handled == 50 || handled == 300 {
			readers = append(readers, read(t, b, "topic", 4))
		}
		var m *message.Message
		for m == nil {
			for _, r := range readers {
				select {
				case m = <-r.in:
				case <-time.After(time.Millisecond):
				}
				if m != nil {
					break
				}
			}
		}
		seen[fmt.Sprintf("%d/%d", at(m).Partition, at(m).Offset)]++
		m.Ack()
	}
	if len(seen) != partitions*each {
		t.Errorf("%d records were handled once, want %d", len(seen), partitions*each)
	}
	for _, r := range readers {
		r.close()
	}
	w.check(t)
}

// A record that an adapter cannot read ends the session of stock adapters, and the partition is stuck. Here nothing has to be read.
func TestK9AnyBytesArrive(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	records := []*kgo.Record{
		{Topic: "topic"},
		{Topic: "topic", Key: []byte{}, Value: []byte{}},
		{Topic: "topic", Key: all, Value: all, Headers: []kgo.RecordHeader{
			{Key: "a", Value: []byte("1")}, {Key: "\xff\x00", Value: all}, {Key: "a", Value: nil}, {Key: "", Value: []byte{}}, {Key: "a", Value: []byte("2")},
		}},
		{Topic: "topic", Key: []byte("tombstone")},
	}
	cl := client(t, seeds)
	for _, r := range records {
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	r := read(t, open(t, quick(seeds)), "topic", 1)
	for i, want := range records {
		m := r.next()
		d := at(m)
		if d.DecodeError != nil {
			t.Errorf("record %d: DecodeError is %v", i, d.DecodeError)
		}
		if (d.Key == nil) != (want.Key == nil) || !slices.Equal(d.Key, want.Key) {
			t.Errorf("record %d: key is %q, want %q (nil: %v)", i, d.Key, want.Key, want.Key == nil)
		}
		if (m.Payload == nil) != (want.Value == nil) || !slices.Equal(m.Payload, want.Value) {
			t.Errorf("record %d: payload is %q, want %q (nil: %v)", i, m.Payload, want.Value, want.Value == nil)
		}
		if len(want.Headers) > 0 {
			if m.Metadata["a"] != "2" {
				t.Errorf("record %d: metadata a is %q, want the last, 2", i, m.Metadata["a"])
			}
			for j, h := range d.Headers {
				if w := want.Headers[j]; h.Key != w.Key || !slices.Equal(h.Value, w.Value) || (h.Value == nil) != (w.Value == nil) {
					t.Errorf("record %d: header %d is %q=%q, want %q=%q", i, j, h.Key, h.Value, w.Key, w.Value)
				}
			}
			if len(d.Headers) != len(want.Headers) {
				t.Errorf("record %d: %d headers, want %d", i, len(d.Headers), len(want.Headers))
			}
		}
		m.Ack()
	}
}

// A consumer is deployed for the first time after its producer. "Newest", the default of many clients, loses what was published before.
func TestK10FirstStartIsAtTheEarliest(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 2, key)
	if m := read(t, open(t, quick(seeds)), "topic", 16).next(); at(m).Offset != 0 {
		t.Errorf("offset %d came first, want 0", at(m).Offset)
	}
	config := quick(seeds)
	config.StartAtEnd = true
	b := open(t, config)
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "at end"})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), "topic")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the partition is assigned and read", 5*time.Second, func() bool {
		s := b.Stats()
		return len(s) == 1 && s[0].End == 2
	})
	fill(t, seeds, "topic", 0, 1, key)
	if m := <-in; at(m).Offset != 2 {
		t.Errorf("with StartAtEnd, offset %d came first, want 2", at(m).Offset)
	}
}

// A topic is deleted and made again. Its partitions and offsets are those of the old one: an inbox that knows messages by these alone takes
// the new ones for duplicates.
func TestK11TopicMadeAnewHasAnotherIncarnation(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	admin := kadm.NewClient(client(t, seeds))
	seen := make(map[string]bool)
	for i := range 2 {
		fill(t, seeds, "topic", 0, 1, key)
		b := open(t, quick(seeds))
		sub, err := b.Subscriber(brokers.Subscription{Consumer: "c" + strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		in, err := sub.Subscribe(t.Context(), "topic")
		if err != nil {
			t.Fatal(err)
		}
		d := at(<-in)
		if d.Incarnation == "" || d.Offset != 0 {
			t.Errorf("incarnation is %q and offset %d, want one and 0", d.Incarnation, d.Offset)
		}
		seen[d.Incarnation] = true
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.DeleteTopic(t.Context(), "topic"); err != nil {
			t.Fatal(err)
		}
		makeTopic(t, seeds, "topic", 1)
	}
	if len(seen) != 2 {
		t.Errorf("incarnations are %v, want two", seen)
	}
}

// Two records of a partition fail at the same time. One of them was neither tried again nor dead-lettered, yet committed.
func TestR1RecordsThatFailTogetherBothComeAgain(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 3, key)
	r := read(t, open(t, quick(seeds)), "topic", 16)
	held := r.take(3)
	held[2].Ack()
	held[0].Nack()
	held[1].Nack()
	const times = 5
	count := make(map[int64]int)
	for range 2 * times {
		m := r.next()
		o := at(m).Offset
		if count[o]++; count[o] < times {
			m.Nack()
		} else {
			m.Ack()
		}
	}
	if count[0] != times || count[1] != times || len(count) != 2 {
		t.Errorf("offsets came again so often: %v, want 0 and 1 each %d times", count, times)
	}
	eventually(t, "a commit of 3", 5*time.Second, func() bool { o, _ := offsetOf(t, seeds, "c", "topic", 0); return o == 3 })
}

// A partition is paused since enough of it is buffered; it is taken away and comes back. A pause that outlives the assignment stops it
// for ever.
func TestR2PausedPartitionResumesWhenItComesBack(t *testing.T) {
	const n = 2000
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	config := quick(seeds)
	config.BufferRecords = 16
	config.Options = append(config.Options, kgo.FetchMaxPartitionBytes(256))
	fillBatches(t, seeds, "topic", 0, n/20, 20, key)
	b := open(t, config)
	r := read(t, b, "topic", 4)
	held := r.take(4)
	paused := func() bool { s := b.Stats(); return len(s) == 1 && s[0].Paused }
	eventually(t, "the partition is paused", 5*time.Second, paused)
	expel(t, seeds)
	<-held[0].Context().Done()
	for _, m := range held {
		m.Nack()
	}
	last := int64(-1)
	for range n {
		m := r.next()
		if o := at(m).Offset; o != last+1 {
			t.Fatalf("offset %d came after %d", o, last)
		}
		last++
		m.Ack()
	}
}

// A record is waiting to be tried again while the topic gains a partition. A poll that is only meant to stay in the group must not throw
// records away.
func TestR3NothingIsDroppedInBackoff(t *testing.T) {
	const n = 50
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	config := quick(seeds)
	config.NackDelay, config.MaxNackDelay = 300*time.Millisecond, 300*time.Millisecond
	config.Options = append(config.Options, kgo.MetadataMaxAge(100*time.Millisecond))
	fill(t, seeds, "topic", 0, n, key)
	b := open(t, config)
	r := read(t, b, "topic", 8)
	r.next().Nack()
	if _, err := kadm.NewClient(client(t, seeds)).CreatePartitions(t.Context(), 1, "topic"); err != nil {
		t.Fatal(err)
	}
	fill(t, seeds, "topic", 1, n, key)
	seen := make(map[string]bool)
	for len(seen) < 2*n {
		m := r.next()
		seen[fmt.Sprintf("%d/%d", at(m).Partition, at(m).Offset)] = true
		m.Ack()
	}
}

// All records fail for a long time. What is read ahead must have a bound that is no multiple of the time.
func TestR4WhatIsHeldIsBounded(t *testing.T) {
	const n, window, buffer, batch = 4000, 20, 50, 20
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fillBatches(t, seeds, "topic", 0, n/batch, batch, key)
	config := quick(seeds)
	config.BufferRecords = buffer
	config.NackDelay, config.MaxNackDelay = time.Millisecond, time.Millisecond
	config.Options = append(config.Options, kgo.FetchMaxPartitionBytes(1024))
	b := open(t, config)
	r := read(t, b, "topic", window)
	for range 20 * window {
		r.next().Nack()
		for _, s := range b.Stats() {
			if held := s.InFlight + s.Returned; held > window {
				t.Fatalf("%d deliveries are un-acked, want at most %d", held, window)
			}
			if most := buffer + 3*batch; s.Waiting > most {
				t.Fatalf("%d records wait, want at most %d", s.Waiting, most)
			}
		}
	}
	eventually(t, "the partition is paused", 5*time.Second, func() bool { return b.Stats()[0].Paused })
}

// One key has most of a topic and its handlers hang. A shared window fills with it, and healthy keys starve.
func TestL4HotKeyStallsItsOwnPartitionOnly(t *testing.T) {
	const partitions, each, window = 4, 300, 32
	_, seeds := fake(t, kfake.SeedTopics(partitions, "topic"))
	for p := range int32(partitions) {
		fill(t, seeds, "topic", p, each, func(i int) string {
			if p == 0 && i%10 > 0 {
				return "hot"
			}
			return key(i)
		})
	}
	config := quick(seeds)
	config.KeyBudget = 4
	config.BufferRecords = 100
	b := open(t, config)
	r := read(t, b, "topic", window)
	hot, healthy, beside := 0, 0, 0
	for healthy < (partitions-1)*each {
		m := r.next()
		switch d := at(m); {
		case string(d.Key) == "hot":
			hot++ // and never acked
		case d.Partition == 0:
			beside++
			m.Ack()
		default:
			healthy++
			m.Ack()
		}
	}
	if hot > 4 {
		t.Errorf("%d deliveries of the hot key were handed over, want at most its budget of 4", hot)
	}
	if beside < 5 {
		t.Errorf("%d records of other keys went past the hot one in its own partition, want at least 5", beside)
	}
	if s := b.Stats()[0]; s.HottestKey < 10 {
		t.Errorf("Stats.HottestKey is %d, want the skew to be seen", s.HottestKey)
	}
}

// A partition whose handlers all hang must leave the others their part of the window.
func TestL4StuckPartitionLeavesOthersTheirShare(t *testing.T) {
	const each, window = 100, 16
	_, seeds := fake(t, kfake.SeedTopics(2, "topic"))
	fill(t, seeds, "topic", 0, each, key)
	b := open(t, quick(seeds))
	r := read(t, b, "topic", window)
	held := 0
	for more := true; more; {
		select {
		case <-r.in:
			held++
		case <-time.After(300 * time.Millisecond):
			more = held == 0
		}
	}
	if want := window - window/4; held != want {
		t.Errorf("the stuck partition holds %d, want %d: all but what is kept for the other", held, want)
	}
	fill(t, seeds, "topic", 1, each, key)
	for range each {
		m := r.next()
		if at(m).Partition != 1 {
			t.Fatalf("a delivery of partition %d came", at(m).Partition)
		}
		m.Ack()
	}
}

func numbered(i int) *message.Message {
	m := message.NewMessage(strconv.Itoa(i), []byte(strconv.Itoa(i)))
	m.Metadata["ce_partitionkey"] = key(i)
	return m
}

func uniqueTopic(t *testing.T, seeds []string, partitions int32) string {
	t.Helper()
	topic := "topic." + rand.Text()
	makeTopic(t, seeds, topic, partitions)
	return topic
}

// refuseMetadata makes the cluster one with an offset.metadata.max.bytes of 0.
func refuseMetadata(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.OffsetCommitRequest)
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		refused := false
		for _, t := range req.Topics {
			rt := kmsg.NewOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetCommitResponseTopicPartition()
				rp.Partition = p.Partition
				if p.Metadata != nil && *p.Metadata != "" {
					rp.ErrorCode = kerr.OffsetMetadataTooLarge.Code
					refused = true
				}
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, refused
	})
}

// commitAs commits an offset of partition 0 for "c" as a program that is not ours does.
func commitAs(t *testing.T, seeds []string, topic string, offset int64, metadata string) {
	t.Helper()
	all := make(kadm.Offsets)
	all.Add(kadm.Offset{Topic: topic, At: offset, LeaderEpoch: -1, Metadata: metadata})
	if _, err := kadm.NewClient(client(t, seeds)).CommitOffsets(t.Context(), "c", all); err != nil {
		t.Fatal(err)
	}
}

func notifyTerm(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGTERM)
}

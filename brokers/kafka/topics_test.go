package kafka_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"

	"github.com/headrace-go/headrace/brokers"
)

// A token lives for minutes, a consumer for months: the hook is asked for one whenever a connection is made.
func TestOAuthBearerAsksForATokenAtEachConnection(t *testing.T) {
	c, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	var mu sync.Mutex
	var seen []string
	c.ControlKey(int16(kmsg.SASLHandshake), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.SASLHandshakeRequest)
		resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
		resp.SupportedMechanisms = []string{"OAUTHBEARER"}
		return resp, nil, true
	})
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.SASLAuthenticateRequest)
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, string(req.SASLAuthBytes))
		return req.ResponseKind(), nil, true
	})
	var asked atomic.Int64
	config := quick(seeds)
	config.SASL = []sasl.Mechanism{oauth.Oauth(func(context.Context) (oauth.Auth, error) {
		return oauth.Auth{Token: fmt.Sprint("token-", asked.Add(1))}, nil
	})}
	b := open(t, config)
	if err := publisher(t, b).Publish("topic", numbered(0)); err != nil {
		t.Fatal(err)
	}
	read(t, b, "topic", 1).next().Ack()
	mu.Lock()
	defer mu.Unlock()
	if len(seen) < 2 {
		t.Fatalf("the cluster saw %d authentications, want one for each connection", len(seen))
	}
	tokens := make(map[string]struct{})
	for _, s := range seen {
		_, token, _ := strings.Cut(s, "auth=Bearer ")
		token, _, _ = strings.Cut(token, "\x01")
		if !strings.HasPrefix(token, "token-") {
			t.Errorf("the cluster was given %q, want a token of the hook", s)
		}
		tokens[token] = struct{}{}
	}
	if len(tokens) != len(seen) {
		t.Errorf("%d connections got %d different tokens", len(seen), len(tokens))
	}
}

// Compaction has taken most records away, and all that is between two of the rest can be wider than the span. Commits go over the gaps, and
// nobody waits for what is gone.
func TestCompactedTopic(t *testing.T) {
	c, seeds := fake(t)
	compacted(t, seeds, c.Compact)
}

func TestCompactedTopicOnKafka(t *testing.T) { compacted(t, real(t), func() {}) }

func compacted(t *testing.T, seeds []string, compact func()) {
	const keys, rounds = 10, 30
	topic := "compacted." + strconv.FormatInt(time.Now().UnixNano(), 36)
	cl := client(t, seeds, kgo.ProducerLinger(0))
	defer cl.Close()
	configs := map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
		"min.compaction.lag.ms": "0", "max.compaction.lag.ms": "100", "delete.retention.ms": "60000",
	}
	values := make(map[string]*string)
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, values, topic); err != nil {
		t.Fatal(err)
	}
	produce := func(round int) {
		var records []*kgo.Record
		for k := range keys {
			records = append(records, &kgo.Record{Topic: topic, Key: []byte(key(k)), Value: []byte(strconv.Itoa(round))})
		}
		if err := cl.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	early := &kgo.Record{Topic: topic, Key: []byte("early")} // it stays where it is, and a gap comes behind it
	if err := cl.ProduceSync(t.Context(), early).FirstErr(); err != nil {
		t.Fatal(err)
	}
	left, end := 0, int64(1)
	eventually(t, "most records are compacted away", 60*time.Second, func() bool {
		for round := range rounds {
			produce(round)
			end += keys
		}
		tombstone := &kgo.Record{Topic: topic, Key: []byte("tombstone")}
		if err := cl.ProduceSync(context.Background(), tombstone).FirstErr(); err != nil {
			t.Fatal(err)
		}
		end++
		compact()
		left = len(recordsUntil(t, seeds, topic, end))
		return left < int(end)-2*keys
	})
	config := quick(seeds)
	config.MaxSpan = 4
	b := open(t, config)
	r := read(t, b, topic, 4)
	last, got := int64(-1), 0
	latest := make(map[string]string)
	for last < end-1 {
		m := r.next()
		d := at(m)
		if d.Offset <= last {
			t.Fatalf("offset %d came after %d", d.Offset, last)
		}
		if string(d.Key) == "tombstone" && m.Payload != nil {
			t.Errorf("the tombstone at %d has the payload %q, want nil", d.Offset, m.Payload)
		}
		last, latest[string(d.Key)] = d.Offset, string(m.Payload)
		got++
		m.Ack()
	}
	r.close()
	for k := range keys {
		if v := latest[key(k)]; v != strconv.Itoa(rounds-1) {
			t.Errorf("the last of %s is of round %q, want %d", key(k), v, rounds-1)
		}
	}
	if got >= int(end) {
		t.Errorf("%d records came, want fewer than the %d offsets", got, end)
	}
	if o, _ := offsetOf(t, seeds, "c", topic, 0); o != end {
		t.Errorf("committed offset is %d, want %d", o, end)
	}
}

// recordsUntil reads a partition without a group up to an offset.
func recordsUntil(t *testing.T, seeds []string, topic string, end int64) []*kgo.Record {
	t.Helper()
	cl := client(t, seeds, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	defer cl.Close()
	var all []*kgo.Record
	for len(all) == 0 || all[len(all)-1].Offset < end-1 {
		f := cl.PollFetches(t.Context())
		if err := f.Err(); err != nil {
			t.Fatal(err)
		}
		all = append(all, f.Records()...)
	}
	return all
}

// A topic gains partitions while it is read. What is published there before the consumer has seen them is not lost.
func TestNewPartitionsAreReadFromTheirStart(t *testing.T) {
	_, seeds := fake(t)
	newPartitions(t, seeds)
}

func TestNewPartitionsAreReadFromTheirStartOnKafka(t *testing.T) { newPartitions(t, real(t)) }

func newPartitions(t *testing.T, seeds []string) {
	topic := uniqueTopic(t, seeds, 1)
	config := quick(seeds)
	config.Options = append(config.Options, kgo.MetadataMaxAge(200*time.Millisecond))
	r := read(t, open(t, config), topic, 16)
	fill(t, seeds, topic, 0, 2, key)
	for _, m := range r.take(2) {
		m.Ack()
	}
	if _, err := kadm.NewClient(client(t, seeds)).UpdatePartitions(t.Context(), 3, topic); err != nil {
		t.Fatal(err)
	}
	for p := range int32(2) {
		fill(t, seeds, topic, p+1, 3, key)
	}
	got := make(map[int32][]int64)
	for range 6 {
		m := r.next()
		d := at(m)
		got[d.Partition] = append(got[d.Partition], d.Offset)
		m.Ack()
	}
	for p := range int32(2) {
		if !slices.Equal(got[p+1], []int64{0, 1, 2}) {
			t.Errorf("offsets of the new partition %d are %v, want 0 to 2", p+1, got[p+1])
		}
	}
}

// Handlers of one record take long, and are told of. The operator sees what is behind it.
func TestProgressTellsWhatIsBehindASlowHandler(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 6, func(i int) string { return key(i % 2) }) // key0 and key1 in turns
	config := quick(seeds)
	config.KeyBudget = 1
	config.NackDelay, config.MaxNackDelay = time.Hour, time.Hour
	b := open(t, config)
	if got := b.Progress("c", "topic"); len(got) != 0 {
		t.Errorf("before it is subscribed Progress is %+v, want none", got)
	}
	r := read(t, b, "topic", 16)
	before := time.Now()
	held := r.take(2)
	held[1].Nack()
	var p brokers.Progress
	eventually(t, "one delivery was given back and the rest waits behind both", 5*time.Second, func() bool {
		all := b.Progress("c", "topic")
		if len(all) == 1 {
			p = all[0]
		}
		return p.Returned == 1 && p.Blocked == 2
	})
	if p.Topic != "topic" || p.Partition != 0 || p.InFlight != 1 || p.Waiting != 4 || p.Blocked != 2 || p.Paused {
		t.Errorf("Progress is %+v, want 1 in flight, 4 waiting of 2 blocked keys", p)
	}
	if p.OldestSince.Before(before) || p.OldestSince.After(time.Now()) {
		t.Errorf("OldestSince is %v, want a moment ago", p.OldestSince)
	}
	if wait := time.Until(p.NextReturn); wait < time.Minute || wait > time.Hour {
		t.Errorf("NextReturn is in %v, want almost an hour", wait)
	}
	eventually(t, "the lag is known", 5*time.Second, func() bool { lag, known := b.Lag("c", "topic"); return known && lag == 6 })
	if p := b.Progress("c", "topic"); p[0].Lag != 6 {
		t.Errorf("Progress.Lag is %d, want 6", p[0].Lag)
	}
	if got := b.Progress("other", "topic"); len(got) != 0 {
		t.Errorf("Progress of another consumer is %+v, want none", got)
	}
	held[0].Ack()
	m := r.next()
	if at(m).Offset != 2 {
		t.Errorf("after the ack of offset 0, %d came, want 2: key0 goes on", at(m).Offset)
	}
}

// Records without a key, or with an empty one, come from producers that know of none. A lane for all of them with a key's budget stops
// its partition with a few slow handlers; nothing orders them but their partition.
func TestL1KeylessRecordsHaveNoBudgetOfAKey(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	cl := client(t, seeds)
	for i := range 20 {
		r := &kgo.Record{Topic: "topic", Value: binary.AppendVarint(nil, int64(i))}
		if i%2 == 1 {
			r.Key = []byte{}
		}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	config := quick(seeds)
	config.KeyBudget = 1
	r := read(t, open(t, config), "topic", 32)
	for i, o := range offsets(r.take(20)) {
		if o != int64(i) {
			t.Errorf("delivery %d has offset %d: the order of the partition is lost", i, o)
		}
	}
}

// Three topics have the same keys. A lane by the key alone lets a handler of one topic hold up the others, for ever if their messages
// wait for each other.
func TestL2TopicsThatShareKeysDoNotWaitForEachOther(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "shop.a", "shop.b", "shop.c"))
	for _, topic := range []string{"shop.a", "shop.b", "shop.c"} {
		fill(t, seeds, topic, 0, 2, func(int) string { return "same" })
	}
	config := quick(seeds)
	config.Regex, config.KeyBudget = true, 1
	r := read(t, open(t, config), `shop\..`, 16)
	first := make(map[string]bool)
	for _, m := range r.take(3) {
		if at(m).Offset != 0 || first[at(m).Topic] {
			t.Errorf("%s/%d came, want the first of each topic", at(m).Topic, at(m).Offset)
		}
		first[at(m).Topic] = true
		if at(m).Topic != "shop.a" {
			m.Ack()
		}
	}
	for _, m := range r.take(2) {
		if at(m).Topic == "shop.a" || at(m).Offset != 1 {
			t.Errorf("%s/%d came, want the second of the topics that were acked", at(m).Topic, at(m).Offset)
		}
		m.Ack()
	}
}

// Handlers do nothing, so that lanes become empty while records are added to them all the time. One that is taken away at that moment loses
// its order, or a record.
func TestL3NoOpHandlersUnderLoadKeepTheOrderOfKeys(t *testing.T) {
	const partitions, keys, each = 3, 50, 100
	_, seeds := fake(t)
	topic := "l3"
	publishKeys(t, seeds, topic, partitions, keys, each)
	h := newHistory()
	p := startProcess(t, 0, quick(seeds), "c", topic, 64, func(_ context.Context, process int, key string, seq int) error {
		h.start(process, key)
		defer h.end(process, key)
		h.effect(effect{key, seq, process})
		return nil
	})
	eventually(t, "all have an effect", 30*time.Second, func() bool { return h.distinct() == keys*each })
	p.stop(t)
	h.check(t, keys, each, 0)
	for part := range int32(partitions) {
		if o, metadata := offsetOf(t, seeds, "c", topic, part); metadata != "" {
			t.Errorf("partition %d is committed at %d with gaps %q, want none", part, o, metadata)
		}
	}
}

// The cluster does not answer while a subscription ends. Whoever closes it has only so much time: the runtime's intake gives up
// after its grace, and the process is killed with acks that nobody has stored.
func TestCloseIsBoundedWhenTheClusterDoesNotAnswer(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	fill(t, seeds, "topic", 0, 1, key)
	config := quick(seeds)
	config.CommitInterval, config.CommitTimeout = time.Hour, 50*time.Second
	config.CloseTimeout = 100 * time.Millisecond
	var silent atomic.Bool
	config.Options = append(config.Options, kgo.Dialer(func(ctx context.Context, network, host string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, host)
		return lossy{c, &silent}, err
	}))
	b := open(t, config)
	r := read(t, b, "topic", 4)
	r.next().Ack()
	silent.Store(true)
	closed := make(chan error, 1)
	go func() { closed <- r.sub.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("Close waits for CommitTimeout, want no longer than CloseTimeout and 2 s")
	}
}

// lossy loses what is written while silent is set.
type lossy struct {
	net.Conn
	silent *atomic.Bool
}

func (c lossy) Write(b []byte) (int, error) {
	if c.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// Package outboxsuite holds the tests that an outbox.Source and an outbox.Writer must pass, and an outbox
// in memory that passes them.
package outboxsuite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
)

// Subject is what is tested: the outbox of one database.
type Subject[Tx any] struct {
	Source interface {
		outbox.Source
		outbox.Graveyard
	}
	Writer outbox.Writer[Tx]
	// Begin starts a transaction. Its end is one call of commit or rollback.
	Begin func(ctx context.Context) (tx Tx, commit, rollback func() error, err error)
	// OneWriter says that a transaction that writes waits for the one before it.
	OneWriter bool
}

// limit bounds every wait of the suite.
const limit = 30 * time.Second

// clocks is how far the database's clock may be from ours.
const clocks = 20 * time.Millisecond

// Run runs the suite. open returns a subject with empty tables; it is called for each test.
func Run[Tx any](t *testing.T, open func(t *testing.T) Subject[Tx]) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Subject[Tx])
	}{
		{"RowsAreKeptByteForByte", testBytes[Tx]},
		{"RowsComeInOrderOfInsertion", testOrder[Tx]},
		{"RolledBackRowsAreNotSeen", testRollback[Tx]},
		{"FetchIsBoundedByRowsAndBytes", testBounds[Tx]},
		{"FetchTakesTheBucketsAskedFor", testBuckets[Tx]},
		{"FetchLeavesOutKeysAndIDs", testLeftOut[Tx]},
		{"O1LateCommitsAreFound", testLate[Tx]},
		{"O9ForeignTransactionStallsNothing", testForeign[Tx]},
		{"TopicsAreListedInOrderWithAges", testTopics[Tx]},
		{"LeasesAreSharedByLiveRelays", testShare[Tx]},
		{"LeasesOfADeadRelayAreTaken", testTakeover[Tx]},
		{"LeasesAreNeverHeldByTwo", testLeaseRace[Tx]},
		{"O7DeleteIsFenced", testDeleteFence[Tx]},
		{"O7BuryIsFenced", testBuryFence[Tx]},
		{"O6BuryMovesTheRow", testBury[Tx]},
		{"RevivedRowHasItsOldPlace", testRevive[Tx]},
		{"DelayedRowsWait", testDelayed[Tx]},
		{"DelayedByThemselvesRowsWait", testInsertDelayed[Tx]},
		{"PromoteMovesEachRowOnce", testPromoteRace[Tx]},
		{"RevivedRowThatBlocksNothingGoesLast", testReviveSkipped[Tx]},
		{"DeadRowsAreCountedByTopic", testDeadTopics[Tx]},
		{"PublisherWritesInTheTransaction", testPublisher[Tx]},
		{"RelayPublishesDelayedRowsInTheirTime", testDelayedRelay[Tx]},
		{"TwoRelaysPublishEachKeyInOrder", testTwoRelays[Tx]},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// add commits messages in one transaction.
func (s Subject[Tx]) add(t *testing.T, topic string, msgs ...*message.Message) {
	t.Helper()
	ctx := testContext(t)
	tx, commit, rollback, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Add(ctx, s.Writer, tx, topic, msgs...); err != nil {
		_ = rollback()
		t.Fatal(err)
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
}

func keyed(id, key string) *message.Message {
	msg := message.NewMessage(id, []byte("payload of "+id))
	if key != "" {
		msg.Metadata[event.MetaPartitionKey] = key
	}
	return msg
}

func allBuckets() []int {
	list := make([]int, outbox.Buckets)
	for b := range list {
		list[b] = b
	}
	return list
}

func (s Subject[Tx]) fetch(t *testing.T, topic string) []outbox.Row {
	t.Helper()
	page, err := s.Source.Fetch(testContext(t), outbox.Query{Topic: topic, Buckets: allBuckets(), Rows: 1000, Bytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

func (s Subject[Tx]) lease(t *testing.T, owner string, ttl time.Duration) outbox.Tenure {
	t.Helper()
	tenure, err := s.Source.Lease(testContext(t), owner, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

func uuids(rows []outbox.Row) []string {
	list := make([]string, len(rows))
	for i, r := range rows {
		list[i] = r.UUID
	}
	return list
}

func wantUUIDs(t *testing.T, what string, rows []outbox.Row, want ...string) {
	t.Helper()
	if got := uuids(rows); !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func testBytes[Tx any](t *testing.T, s Subject[Tx]) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	metadata := map[string]string{
		event.MetaPartitionKey: "clé \u2603 'quoted' \"x\" \\ ? $1", event.MetaCorrelationID: "c", "empty": "",
		"html": "<a&b>", "nul": "a\x00b", "line": "\u2028\r\n", "Case": "x", "case": "y",
	}
	for _, payload := range [][]byte{nil, {}, every, bytes.Repeat([]byte("large"), 100_000)} {
		topic := fmt.Sprintf("topic of %d ☃ bytes, nil %t", len(payload), payload == nil)
		msg := message.NewMessage("id-☃-?", payload)
		msg.Metadata = maps.Clone(metadata)
		before := time.Now().Add(-time.Minute)
		s.add(t, topic, msg)
		rows := s.fetch(t, topic)
		if len(rows) != 1 {
			t.Fatalf("payload of %d bytes: got %d rows, want 1", len(payload), len(rows))
		}
		r := rows[0]
		if r.Topic != topic || r.UUID != msg.UUID || r.Key != metadata[event.MetaPartitionKey] || r.Bucket != outbox.BucketOf(r.Key) {
			t.Errorf("got topic %q, UUID %q, key %q, bucket %d; want %q, %q, %q, %d", r.Topic, r.UUID, r.Key, r.Bucket,
				topic, msg.UUID, metadata[event.MetaPartitionKey], outbox.BucketOf(metadata[event.MetaPartitionKey]))
		}
		if !maps.Equal(r.Metadata, metadata) {
			t.Errorf("metadata: got %q, want %q", r.Metadata, metadata)
		}
		if !bytes.Equal(r.Payload, payload) || (r.Payload == nil) != (payload == nil) {
			t.Errorf("payload: got %d bytes, nil %t; want %d bytes, nil %t", len(r.Payload), r.Payload == nil, len(payload), payload == nil)
		}
		if r.CreatedAt.Before(before) || r.CreatedAt.After(time.Now().Add(time.Minute)) || !r.AvailableAt.IsZero() {
			t.Errorf("created at %v, available at %v; want now and the zero time", r.CreatedAt, r.AvailableAt)
		}
	}
}

func testOrder[Tx any](t *testing.T, s Subject[Tx]) {
	var want []string
	var msgs []*message.Message
	for i := range 1_203 {
		id := fmt.Sprintf("m%04d", i)
		want = append(want, id)
		msgs = append(msgs, keyed(id, fmt.Sprint("k", i%7)))
	}
	s.add(t, "orders", msgs[0])
	s.add(t, "orders", msgs[1:3]...)
	s.add(t, "orders", msgs[3:]...)
	// As a relay does: read a page, delete it, read the next.
	leases := s.lease(t, "a", time.Minute).Leases
	var got []string
	for more := true; more; {
		page, err := s.Source.Fetch(testContext(t), outbox.Query{Topic: "orders", Buckets: allBuckets(), Rows: 500, Bytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		more = page.More
		got = append(got, uuids(page.Rows)...)
		if lost, err := s.Source.Delete(testContext(t), "a", "orders", leases, ids(page.Rows)); err != nil || len(lost) > 0 {
			t.Fatalf("delete: lost %v, %v", lost, err)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d rows, want %d in order; first difference at %d", len(got), len(want), firstDifference(got, want))
	}
}

func firstDifference(a, b []string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func testRollback[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	tx, _, rollback, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Add(ctx, s.Writer, tx, "orders", keyed("gone", "k")); err != nil {
		t.Fatal(err)
	}
	if err := rollback(); err != nil {
		t.Fatal(err)
	}
	s.add(t, "orders", keyed("kept", "k"))
	wantUUIDs(t, "after a rollback", s.fetch(t, "orders"), "kept")
}

func testBounds[Tx any](t *testing.T, s Subject[Tx]) {
	for i := range 5 {
		msg := message.NewMessage(fmt.Sprint("m", i), make([]byte, 1000))
		s.add(t, "orders", msg)
	}
	for _, test := range []struct {
		rows, bytes int
		want        int
		more        bool
	}{
		{10, 1 << 30, 5, false},
		{4, 1 << 30, 4, true},
		{10, 1, 1, true},
		{10, 2500, 3, true},
	} {
		page, err := s.Source.Fetch(testContext(t), outbox.Query{Topic: "orders", Buckets: allBuckets(), Rows: test.rows, Bytes: test.bytes})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Rows) != test.want || page.More != test.more {
			t.Errorf("at most %d rows and %d bytes: got %d rows, more %t; want %d, %t", test.rows, test.bytes, len(page.Rows), page.More, test.want, test.more)
		}
	}
}

func testLeftOut[Tx any](t *testing.T, s Subject[Tx]) {
	s.add(t, "orders", keyed("1", "a ☃'"), keyed("2", ""), keyed("3", "b"), keyed("4", "a ☃'"), keyed("5", ""), keyed("6", "c"))
	rows := s.fetch(t, "orders")
	for _, test := range []struct {
		keys []string
		ids  []int64
		want []string
	}{
		{[]string{"a ☃'", "c", "none"}, nil, []string{"2", "3", "5"}},
		{nil, []int64{rows[1].ID, rows[2].ID}, []string{"1", "4", "5", "6"}},
		{[]string{"b"}, []int64{rows[1].ID}, []string{"1", "4", "5", "6"}},
	} {
		page, err := s.Source.Fetch(testContext(t), outbox.Query{Topic: "orders", Buckets: allBuckets(), NotKeys: test.keys, NotIDs: test.ids, Rows: 4, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		wantUUIDs(t, fmt.Sprintf("without keys %q and ids %v", test.keys, test.ids), page.Rows, test.want...)
	}
}

func testBuckets[Tx any](t *testing.T, s Subject[Tx]) {
	s.add(t, "orders", keyed("a", "key-a"), keyed("b", "key-b"), keyed("none", ""))
	s.add(t, "others", keyed("x", "key-a"))
	for key, want := range map[string]string{"key-a": "a", "key-b": "b", "none": "none"} {
		page, err := s.Source.Fetch(testContext(t), outbox.Query{Topic: "orders", Buckets: []int{outbox.BucketOf(key)}, Rows: 10, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		wantUUIDs(t, "bucket of "+key, page.Rows, want)
	}
	page, err := s.Source.Fetch(testContext(t), outbox.Query{Topic: "orders", Rows: 10, Bytes: 1 << 20})
	if err != nil || len(page.Rows) != 0 {
		t.Errorf("no buckets: got %q, %v; want nothing", uuids(page.Rows), err)
	}
}

// Two transactions insert; the one with the higher id commits first.
func testLate[Tx any](t *testing.T, s Subject[Tx]) {
	if s.OneWriter {
		t.Skip("transactions that write wait for each other: no commit is late")
	}
	ctx := testContext(t)
	tx, commit, _, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Add(ctx, s.Writer, tx, "orders", keyed("late", "a")); err != nil {
		t.Fatal(err)
	}
	s.add(t, "orders", keyed("early", "b"))
	rows := s.fetch(t, "orders")
	wantUUIDs(t, "before the late commit", rows, "early")
	if topics, err := s.Source.Topics(ctx, "", 10); err != nil || len(topics) != 1 {
		t.Errorf("topics before the late commit: got %v, %v; want orders", topics, err)
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	wantUUIDs(t, "after the late commit", s.fetch(t, "orders"), "late", "early")
}

// A transaction that has inserted, deletes nothing and stays open. Everything else goes on at once; what
// waits for a lock of it would take the database's lock timeout.
func testForeign[Tx any](t *testing.T, s Subject[Tx]) {
	if s.OneWriter {
		t.Skip("transactions that write wait for each other")
	}
	ctx := testContext(t)
	s.add(t, "orders", keyed("1", "a"), keyed("2", "b"))
	tx, _, rollback, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Add(ctx, s.Writer, tx, "orders", keyed("foreign", "f")); err != nil {
		t.Fatal(err)
	}
	if err := outbox.AddAt(ctx, s.Writer, tx, time.Now().Add(-time.Second), "orders", keyed("foreign, delayed", "f")); err != nil {
		t.Fatal(err)
	}
	s.add(t, "orders", keyed("3", "a"))
	began := time.Now()
	leases := s.lease(t, "a", time.Minute).Leases
	if topics, err := s.Source.Topics(ctx, "", 10); err != nil || len(topics) != 1 {
		t.Errorf("topics: got %v, %v; want orders", topics, err)
	}
	rows := s.fetch(t, "orders")
	wantUUIDs(t, "beside the foreign transaction", rows, "1", "2", "3")
	if n, err := s.Source.Promote(ctx, 10); err != nil || n != 0 {
		t.Errorf("promote: got %d, %v; want 0", n, err)
	}
	if held, err := s.Source.Bury(ctx, "a", leases[rows[1].Bucket], outbox.Burial{Topic: "orders", ID: rows[1].ID}); err != nil || !held {
		t.Errorf("bury: got %t, %v; want true", held, err)
	}
	if lost, err := s.Source.Delete(ctx, "a", "orders", leases, ids(rows)); err != nil || len(lost) > 0 {
		t.Errorf("delete: got lost %v, %v; want none", lost, err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("beside the foreign transaction all took %v, want no waiting", took)
	}
	if err := rollback(); err != nil {
		t.Fatal(err)
	}
	wantUUIDs(t, "at the end", s.fetch(t, "orders"))
}

func testTopics[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	if got, err := s.Source.Topics(ctx, "", 10); err != nil || len(got) != 0 {
		t.Errorf("empty outbox: got %v, %v; want no topics", got, err)
	}
	names := []string{"B", "a", "a ", "a.b", "b", "ä"}
	for _, n := range names {
		s.add(t, n, keyed("1", ""), keyed("2", ""))
	}
	var got []string
	for after := ""; ; {
		list, err := s.Source.Topics(ctx, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range list {
			got = append(got, topic.Name)
			after = topic.Name
			if topic.Age < 0 || topic.Age > time.Minute {
				t.Errorf("topic %q: age %v, want a moment", topic.Name, topic.Age)
			}
		}
		if len(list) < 2 {
			break
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("topics: got %q, want %q", got, names)
	}
}

func bucketsOf(t outbox.Tenure) []int {
	var list []int
	for _, l := range t.Leases {
		list = append(list, l.Bucket)
	}
	return list
}

func testShare[Tx any](t *testing.T, s Subject[Tx]) {
	a := s.lease(t, "a", time.Minute)
	if len(a.Leases) != outbox.Buckets || a.Relays != 1 {
		t.Fatalf("alone: got %d buckets and %d relays, want all and 1", len(a.Leases), a.Relays)
	}
	if b := s.lease(t, "b", time.Minute); len(b.Leases) != 0 || b.Relays != 2 {
		t.Errorf("none is free: got %d buckets and %d relays, want 0 and 2", len(b.Leases), b.Relays)
	}
	if again := s.lease(t, "a", time.Minute); !slices.Equal(again.Leases, a.Leases) {
		t.Errorf("prolonged: got %v, want the same leases %v", again.Leases, a.Leases)
	}
	if err := s.Source.Release(testContext(t), "a", a.Leases[40:]); err != nil {
		t.Fatal(err)
	}
	b := s.lease(t, "b", time.Minute)
	if got, want := bucketsOf(b), bucketsOf(outbox.Tenure{Leases: a.Leases[40:]}); !slices.Equal(got, want) {
		t.Errorf("after a release: got %v, want %v", got, want)
	}
	for i, l := range b.Leases {
		if old := a.Leases[40+i]; l.Epoch <= old.Epoch {
			t.Errorf("bucket %d: epoch %d after %d, want more", l.Bucket, l.Epoch, old.Epoch)
		}
	}
	// A stale release frees nothing.
	if err := s.Source.Release(testContext(t), "a", a.Leases[40:]); err != nil {
		t.Fatal(err)
	}
	if again := s.lease(t, "b", time.Minute); !slices.Equal(again.Leases, b.Leases) {
		t.Errorf("after a stale release: got %v, want %v", again.Leases, b.Leases)
	}
	if err := s.Source.Leave(testContext(t), "a"); err != nil {
		t.Fatal(err)
	}
	if b := s.lease(t, "b", time.Minute); len(b.Leases) != outbox.Buckets || b.Relays != 1 {
		t.Errorf("after the other left: got %d buckets and %d relays, want all and 1", len(b.Leases), b.Relays)
	}
}

// until repeats f until it says true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx := testContext(t)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !f() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

func testTakeover[Tx any](t *testing.T, s Subject[Tx]) {
	const ttl, generous = 300 * time.Millisecond, 10 * time.Second // on a busy machine
	began := time.Now()
	a := s.lease(t, "a", ttl)
	var b outbox.Tenure
	until(t, "the dead relay's buckets are taken", func() bool {
		b = s.lease(t, "b", time.Minute)
		return len(b.Leases) == outbox.Buckets
	})
	if took := time.Since(began); took < ttl-clocks || took > generous {
		t.Errorf("leases of %v were taken after %v; want it when they have run out", ttl, took)
	}
	if b.Relays != 1 {
		t.Errorf("relays: got %d, want 1", b.Relays)
	}
	for i := range b.Leases {
		if b.Leases[i].Epoch <= a.Leases[i].Epoch {
			t.Errorf("bucket %d: epoch %d after %d, want more", b.Leases[i].Bucket, b.Leases[i].Epoch, a.Leases[i].Epoch)
		}
	}
	if back := s.lease(t, "a", time.Minute); len(back.Leases) != 0 {
		t.Errorf("a lease that ran out was prolonged: %v", back.Leases)
	}
}

func testLeaseRace[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	// All are known before any takes: each may have a quarter.
	owners := []string{"a", "b", "c", "d"}
	for _, o := range owners {
		tenure := s.lease(t, o, time.Minute)
		if err := s.Source.Release(ctx, o, tenure.Leases); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	tenures := make([]outbox.Tenure, len(owners))
	errs := make([]error, len(owners))
	for i, o := range owners {
		wg.Go(func() {
			for range 5 {
				tenures[i], errs[i] = s.Source.Lease(ctx, o, time.Minute)
				if errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	holder := map[int]string{}
	for i, o := range owners {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if n := len(tenures[i].Leases); n > outbox.Share(len(owners)) {
			t.Errorf("%s has %d buckets, want at most %d", o, n, outbox.Share(len(owners)))
		}
		for _, l := range tenures[i].Leases {
			if other := holder[l.Bucket]; other != "" {
				t.Errorf("bucket %d: both %s and %s have it", l.Bucket, other, o)
			}
			holder[l.Bucket] = o
		}
	}
}

func ids(rows []outbox.Row) []int64 {
	list := make([]int64, len(rows))
	for i, r := range rows {
		list[i] = r.ID
	}
	return list
}

// A relay's leases run out in mid-publish, another takes them, and the first one confirms its rows.
func testDeleteFence[Tx any](t *testing.T, s Subject[Tx]) {
	s.add(t, "orders", keyed("1", "k"), keyed("2", "l"), keyed("3", "m"))
	rows := s.fetch(t, "orders")
	ctx := testContext(t)
	a := s.lease(t, "a", time.Minute)
	k := a.Leases[outbox.BucketOf("k")]
	if err := s.Source.Release(ctx, "a", []outbox.Lease{k}); err != nil {
		t.Fatal(err)
	}
	lost, err := s.Source.Delete(ctx, "a", "orders", a.Leases, ids(rows[:2]))
	if err != nil || !slices.Equal(lost, []outbox.Lease{k}) {
		t.Errorf("delete with a lost lease: got lost %v, %v; want %v", lost, err, k)
	}
	wantUUIDs(t, "rows after it", s.fetch(t, "orders"), "1", "3")
	stale := k
	now := s.lease(t, "a", time.Minute) // the same owner, a later lease
	if lost, err := s.Source.Delete(ctx, "a", "orders", []outbox.Lease{stale}, ids(rows)); err != nil || len(lost) != 1 {
		t.Errorf("delete under an old epoch: got lost %v, %v; want the lease", lost, err)
	}
	if lost, err := s.Source.Delete(ctx, "b", "orders", now.Leases, ids(rows)); err != nil || len(lost) != len(now.Leases) {
		t.Errorf("delete by another owner: got %d lost, %v; want %d", len(lost), err, len(now.Leases))
	}
	wantUUIDs(t, "rows after both", s.fetch(t, "orders"), "1", "3")
	if lost, err := s.Source.Delete(ctx, "a", "orders", now.Leases, ids(rows)); err != nil || len(lost) != 0 {
		t.Errorf("delete, one row of three is gone: got lost %v, %v; want none", lost, err)
	}
	wantUUIDs(t, "rows at the end", s.fetch(t, "orders"))
}

func testBuryFence[Tx any](t *testing.T, s Subject[Tx]) {
	s.add(t, "orders", keyed("1", "k"))
	row := s.fetch(t, "orders")[0]
	lease := s.lease(t, "a", time.Minute).Leases[row.Bucket]
	for _, test := range []struct {
		owner string
		lease outbox.Lease
	}{{"b", lease}, {"a", outbox.Lease{Bucket: lease.Bucket, Epoch: lease.Epoch - 1}}} {
		held, err := s.Source.Bury(testContext(t), test.owner, test.lease, outbox.Burial{Topic: "orders", ID: row.ID})
		if err != nil || held {
			t.Errorf("bury as %s under %v: got %t, %v; want false", test.owner, test.lease, held, err)
		}
	}
	wantUUIDs(t, "rows", s.fetch(t, "orders"), "1")
	if dead, err := s.Source.Dead(testContext(t), 0, 10); err != nil || len(dead) != 0 {
		t.Errorf("dead rows: got %v, %v; want none", dead, err)
	}
}

func testBury[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	s.add(t, "orders", keyed("1", "k"), keyed("2", "k"), keyed("3", "l"), keyed("4", "m"))
	rows := s.fetch(t, "orders")
	leases := s.lease(t, "a", time.Minute).Leases
	for i, b := range []outbox.Burial{
		{Topic: "orders", ID: rows[0].ID, ErrorType: "too_large", Error: "message is too large ☃", Block: true},
		{Topic: "orders", ID: rows[2].ID, ErrorType: "x", Error: "y"},
		{Topic: "orders", ID: rows[2].ID, ErrorType: "again", Error: "the answer was lost"},
	} {
		if held, err := s.Source.Bury(ctx, "a", leases[rows[min(2*i, 2)].Bucket], b); err != nil || !held {
			t.Fatalf("bury %+v: got %t, %v; want true", b, held, err)
		}
	}
	wantUUIDs(t, "rows left, without those of the blocked key", s.fetch(t, "orders"), "4")
	dead, err := s.Source.Dead(ctx, 0, 10)
	if err != nil || len(dead) != 2 {
		t.Fatalf("dead rows: got %v, %v; want 2", dead, err)
	}
	d := dead[0]
	if d.UUID != "1" || d.Topic != "orders" || d.Key != "k" || d.Bucket != outbox.BucketOf("k") || string(d.Payload) != "payload of 1" ||
		d.Metadata[event.MetaPartitionKey] != "k" || d.ErrorType != "too_large" || d.Error != "message is too large ☃" || !d.Blocks ||
		d.CreatedAt != rows[0].CreatedAt || d.DiedAt.Before(d.CreatedAt.Add(-time.Second)) {
		t.Errorf("dead row: got %+v", d)
	}
	if dead[1].Blocks || dead[1].Error != "y" {
		t.Errorf("second dead row: got %+v, want the first burial, not blocking", dead[1])
	}
	s.add(t, "others", keyed("5", "k"))
	wantUUIDs(t, "the same key of another topic", s.fetch(t, "others"), "5")
	if b, err := s.Source.Backlog(ctx, 100); err != nil || b != (outbox.Backlog{Rows: 3, Dead: 2}) {
		t.Errorf("backlog: got %+v, %v; want 3 rows and 2 dead", b, err)
	}
	if b, err := s.Source.Backlog(ctx, 1); err != nil || b != (outbox.Backlog{Rows: 1, Dead: 1}) {
		t.Errorf("backlog up to 1: got %+v, %v; want 1 and 1", b, err)
	}
}

func testRevive[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	s.add(t, "orders", keyed("1", "k"), keyed("2", "k"), keyed("3", "l"))
	rows := s.fetch(t, "orders")
	leases := s.lease(t, "a", time.Minute).Leases
	for _, i := range []int{0, 2} {
		if held, err := s.Source.Bury(ctx, "a", leases[rows[i].Bucket], outbox.Burial{Topic: "orders", ID: rows[i].ID, Block: true}); err != nil || !held {
			t.Fatal(held, err)
		}
	}
	for _, want := range []bool{true, false} {
		if ok, err := s.Source.Revive(ctx, rows[0].ID); err != nil || ok != want {
			t.Errorf("revive: got %t, %v; want %t", ok, err, want)
		}
		if ok, err := s.Source.Discard(ctx, rows[2].ID); err != nil || ok != want {
			t.Errorf("discard: got %t, %v; want %t", ok, err, want)
		}
	}
	again := s.fetch(t, "orders")
	wantUUIDs(t, "rows", again, "1", "2")
	if again[0].ID != rows[0].ID || again[0].CreatedAt != rows[0].CreatedAt || !maps.Equal(again[0].Metadata, rows[0].Metadata) {
		t.Errorf("revived: got %+v, want %+v", again[0], rows[0])
	}
	s.add(t, "orders", keyed("4", "k"))
	wantUUIDs(t, "rows", s.fetch(t, "orders"), "1", "2", "4")
}

func testDelayed[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	addAt := func(at time.Time, msgs ...*message.Message) {
		tx, commit, _, err := s.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := outbox.AddAt(ctx, s.Writer, tx, at, "orders", msgs...); err != nil {
			t.Fatal(err)
		}
		if err := commit(); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	addAt(now.Add(time.Hour), keyed("in an hour", "k"))
	addAt(now.Add(-time.Second), keyed("second", "k"))
	addAt(now.Add(-time.Minute), keyed("first", "k"), message.NewMessage("nil", nil))
	wantUUIDs(t, "before promotion", s.fetch(t, "orders"))
	if b, err := s.Source.Backlog(ctx, 100); err != nil || b != (outbox.Backlog{Delayed: 4}) {
		t.Errorf("backlog: got %+v, %v; want 4 delayed", b, err)
	}
	for _, want := range []int{2, 1, 0} {
		if n, err := s.Source.Promote(ctx, 2); err != nil || n != want {
			t.Errorf("promote at most 2: got %d, %v; want %d", n, err, want)
		}
	}
	rows := s.fetch(t, "orders")
	wantUUIDs(t, "after promotion", rows, "first", "nil", "second")
	if r := rows[1]; r.Payload != nil {
		t.Errorf("payload: got %q, want nil", r.Payload)
	}
	if r := rows[0]; r.Key != "k" || r.Bucket != outbox.BucketOf("k") || string(r.Payload) != "payload of first" {
		t.Errorf("promoted: got %+v", r)
	}
}

// A message that is to be handled again later has no transaction to go with.
func testInsertDelayed[Tx any](t *testing.T, s Subject[Tx]) {
	to, ok := s.Source.(outbox.Delayer)
	if !ok {
		t.Fatalf("%T is no outbox.Delayer", s.Source)
	}
	ctx := testContext(t)
	now := keyed("now", "k ☃")
	now.Metadata["a"] = "b"
	const soon = 200 * time.Millisecond
	due := time.Now().Add(soon)
	for d, msg := range map[time.Duration]*message.Message{time.Hour: keyed("in an hour", "k"), soon: now, 2 * time.Minute: message.NewMessage("nil", nil)} {
		if err := outbox.Delay(ctx, to, d, "orders", msg); err != nil {
			t.Fatal(err)
		}
	}
	wantUUIDs(t, "before promotion", s.fetch(t, "orders"))
	if b, err := s.Source.Backlog(ctx, 100); err != nil || b != (outbox.Backlog{Delayed: 3}) {
		t.Errorf("backlog: got %+v, %v; want 3 delayed", b, err)
	}
	until(t, "the first is due", func() bool {
		_, err := s.Source.Promote(ctx, 10)
		return err == nil && len(s.fetch(t, "orders")) > 0
	})
	rows := s.fetch(t, "orders")
	wantUUIDs(t, "after promotion", rows, "now")
	if r := rows[0]; r.Key != "k ☃" || r.Bucket != outbox.BucketOf("k ☃") || string(r.Payload) != "payload of now" || !maps.Equal(r.Metadata, now.Metadata) {
		t.Errorf("promoted: got %+v", r)
	}
	if got := rows[0].CreatedAt; got.Before(due.Add(-clocks)) || got.After(time.Now().Add(clocks)) {
		t.Errorf("created %v before it was due; want the time from which it waits for the relay", due.Sub(got))
	}
	if err := outbox.Delay(ctx, to, -1, "orders", now); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("a delay below zero: %v, want ErrInvalid", err)
	}
	if err := outbox.Delay(ctx, to, 1, "orders", keyed("", "k")); !errors.Is(err, outbox.ErrInvalid) {
		t.Errorf("a message without UUID: %v, want ErrInvalid", err)
	}
}

func testPromoteRace[Tx any](t *testing.T, s Subject[Tx]) {
	ctx := testContext(t)
	tx, commit, _, err := s.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const n = 200
	for i := range n {
		if err := outbox.AddAt(ctx, s.Writer, tx, time.Now().Add(-time.Second), "orders", keyed(fmt.Sprint(i), "")); err != nil {
			t.Fatal(err)
		}
	}
	if err := commit(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total int
	var errs []error
	for range 4 {
		wg.Go(func() {
			for range n {
				m, err := s.Source.Promote(ctx, 10)
				mu.Lock()
				total += m
				if err != nil {
					errs = append(errs, err)
				}
				done := total >= n || len(errs) > 0
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	got := uuids(s.fetch(t, "orders"))
	slices.Sort(got)
	if distinct := slices.Compact(slices.Clone(got)); len(got) != n || len(distinct) != n || total != n {
		t.Errorf("promoted %d: got %d rows, %d distinct; want %d", total, len(got), len(distinct), n)
	}
}

// sink records what is published, and fails now and then without a trace or after it.
type sink struct {
	mu    sync.Mutex
	calls int
	first map[string][]string // key -> ids in the order of first publication
	seen  map[string]int
}

func (p *sink) Publish(topic string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.calls%7 == 0 {
		return errors.New("the broker is away")
	}
	for i, msg := range msgs {
		if p.calls%5 == 0 && i == len(msgs)/2 {
			return errors.New("the broker went away in mid-batch")
		}
		if p.seen[msg.UUID]++; p.seen[msg.UUID] == 1 {
			key := topic + " " + msg.Metadata[event.MetaPartitionKey]
			p.first[key] = append(p.first[key], msg.UUID)
		}
	}
	if p.calls%5 == 0 {
		return errors.New("the confirmation was lost")
	}
	return nil
}

func (p *sink) Close() error { return nil }

// Writers of several keys, two relays, one of which stops and one that joins: every row is published,
// the first publications of a key in the order of its commits, and nothing is left.
func testTwoRelays[Tx any](t *testing.T, s Subject[Tx]) {
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	p := &sink{first: map[string][]string{}, seen: map[string]int{}}
	var relays sync.WaitGroup
	start := func(ctx context.Context, owner string) *outbox.Relay {
		r, err := outbox.NewRelay(s.Source, p, outbox.RelayConfig{
			Owner: owner, Batch: 7, Page: 40, BackoffMin: time.Millisecond, BackoffMax: 20 * time.Millisecond,
			LeaseTTL: 400 * time.Millisecond, PublishTimeout: 100 * time.Millisecond, DatabaseTimeout: 300 * time.Millisecond,
			PollMin: time.Millisecond, PollMax: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		relays.Go(func() {
			if err := r.Run(ctx); err != nil {
				t.Errorf("relay %s: %v", owner, err)
			}
		})
		return r
	}
	ctxA, stopA := context.WithCancel(ctx)
	defer stopA()
	start(ctxA, "a")
	b := start(ctx, "b")

	const keys, perKey = 12, 40
	var writers sync.WaitGroup
	for k := range keys {
		writers.Go(func() {
			key, topic := fmt.Sprint("k", k), fmt.Sprint("t", k%3)
			for i := range perKey {
				tx, commit, rollback, err := s.Begin(ctx)
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				msg := keyed(fmt.Sprintf("%s-%03d", key, i), key)
				if err := outbox.Add(ctx, s.Writer, tx, topic, msg); err != nil {
					t.Errorf("add: %v", errors.Join(err, rollback()))
					return
				}
				if err := commit(); err != nil {
					t.Errorf("commit: %v", err)
					return
				}
				if i == perKey/3 && k == 0 {
					start(ctx, "c")
				}
				if i == perKey/2 && k == 0 {
					stopA()
				}
			}
		})
	}
	writers.Wait()
	b.Wake()
	until(t, "the outbox is empty", func() bool {
		left, err := s.Source.Backlog(ctx, 1000)
		return err == nil && left.Rows == 0
	})
	cancel()
	relays.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for k := range keys {
		key := fmt.Sprintf("t%d k%d", k%3, k)
		got := p.first[key]
		if len(got) != perKey || !slices.IsSorted(got) {
			t.Errorf("key %q: %d first publications of %d, in order %t: %s", key, len(got), perKey, slices.IsSorted(got), strings.Join(got, " "))
		}
	}
}

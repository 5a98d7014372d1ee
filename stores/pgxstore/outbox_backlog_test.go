package pgxstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// deskOf is a relay's half of an outbox, under all leases.
type deskOf struct {
	*testing.T
	ctx    context.Context
	src    outbox.Source
	leases []outbox.Lease
}

func newDesk(ctx context.Context, t *testing.T, store *pgxstore.Store) *deskOf {
	t.Helper()
	src := store.Outbox()
	tenure, err := src.Lease(ctx, "a", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return &deskOf{t, ctx, src, tenure.Leases}
}

func (d *deskOf) fetch(topic string, rows int, inFlight ...int64) []int64 {
	d.Helper()
	q := outbox.Query{Topic: topic, NotIDs: inFlight, Rows: rows, Bytes: 1 << 30}
	for b := range outbox.Buckets {
		q.Buckets = append(q.Buckets, b)
	}
	page, err := d.src.Fetch(d.ctx, q)
	if err != nil {
		d.Fatal(err)
	}
	var ids []int64
	for _, r := range page.Rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func (d *deskOf) delete(topic string, ids []int64) {
	d.Helper()
	if lost, err := d.src.Delete(d.ctx, "a", topic, d.leases, ids); err != nil || len(lost) > 0 {
		d.Fatal(lost, err)
	}
}

func (d *deskOf) wantRows(when string, want int) {
	d.Helper()
	if b, err := d.src.Backlog(d.ctx, 100_000); err != nil || b.Rows != want {
		d.Errorf("%s: %d rows, %v; want %d", when, b.Rows, err, want)
	}
}

// A relay begins behind a key that is blocked, and reads nothing of its topic. When it had read of another one, it counted that alone.
func TestBacklogCountsTopicsThatNothingIsReadOf(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	commitRows(ctx, t, store, "blocked", "k", 0, 10)
	before := newDesk(ctx, t, store)
	first := before.fetch("blocked", 1)[0]
	if held, err := before.src.Bury(ctx, "a", before.leases[outbox.BucketOf("k")], outbox.Burial{Topic: "blocked", ID: first, Block: true}); err != nil || !held {
		t.Fatal(held, err)
	}
	relay := newDesk(ctx, t, store)
	relay.wantRows("behind the blocked key", 9)
	for i, topic := range []string{"a", "c", "b"} { // before it, behind it, and in a gap
		commitRows(ctx, t, store, topic, "k", 0, 5)
		if got := relay.fetch("blocked", 10); len(got) != 0 {
			t.Fatalf("read %v of a blocked key", got)
		}
		relay.fetch(topic, 10)
		relay.wantRows("once "+topic+" was read", 9+5*(i+1))
	}
	commitRows(ctx, t, store, "another", "k", 0, 3)
	commitRows(ctx, t, store, "zebra", "k", 0, 3)
	relay.wantRows("with two topics that nobody has read", 9+15+6)
}

// The first rows wait long for their confirmation, and a mark passes them. They were counted although they were deleted at last.
func TestBacklogIsZeroWhenTrafficEnds(t *testing.T) {
	store, ctx := outboxStore(t), limited(t)
	relay := newDesk(ctx, t, store)
	var slow []int64
	const pages, page = 40, 300
	for n := range pages {
		commitRows(ctx, t, store, "t", "k", n*page, page)
		got := relay.fetch("t", 1000, slow...)
		if len(got) != page {
			t.Fatalf("read %d rows, want %d", len(got), page)
		}
		if n == 0 {
			slow, got = got[:50], got[50:]
		}
		relay.delete("t", got)
		relay.wantRows("while the first rows are in flight", 50)
	}
	relay.delete("t", slow)
	relay.wantRows("at the end", 0)
}

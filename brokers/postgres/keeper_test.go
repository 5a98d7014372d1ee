package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/testserver"
)

// rig is a subscription whose keeper the test drives, on tables of its own.
type rig struct {
	*testing.T
	b *Broker
	s *subscription
	k *keeper
}

func newRig(t *testing.T) *rig {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	schema := "broker_" + strings.ToLower(rand.Text()[:12])
	b, err := New(Config{Pool: pool, Schema: schema, LeaseTTL: time.Minute})
	adaptertest.Opened(t, b, err)
	if err := b.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), fmt.Sprintf("DROP SCHEMA %q CASCADE", schema)); err != nil {
			t.Error(err)
		}
	})
	if err := b.Register(t.Context(), "orders", "c"); err != nil {
		t.Fatal(err)
	}
	g, err := b.find(t.Context(), pool, "orders", "c")
	if err != nil {
		t.Fatal(err)
	}
	s := newSubscription(b, brokers.Subscription{Consumer: "c", Window: 8}, "orders", g)
	return &rig{t, b, s, s.keeper}
}

// text replaces the names of the tables in a statement.
func (x *rig) text(query string) string {
	for _, name := range []string{"group", "message", "delayed", "attempt", "member", "lease"} {
		query = strings.ReplaceAll(query, "{"+name+"}", x.b.names.Table("broker_"+name))
	}
	return query
}

func (x *rig) exec(query string, args ...any) {
	x.Helper()
	if _, err := x.b.pool.Exec(x.Context(), x.text(query), args...); err != nil {
		x.Fatalf("%s: %v", query, err)
	}
}

// number returns what a query of one number says.
func (x *rig) number(query string, args ...any) int64 {
	x.Helper()
	var n int64
	if err := x.b.pool.QueryRow(x.Context(), x.text(query), args...).Scan(&n); err != nil {
		x.Fatalf("%s: %v", query, err)
	}
	return n
}

// leases joins and returns the leases by their buckets.
func (x *rig) leases() map[int16]lease {
	x.Helper()
	if err := x.k.beat(x.Context()); err != nil {
		x.Fatal(err)
	}
	leases := make(map[int16]lease)
	for _, l := range x.k.news().leases {
		leases[l.bucket] = l
	}
	return leases
}

// stored publishes n messages of one key and returns them as they are read, and their bucket.
func (x *rig) stored(n int) ([]*entry, int16) {
	x.Helper()
	list := make([]*message.Message, n)
	for i := range list {
		list[i] = message.NewMessage("", nil)
		list[i].Metadata[event.MetaPartitionKey] = "key"
	}
	if err := x.b.publish("orders", list); err != nil {
		x.Fatal(err)
	}
	p := x.read()
	if len(p.entries) != n {
		x.Fatalf("read %d of %d messages", len(p.entries), n)
	}
	for _, e := range p.entries {
		e.deliveries = 1
	}
	return p.entries, p.of[0]
}

// read reads the messages that are there, but for those that are known.
func (x *rig) read(known ...*entry) *page {
	x.Helper()
	r := &request{known: []int64{}, stored: []time.Time{}}
	for i := range buckets {
		r.numbers, r.lows, r.takes = append(r.numbers, int16(i)), append(r.lows, 0), append(r.takes, maxRoom)
		r.seen = append(r.seen, 1<<40) // each could be known
	}
	for _, e := range known {
		r.know(e.id, e.stored)
	}
	p := x.s.fetch(x.Context(), r)
	if p.err != nil {
		x.Fatal(p.err)
	}
	return p
}

// flush writes one statement.
func (x *rig) flush() bool {
	x.Helper()
	wrote, err := x.k.flush(x.Context())
	if err != nil {
		x.Fatal(err)
	}
	return wrote
}

// Under steady acks there was always something more to delete, and until there was not, no lease was kept and none let go:
// after LeaseTTL all handlers were told that they had lost their buckets, again and again.
func TestSteadyAcksStarveNothing(t *testing.T) {
	x := newRig(t)
	x.s.ttl = time.Second // a busy machine keeps it
	stop, ended := make(chan struct{}), make(chan struct{})
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { x.k.run(ended) })
	defer close(ended)
	adaptertest.Eventually(t, func() (bool, string) {
		return x.number("SELECT count(*) FROM {lease} WHERE epoch = 1") == buckets, "the keeper has not got all buckets"
	})
	work.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			for x.k.backlog() < 3*removeAtOnce {
				x.k.ack(lease{0, 1}, &entry{id: 1})
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	})
	defer close(stop)
	expires := func() int64 {
		return x.number("SELECT coalesce(max(extract(epoch FROM expires_at) * 1000), 0)::bigint FROM {member}")
	}
	began := expires()
	x.k.release(lease{1, 1})
	x.k.giveBack(lease{2, 1}, &entry{id: 1})
	adaptertest.Eventually(t, func() (bool, string) {
		now, epoch := expires(), x.number("SELECT epoch FROM {lease} WHERE bucket = 1")
		x.k.mu.Lock()
		returned := len(x.k.returned)
		x.k.mu.Unlock()
		return now > began+2*x.s.ttl.Milliseconds() && epoch > 1 && returned == 0,
			fmt.Sprintf("the leases are kept for %d ms more, the epoch of a released bucket is %d, and %d deliveries are not stored", now-began, epoch, returned)
	})
}

// A lease was let go before the row of a message that was acked under it was deleted, when both came at the wrong moment:
// the next owner delivered the message again.
func TestLeaseIsLetGoWhenItsAcksAreWritten(t *testing.T) {
	x := newRig(t)
	entries, bucket := x.stored(3)
	l := x.leases()[bucket]
	x.k.batch, x.k.turn = 1, 2 // it is the leases' turn
	for _, e := range entries {
		x.k.ack(l, e)
	}
	x.k.release(l)
	free := func() bool { return x.number("SELECT count(*) FROM {lease} WHERE owner = ''") > 0 }
	for x.flush() {
		x.k.batch = 1
		if n := x.number("SELECT count(*) FROM {message}"); n > 0 && free() {
			t.Fatalf("the lease is let go while %d messages that were acked under it are there", n)
		}
	}
	if !free() {
		t.Error("the lease is not let go")
	}
}

// A batch that the database could not delete in the time that a statement has was tried again as a whole, for ever.
func TestSlowDeletesAreMadeInSmallerBatches(t *testing.T) {
	x := newRig(t)
	const n = 100
	entries, bucket := x.stored(n)
	l := x.leases()[bucket]
	// All at once take three times as long as a statement may.
	x.s.ttl = time.Second
	x.exec(fmt.Sprintf(`CREATE FUNCTION %q.slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(%v); RETURN OLD; END $$`,
		x.b.config.Schema, (3 * x.k.limit() / n).Seconds()))
	x.exec(fmt.Sprintf(`CREATE TRIGGER slow BEFORE DELETE ON {message} FOR EACH ROW EXECUTE FUNCTION %q.slow()`, x.b.config.Schema))
	for _, e := range entries {
		x.k.ack(l, e)
	}
	adaptertest.Eventually(t, func() (bool, string) {
		if _, err := x.k.flush(t.Context()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		left := x.number("SELECT count(*) FROM {message}")
		return left == 0, fmt.Sprintf("%d of %d acked messages are not deleted", left, n)
	})
	x.exec("DROP TRIGGER slow ON {message}")
	x.s.ttl = time.Minute
	adaptertest.Eventually(t, func() (bool, string) {
		x.k.ack(l, entries[0])
		x.flush()
		return x.k.batch == removeAtOnce, fmt.Sprintf("the database is quick again, and a batch has %d messages, want %d", x.k.batch, removeAtOnce)
	})
}

// A message that was given back, came again and was acked before any of it was written left a row behind that nothing deletes.
// And an ack without a lease deleted the row of a message that another member delivers.
func TestAttemptsAreThoseOfMessagesThatAreThere(t *testing.T) {
	x := newRig(t)
	entries, bucket := x.stored(2)
	l := x.leases()[bucket]
	first, second := entries[0], entries[1]
	x.k.giveBack(l, first)
	x.k.giveBack(l, second)
	first.deliveries, second.deliveries = 2, 2
	x.k.ack(l, first)
	for x.flush() {
	}
	if got := x.number("SELECT coalesce(sum(id), 0) FROM {attempt}"); got != second.id {
		t.Errorf("the ids in the attempt table add up to %d, want %d: the other message is deleted", got, second.id)
	}
	x.k.ack(lease{bucket, l.epoch - 1}, second)
	for x.flush() {
	}
	if messages, attempts := x.number("SELECT count(*) FROM {message}"), x.number("SELECT count(*) FROM {attempt}"); messages != 1 || attempts != 1 {
		t.Errorf("after an ack without a lease there are %d messages and %d attempts, want 1 and 1", messages, attempts)
	}
	x.k.ack(l, second)
	for x.flush() {
	}
	if got := x.number("SELECT count(*) FROM {attempt}"); got != 0 {
		t.Errorf("%d rows are in the attempt table when all messages are acked, want 0", got)
	}
}

// A failover sends the sequence back, and the new server gives the id of a row that is in memory to another row: the first
// one's ack deleted the other, and it was not even read before that.
func TestAnIDThatIsUsedAgainIsAnotherRow(t *testing.T) {
	x := newRig(t)
	entries, bucket := x.stored(1)
	l, old := x.leases()[bucket], entries[0]
	if got := x.read(old).entries; len(got) != 0 {
		t.Fatalf("read %d rows, want none: the only one is known", len(got))
	}
	x.exec("UPDATE {message} SET created_at = created_at + interval '1 microsecond'")
	x.k.giveBack(l, old)
	x.k.ack(l, old)
	for x.flush() {
	}
	got := x.read(old).entries
	if len(got) != 1 {
		t.Fatalf("read %d rows after the ack of another one that had the same id, want 1", len(got))
	}
	if n := x.number("SELECT count(*) FROM {attempt}"); n != 0 {
		t.Errorf("%d deliveries are stored, want 0: they were the other row's", n)
	}
	x.k.ack(l, got[0])
	for x.flush() {
	}
	if n := x.number("SELECT count(*) FROM {message}"); n != 0 {
		t.Errorf("%d rows are left after its own ack, want 0", n)
	}
}

// Delayed messages whose time came when their topic had no consumer any more were deleted.
func TestDelayedMessagesWaitForAConsumer(t *testing.T) {
	x := newRig(t)
	m := message.NewMessage("1", nil)
	m.SetContext(WithAvailableAt(t.Context(), time.Now().Add(-time.Minute)))
	if err := x.b.publish("orders", []*message.Message{m}); err != nil {
		t.Fatal(err)
	}
	if err := x.b.Unregister(t.Context(), "orders", "c"); err != nil {
		t.Fatal(err)
	}
	x.s.promote(t.Context())
	if got := x.number("SELECT count(*) FROM {delayed}"); got != 1 {
		t.Fatalf("%d delayed messages are left without a consumer, want 1", got)
	}
	if err := x.b.Register(t.Context(), "orders", "next"); err != nil {
		t.Fatal(err)
	}
	x.s.promote(t.Context())
	if got := x.number("SELECT count(*) FROM {message}"); got != 1 {
		t.Errorf("%d messages wait for the next consumer, want 1", got)
	}
}

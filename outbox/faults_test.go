package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

var errAway = errors.New("broker is away")

// A transaction takes id 1 and stays open; id 2 commits and is published; then id 1 commits. A relay that
// reads "id > last" never sees it.
func TestO1LateCommitIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		x := run(t, m, b, outbox.RelayConfig{})
		late := m.Begin()
		insert(t, m, late, "t", "a", "late")
		add(t, m, "t", "b", "early")
		pass(5 * time.Second)
		wantPublished(t, "before the commit", b, "t/early")
		if err := late.Commit(); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		wantPublished(t, "after the commit", b, "t/early", "t/late")
		x.mustStop(t)
	})
}

// Key k writes id 1, and before it commits, key x commits ids 2 to 2001, whose publishing takes the relay
// past id 1. Then k commits id 1 and, after that, id 2002. A relay that reads on behind the last id, and
// from the start only now and then, publishes 2002 before 1. So does one that orders by transaction.
func TestO2LateCommitDoesNotInvertItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		late := m.Begin()
		var once atomic.Bool
		b := &broker{}
		b.before = func(string, []*message.Message) error {
			if b.calls() == 3 && once.CompareAndSwap(false, true) { // in the middle of the backlog
				if err := late.Commit(); err != nil {
					t.Error(err)
				}
				add(t, m, "t", "k", "second")
			}
			return nil
		}
		insert(t, m, late, "t", "k", "first")
		add(t, m, "t", "x", names("x", 2000)...)
		x := run(t, m, b, outbox.RelayConfig{Page: 100, Batch: 10})
		pass(10 * time.Second)
		got := b.published()
		first, second := slices.Index(got, "t/first"), slices.Index(got, "t/second")
		if first < 0 || second < first || len(got) != 2002 {
			t.Errorf("%d rows; first at %d, second at %d; want 2002, in order", len(got), first, second)
		}
		x.mustStop(t)
	})
}

// Four relays take rows of one key with SKIP LOCKED and publish them side by side.
func TestO3RelaysDoNotInvertAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		var delay atomic.Int64
		b.before = func(string, []*message.Message) error {
			time.Sleep(time.Duration(delay.Add(7)%50) * time.Millisecond)
			return nil
		}
		relays := make([]*running, 4)
		for i := range relays {
			relays[i] = run(t, m, b, outbox.RelayConfig{Owner: fmt.Sprint("r", i), Batch: 3, Page: 10})
		}
		pass(5 * time.Second)
		for i, r := range relays {
			if s := r.Stats(); s.Buckets != outbox.Buckets/4 || s.Relays != 4 {
				t.Errorf("relay %d: %d buckets, %d relays; want 16 and 4", i, s.Buckets, s.Relays)
			}
		}
		want := map[string][]string{}
		for i := range 50 {
			for k := range 20 {
				key := fmt.Sprintf("k%02d", k)
				id := fmt.Sprintf("%s-%03d", key, i)
				add(t, m, "t", key, id)
				want[key] = append(want[key], "t/"+id)
			}
			pass(10 * time.Millisecond)
		}
		pass(time.Minute)
		got := b.published()
		if len(got) != 1000 {
			t.Errorf("published %d, want 1000", len(got))
		}
		for key, want := range want {
			mine := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, "t/"+key) })
			if !slices.Equal(mine, want) {
				t.Errorf("key %s: published %q, want %q", key, mine, want)
			}
		}
		for _, r := range relays {
			r.mustStop(t)
		}
	})
}

// The row was deleted, then the publish failed.
func TestO4RowIsDeletedAfterItsPublishIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		b := &broker{}
		answer := make(chan error)
		b.before = func(string, []*message.Message) error { return <-answer }
		add(t, m, "t", "k", "1")
		x := run(t, m, b, outbox.RelayConfig{})
		pass(time.Second)
		wantBacklog(t, "while Publish runs", m, outbox.Backlog{Rows: 1})
		answer <- errAway
		synctest.Wait()
		wantBacklog(t, "after Publish failed", m, outbox.Backlog{Rows: 1})
		pass(time.Second)
		answer <- nil
		synctest.Wait()
		wantBacklog(t, "after Publish was confirmed", m, outbox.Backlog{})
		wantPublished(t, "at the end", b, "t/1")
		x.mustStop(t)
	})
}

// The relay publishes and dies before it deletes.
func TestO5DeathBeforeDeleteRepeatsTheSameMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		for _, payload := range [][]byte{nil, {}, {0, 255, 1}} {
			msg := message.NewMessage(fmt.Sprintf("id-%v", payload), payload)
			msg.Metadata = message.Metadata{"ce_subject": "k", "x": "ä<&>", "empty": ""}
			tx := m.Begin()
			if err := outbox.Add(t.Context(), m, tx, "t", msg); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		m.Fail(func(op string) error {
			if op == "Delete" {
				return errors.New("connection lost")
			}
			return nil
		})
		b.before = func(_ string, msgs []*message.Message) error {
			for _, msg := range msgs { // a publisher may change its message
				defer func() { msg.Metadata["trace"] = "changed" }()
			}
			return nil
		}
		first := run(t, m, b, outbox.RelayConfig{Owner: "first", DrainLimit: time.Second})
		pass(5 * time.Second)
		if n := len(b.published()); n != 3 {
			t.Errorf("while the delete fails: published %d, want each of the 3 once", n)
		}
		_ = first.stop(t)
		m.Fail(nil)
		b.before = nil
		second := run(t, m, b, outbox.RelayConfig{Owner: "second"})
		pass(time.Minute)
		wantBacklog(t, "at the end", m, outbox.Backlog{})
		if len(b.msgs) != 6 {
			t.Fatalf("published %d messages, want 3 twice", len(b.msgs))
		}
		for i, again := range b.msgs[3:] {
			if before := b.msgs[i]; before.UUID != again.UUID || string(before.Payload) != string(again.Payload) || (before.Payload == nil) != (again.Payload == nil) ||
				!maps.Equal(again.Metadata, message.Metadata{"ce_subject": "k", "x": "ä<&>", "empty": ""}) {
				t.Errorf("message %d: first %+v, then %+v", i, before, again)
			}
		}
		second.mustStop(t)
	})
}

// refuse fails the messages with the given ids, whatever the batch.
func refuse(err error, ids ...string) func(string, []*message.Message) error {
	return func(_ string, msgs []*message.Message) error {
		for _, m := range msgs {
			if slices.Contains(ids, m.UUID) {
				return err
			}
		}
		return nil
	}
}

// A row is too large for the broker, for ever, and all rows behind it wait.
func TestO6UnpublishableRowBlocksNoOther(t *testing.T) {
	tooLarge := classify.Permanent(errors.New("message is too large"))
	for _, test := range []struct {
		policy outbox.Policy
		err    error
		want   []string
		left   outbox.Backlog
	}{
		{outbox.SkipKey, tooLarge, []string{"t/a1", "t/b1", "t/a3", "t/n2", "t/b2"}, outbox.Backlog{Dead: 2}},
		{outbox.SkipKey, classify.Drop(tooLarge), []string{"t/a1", "t/b1", "t/a3", "t/n2", "t/b2"}, outbox.Backlog{Dead: 2}},
		{outbox.BlockKey, tooLarge, []string{"t/a1", "t/b1", "t/n2", "t/b2"}, outbox.Backlog{Rows: 1, Dead: 2}},
	} {
		t.Run(string(test.policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, b := outboxsuite.NewMemory(), &broker{before: refuse(test.err, "a2", "n1")}
				tx := m.Begin()
				for _, id := range []string{"a1", "n1", "a2", "b1", "a3", "n2", "b2"} {
					insert(t, m, tx, "t", map[byte]string{'a': "a", 'b': "b"}[id[0]], id)
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				x := run(t, m, b, outbox.RelayConfig{OnPoison: test.policy})
				pass(time.Minute)
				wantPublished(t, "with rows that are refused", b, test.want...)
				wantBacklog(t, "with rows that are refused", m, test.left)
				dead, err := m.Dead(t.Context(), 0, 10)
				if err != nil || len(dead) != 2 || dead[1].UUID != "a2" || !strings.Contains(dead[1].Error, "too large") || dead[1].ErrorType == "" {
					t.Errorf("dead rows: got %+v, %v", dead, err)
				}
				if s := x.Stats(); s.Buried != 2 || s.Published != uint64(len(test.want)) {
					t.Errorf("stats: buried %d, published %d; want 2, %d", s.Buried, s.Published, len(test.want))
				}
				x.mustStop(t)
			})
		})
	}
}

// The credentials have expired, and the broker refuses everything for good. The outbox must not end up
// among the dead.
func TestO6BrokerThatRefusesAllBuriesFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		var expired atomic.Bool
		expired.Store(true)
		b := &broker{before: func(string, []*message.Message) error {
			if expired.Load() {
				return classify.Permanent(errors.New("not authorized"))
			}
			return nil
		}}
		for k := range 50 {
			add(t, m, "t", fmt.Sprint("k", k), names(fmt.Sprint("k", k, "-"), 20)...)
		}
		x := run(t, m, b, outbox.RelayConfig{})
		pass(2 * time.Minute)
		wantBacklog(t, "while all is refused", m, outbox.Backlog{Rows: 900, Dead: 100})
		if s := x.Stats(); len(s.Failing) != 1 || !s.Failing[0].Down {
			t.Errorf("stats: %+v; want the topic down", s.Failing)
		}
		expired.Store(false)
		pass(time.Minute)
		wantBacklog(t, "afterwards", m, outbox.Backlog{Dead: 100})
		x.mustStop(t)
	})
}

// The dead row is repaired: the key goes on with it, in order, whatever was added meanwhile.
func TestO6BlockedKeyGoesOnInOrder(t *testing.T) {
	for _, revive := range []bool{true, false} {
		t.Run(fmt.Sprint("revive ", revive), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := outboxsuite.NewMemory()
				var broken atomic.Bool
				broken.Store(true)
				b := &broker{before: func(_ string, msgs []*message.Message) error {
					if broken.Load() {
						return refuse(classify.Permanent(errAway), "a1")("", msgs)
					}
					return nil
				}}
				add(t, m, "t", "a", "a1", "a2")
				add(t, m, "t", "b", names("b", 100)...)
				x := run(t, m, b, outbox.RelayConfig{OnPoison: outbox.BlockKey, Page: 10})
				pass(10 * time.Second)
				add(t, m, "t", "a", "a3")
				pass(10 * time.Second)
				broken.Store(false)
				dead, err := m.Dead(t.Context(), 0, 10)
				if err != nil || len(dead) != 1 {
					t.Fatalf("dead rows: %v, %v", dead, err)
				}
				do, want := m.Discard, []string{"t/a2", "t/a3", "t/a4"}
				if revive {
					do, want = m.Revive, []string{"t/a1", "t/a2", "t/a3", "t/a4"}
				}
				if ok, err := do(t.Context(), dead[0].ID); err != nil || !ok {
					t.Fatal(ok, err)
				}
				add(t, m, "t", "a", "a4")
				pass(10 * time.Second)
				wantPublished(t, "at the end", &broker{got: b.published()[100:]}, want...)
				x.mustStop(t)
			})
		})
	}
}

// The database is out of reach while a Publish runs; the leases run out, another relay takes them, and the
// first one goes on publishing.
func TestO7LostLeaseStopsPublishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		cut := &cutOff{Source: m}
		a := &broker{}
		hold := make(chan struct{})
		a.before = func(string, []*message.Message) error {
			if a.calls() == 2 {
				cut.cut.Store(true)
				<-hold
			}
			return nil
		}
		add(t, m, "t", "k", names("", 10)...)
		first := run(t, cut, a, outbox.RelayConfig{Owner: "first", Batch: 1, LeaseTTL: 10 * time.Second, PublishTimeout: time.Second})
		pass(time.Second)
		wantPublished(t, "before the cut", a, "t/0000")
		b := &broker{}
		second := run(t, m, b, outbox.RelayConfig{Owner: "second"})
		pass(8 * time.Second)
		wantPublished(t, "the second, while the leases hold", b)
		pass(4 * time.Second)
		// Whether the first one's row was deleted before the cut is open.
		if got := b.published(); len(got) < 9 || got[len(got)-9] != "t/0001" || got[len(got)-1] != "t/0009" {
			t.Errorf("the second, after the lease: published %q, want 0001 to 0009 and perhaps 0000 before them", got)
		}
		close(hold) // the publish in flight returns; the nine rows behind it are not ours any more
		pass(time.Minute)
		wantPublished(t, "the first", a, "t/0000", "t/0001")
		cut.cut.Store(false)
		pass(time.Minute)
		wantPublished(t, "the first, back again", a, "t/0000", "t/0001")
		first.mustStop(t)
		second.mustStop(t)
	})
}

// The leases are gone although our clock says that they hold: another relay has them. The next
// prolongation tells, and the rest of the page is not published.
func TestO7LeaseTakenAwayStopsPublishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		b := &broker{before: func(string, []*message.Message) error { time.Sleep(5 * time.Second); return nil }}
		add(t, m, "t", "k", names("", 10)...)
		x := run(t, m, b, outbox.RelayConfig{Owner: "first", Batch: 1})
		pass(time.Second)
		if err := m.Leave(t.Context(), "first"); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Lease(t.Context(), "second", time.Hour); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		wantPublished(t, "without a lease", b, "t/0000")
		wantBacklog(t, "without a lease", m, outbox.Backlog{Rows: 10}) // the delete was fenced
		x.mustStop(t)
	})
}

// A second relay joins while the first publishes a bucket that is to be the second's.
func TestO7BucketIsGivenBackAfterItsPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		var slow atomic.Bool
		slow.Store(true)
		b := &broker{before: func(string, []*message.Message) error {
			if slow.Swap(false) {
				time.Sleep(30 * time.Second)
			}
			return nil
		}}
		for k := range 64 { // nearly every bucket is in use
			add(t, m, "t", fmt.Sprint("k", k), fmt.Sprint(k))
		}
		first := run(t, m, b, outbox.RelayConfig{Owner: "first"})
		pass(time.Second)
		second := run(t, m, b, outbox.RelayConfig{Owner: "second"})
		pass(20 * time.Second)
		inUse := map[int]bool{}
		for k := range 64 {
			inUse[outbox.BucketOf(fmt.Sprint("k", k))] = true
		}
		if got, most := second.Stats().Buckets, outbox.Buckets-len(inUse); got > most {
			t.Errorf("while the first publishes %d buckets, the second has %d; want at most %d", len(inUse), got, most)
		}
		wantPublished(t, "while the first publishes", b)
		pass(30 * time.Second)
		if a, b := first.Stats().Buckets, second.Stats().Buckets; a != 32 || b != 32 {
			t.Errorf("afterwards: %d and %d buckets, want 32 each", a, b)
		}
		if n := len(b.published()); n != 64 {
			t.Errorf("published %d, want each of the 64 once", n)
		}
		first.mustStop(t)
		second.mustStop(t)
	})
}

// cutOff is a source whose database cannot be reached at times.
type cutOff struct {
	outbox.Source
	cut atomic.Bool
}

func (c *cutOff) err() error {
	if c.cut.Load() {
		return errors.New("no route to host")
	}
	return nil
}

func (c *cutOff) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	if err := c.err(); err != nil {
		return outbox.Tenure{}, err
	}
	return c.Source.Lease(ctx, owner, ttl)
}

func (c *cutOff) Fetch(ctx context.Context, q outbox.Query) (outbox.Page, error) {
	if err := c.err(); err != nil {
		return outbox.Page{}, err
	}
	return c.Source.Fetch(ctx, q)
}

func (c *cutOff) Delete(ctx context.Context, owner, topic string, leases []outbox.Lease, ids []int64) ([]outbox.Lease, error) {
	if err := c.err(); err != nil {
		return nil, err
	}
	return c.Source.Delete(ctx, owner, topic, leases, ids)
}

// The leases run out within the publish timeout: a Publish begun now could outlast them.
func TestO7NoPublishBeginsNearTheEndOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		cut := &leaseless{Source: m}
		x := run(t, cut, b, outbox.RelayConfig{LeaseTTL: 10 * time.Second, PublishTimeout: 4 * time.Second})
		pass(time.Second)
		cut.cut.Store(true) // the last prolongation was at 0 s: the leases end at 10 s
		pass(4 * time.Second)
		add(t, m, "t", "k", "5s")
		pass(1500 * time.Millisecond)
		add(t, m, "t", "k", "6.5s")
		pass(time.Minute)
		wantPublished(t, "without a prolongation", b, "t/5s")
		if s := x.Stats(); s.Buckets != 0 || s.LastError == nil {
			t.Errorf("stats: %d buckets, last error %v; want none, and the error", s.Buckets, s.LastError)
		}
		cut.cut.Store(false)
		pass(time.Minute)
		wantPublished(t, "with leases again", b, "t/5s", "t/6.5s")
		x.mustStop(t)
	})
}

// leaseless is a source that cannot lease at times.
type leaseless struct {
	outbox.Source
	cut atomic.Bool
}

func (c *leaseless) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	if c.cut.Load() {
		return outbox.Tenure{}, errAway
	}
	return c.Source.Lease(ctx, owner, ttl)
}

// NOTIFY in the business transaction serialises the commits. The relay wakes without: by a hint in the
// process, else by its poll.
func TestO8WakeUpNeedsNoNotify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		x := run(t, m, b, outbox.RelayConfig{})
		pass(time.Minute) // the poll has slowed down
		pass(50 * time.Millisecond)
		began := time.Now()
		add(t, m, "t", "k", "hinted")
		for range 1000 {
			x.Wake()
		}
		pass(0)
		if took := b.at["hinted"].Sub(began); len(b.published()) != 1 || took != 0 {
			t.Errorf("with a hint: published %q after %v, want at once", b.published(), took)
		}
		pass(time.Minute)
		began = time.Now()
		add(t, m, "t", "k", "unhinted")
		pass(2 * time.Second)
		if took := b.at["unhinted"].Sub(began); len(b.published()) != 2 || took > time.Second {
			t.Errorf("without a hint: published %q after %v, want within 1s", b.published(), took)
		}
		x.mustStop(t)
	})
}

// A foreign transaction has been open for minutes, with a row in the outbox.
func TestO9LongTransactionStallsNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		x := run(t, m, b, outbox.RelayConfig{})
		foreign := m.Begin()
		insert(t, m, foreign, "t", "f", "foreign")
		for i := range 10 {
			began := time.Now()
			id := fmt.Sprint("row", i)
			add(t, m, "t", "k", id)
			x.Wake()
			pass(time.Minute)
			if took := b.at[id].Sub(began); b.at[id].IsZero() || took > 50*time.Millisecond {
				t.Errorf("%s: published after %v, want at once", id, took)
			}
		}
		if err := foreign.Commit(); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		if got := b.published(); got[len(got)-1] != "t/foreign" {
			t.Errorf("published %q, want the foreign row last", got)
		}
		x.mustStop(t)
	})
}

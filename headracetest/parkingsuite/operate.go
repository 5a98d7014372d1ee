package parkingsuite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// retryable tells whether the database wants the transaction to be tried again, for a deadlock, say.
func retryable(err error) bool {
	return new(classify.Classifier).Classify(err).Verdict == classify.VerdictRetry
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (b *bench[Tx]) consumers() {
	l, other := b.line(nil), b.lineOf("mail.orders", b.Store, nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	b.fix()
	other.want(flight.Committed, "a", "a1", "a2")
	l.want(flight.Parked, "a", "a2")
	if c := b.count("mail.orders"); c.Keys != 0 || !c.Oldest.IsZero() {
		b.Errorf("count of the other consumer: %+v, want none", c)
	}
	if n, err := b.ledger.ReleaseAll(b.ctx, "mail.orders", operator); err != nil || n != 0 {
		b.Errorf("ReleaseAll of the other consumer: %d, %v; want 0", n, err)
	}
	b.wantParked("a", "a1", "a2")
}

// A collation took "A" for "a" and cut trailing spaces, so that a healthy key was parked, or long keys were cut to
// the same.
func (b *bench[Tx]) names() {
	l := b.line(nil)
	long := strings.Repeat("x", 300)
	keys := []string{"a", "A", "a ", "ä", "a\u0308", "\xff", long + "1", long + "2", "a\x00", parking.Name(long + "1")}
	names := map[string]bool{}
	for i, key := range keys {
		names[parking.Name(key)] = true
		first := "first of " + string(rune('0'+i))
		l.want(flight.Committed, key, "healthy "+first)
		b.breaks(first)
		l.want(flight.DeadLettered, key, first)
		l.want(flight.Parked, key, "second of "+string(rune('0'+i)))
	}
	if len(names) != len(keys) {
		b.Errorf("%d keys have %d names", len(keys), len(names))
	}
	if c := b.count(b.consumer); c.Keys != len(keys) || c.Messages != 2*len(keys) {
		b.Errorf("count %+v, want %d keys with two messages each", c, len(keys))
	}
}

func (b *bench[Tx]) keyless() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "", "a1")
	l.want(flight.Committed, "", "a2")
	if c := b.count(b.consumer); c.Keys != 0 {
		b.Errorf("count %+v, want nothing parked", c)
	}
	if got := len(b.deadLetters()); got != 1 {
		b.Errorf("%d dead letters, want 1", got)
	}
	if err := l.store.Park(b.ctx, poison.Record{Consumer: b.consumer}); err != nil {
		b.Errorf("Park of a record without an id: %v", err)
	}
}

// async delivers a message that is going to be held.
func (l *line[Tx]) async(key, name string) <-chan flight.Receipt {
	out := make(chan flight.Receipt, 1)
	go func() {
		receipt, err := l.try(arrival(l.ctx, key, name))
		if err != nil {
			l.Errorf("message %s: %v", name, err)
		}
		out <- receipt
	}()
	return out
}

func (b *bench[Tx]) holds() {
	l := b.line(func(p *parking.Policy) { p.MaxPerKey = 2 })
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	third := l.async("a", "a3")
	b.until("a3 is held", func() bool { n, _, _ := l.store.Held(); return n == 1 })
	if _, since, err := l.store.Held(); since.IsZero() || !errors.Is(err, parking.ErrFull) || !strings.Contains(err.Error(), `"a"`) {
		b.Errorf("held since %v for %v; want ErrFull that names the key", since, err)
	}
	l.want(flight.Committed, "b", "b1")
	b.wantParked("a", "a1", "a2")
	if got := len(b.deadLetters()); got != 1 {
		b.Errorf("%d dead letters, want 1: what is held has not failed", got)
	}

	// Shutdown: a held message is left un-acked, and nobody has failed.
	ctx, cancel := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := l.try(arrival(ctx, "a", "a4"))
		ended <- err
	}()
	b.until("a4 is held", func() bool { n, _, _ := l.store.Held(); return n == 2 })
	cancel()
	if err := receive(b.ctx, b.T, "the held message to end", ended); new(classify.Classifier).Classify(err).Verdict != classify.VerdictStop {
		b.Errorf("a held message whose context ended: %v, want Stop", err)
	}

	b.fix()
	b.release("a")
	l.drain()
	if receipt := receive(b.ctx, b.T, "a3", third); receipt != flight.Parked && receipt != flight.Committed {
		b.Errorf("a3: %v, want parked or committed", receipt)
	}
	l.drain()
	b.wantHistory("b1", "a1", "a2", "a3")
}

func (b *bench[Tx]) holdsNewKeys() {
	l := b.line(func(p *parking.Policy) { p.MaxMessages, p.MaxPerKey = 2, 2 })
	b.breaks("a1", "b1", "c1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.DeadLettered, "b", "b1")
	third := l.async("c", "c1")
	b.until("the dead letter of c1 is stored", func() bool { return len(b.deadLetters()) == 3 })
	if c := b.count(b.consumer); c.Messages != 2 {
		b.Errorf("count %+v, want 2 messages", c)
	}
	if _, err := b.ledger.Skip(b.ctx, b.consumer, "a", 1, operator); err != nil {
		b.Fatal(err)
	}
	if receipt := receive(b.ctx, b.T, "c1", third); receipt != flight.DeadLettered {
		b.Errorf("c1: %v, want dead-lettered", receipt)
	}
	b.wantParked("c", "c1")
	if got := len(b.deadLetters()); got != 3 {
		b.Errorf("%d dead letters, want 3: none twice while it is held", got)
	}
}

func (b *bench[Tx]) overflows() {
	l := b.line(func(p *parking.Policy) { p.MaxPerKey, p.MaxMessages, p.Overflow = 2, 2, parking.DeadLetter })
	b.breaks("a1", "b1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	l.want(flight.DeadLettered, "a", "a3")
	l.want(flight.DeadLettered, "b", "b1")
	b.wantParked("a", "a1", "a2")
	b.wantParked("b")
	b.fix()
	l.want(flight.Committed, "b", "b1") // its redrive: it never took effect
	b.release("a")
	l.drain()
	b.wantHistory("b1", "a1", "a2")
	l.want(flight.Committed, "a", "a3")
}

func (b *bench[Tx]) skips() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2", "a3")
	for _, why := range []parking.Reason{{}, {Actor: "ada"}, {Reason: "r"}, {Actor: " ", Reason: "r"}, {Actor: "ada", Reason: "\xff"}, {Actor: strings.Repeat("a", 256), Reason: "r"}} {
		if _, err := b.ledger.Skip(b.ctx, b.consumer, "a", 1, why); !errors.Is(err, parking.ErrReason) {
			b.Errorf("Skip for %+v: %v; want ErrReason", why, err)
		}
		if _, err := b.ledger.ReleaseAll(b.ctx, b.consumer, why); !errors.Is(err, parking.ErrReason) {
			b.Errorf("ReleaseAll for %+v: %v; want ErrReason", why, err)
		}
	}
	for _, missing := range []struct {
		key string
		seq int64
	}{{"a", 9}, {"z", 1}} {
		if ok, err := b.ledger.Skip(b.ctx, b.consumer, missing.key, missing.seq, operator); ok || err != nil {
			b.Errorf("Skip(%q, %d): %t, %v; want false", missing.key, missing.seq, ok, err)
		}
	}
	for _, seq := range []int64{2, 1} { // one from the middle, and the first
		if ok, err := b.ledger.Skip(b.ctx, b.consumer, "a", seq, parking.Reason{Actor: "ada", Reason: "was booked by hand"}); !ok || err != nil {
			b.Fatalf("Skip(%d): %t, %v; want true", seq, ok, err)
		}
	}
	b.wantParked("a", "a3")
	l.want(flight.Duplicate, "a", "a1", "a2") // skipped for good
	b.release("a")
	l.drain()
	b.wantHistory("a3")

	log, err := b.ledger.Audit(b.ctx, b.consumer, 0, 10)
	if err != nil || len(log) != 3 {
		b.Fatalf("audit %+v, %v; want 3 entries", log, err)
	}
	e := log[0]
	if e.Action != parking.ActionSkip || e.Actor != "ada" || e.Reason.Reason != "was booked by hand" || e.Key != "a" || e.At.IsZero() ||
		e.Skipped == nil || e.Skipped.Seq != 2 || string(e.Skipped.Record.Payload) != "payload of a2" {
		b.Errorf("first entry %+v; want the skip of a2 with its message", e)
	}
	if log[2].Action != parking.ActionRelease || log[2].Skipped != nil {
		b.Errorf("third entry %+v; want the release", log[2])
	}
	if rest, err := b.ledger.Audit(b.ctx, b.consumer, log[1].N, 10); err != nil || len(rest) != 1 {
		b.Errorf("audit after the second: %d entries, %v; want 1", len(rest), err)
	}
	if n, err := b.ledger.PruneAudit(b.ctx, time.Now().Add(-time.Hour), 10); n != 0 || err != nil {
		b.Errorf("PruneAudit of what is older than an hour: %d, %v; want 0", n, err)
	}
	if n, err := b.ledger.PruneAudit(b.ctx, time.Now().Add(time.Hour), 2); n != 2 || err != nil {
		b.Errorf("PruneAudit: %d, %v; want 2", n, err)
	}

	// With its last message a key is gone.
	b.breaks("c1")
	l.want(flight.DeadLettered, "c", "c1")
	if ok, err := b.ledger.Skip(b.ctx, b.consumer, "c", 1, operator); !ok || err != nil {
		b.Fatalf("Skip: %t, %v", ok, err)
	}
	l.want(flight.Committed, "c", "c2")
}

func (b *bench[Tx]) withholds() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	b.fix()
	if ok, err := b.ledger.Withhold(b.ctx, b.consumer, "a", operator); ok || err != nil {
		b.Errorf("Withhold of a parked key: %t, %v; want false", ok, err)
	}
	b.release("a")
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	msg := receive(b.ctx, b.T, "a released message", l.source(ctx))
	if ok, err := b.ledger.Withhold(b.ctx, b.consumer, "a", operator); !ok || err != nil {
		b.Errorf("Withhold: %t, %v; want true", ok, err)
	}
	if receipt, err := l.try(msg); receipt != flight.Duplicate || err != nil {
		b.Errorf("a message in hand when its key was withheld: %v, %v; want no effect", receipt, err)
	}
	msg.Ack()
	b.wantHistory()
	b.wantParked("a", "a1")
}

func (b *bench[Tx]) releases() {
	l := b.line(nil)
	for _, key := range []string{"a", "b", "c"} {
		b.breaks(key + "1")
		l.want(flight.DeadLettered, key, key+"1")
		l.want(flight.Parked, key, key+"2")
	}
	if page, err := b.ledger.Keys(b.ctx, b.consumer, "a", 1); err != nil || len(page) != 1 || page[0].Name != "b" {
		b.Errorf("one key after a: %+v, %v; want b", page, err)
	}
	if page, err := b.ledger.Messages(b.ctx, b.consumer, "a", 1, 5); err != nil || len(page) != 1 || page[0].Record.UUID != "a2" || page[0].ParkedAt.IsZero() {
		b.Errorf("messages of a after the first: %+v, %v; want a2", page, err)
	}
	if key, seq, found, err := b.ledger.Find(b.ctx, b.consumer, "uuid:orders b2"); err != nil || !found || key != "b" || seq != 2 {
		b.Errorf("Find: %q, %d, %t, %v; want b, 2", key, seq, found, err)
	}
	if _, _, found, err := b.ledger.Find(b.ctx, b.consumer, "x"); err != nil || found {
		b.Errorf("Find of what is not parked: %t, %v; want false", found, err)
	}
	if ok, err := b.ledger.Release(b.ctx, b.consumer, "x", operator); ok || err != nil {
		b.Errorf("Release of a key that is not parked: %t, %v; want false", ok, err)
	}
	b.fix()
	b.release("b")
	b.release("b") // again: nothing changes
	if c := b.count(b.consumer); c.Keys != 3 || c.Released != 1 || c.Messages != 6 || c.Oldest.IsZero() {
		b.Errorf("count %+v; want 3 keys, 1 released, 6 messages", c)
	}
	l.drain()
	b.wantHistory("b1", "b2")
	if n, err := b.ledger.ReleaseAll(b.ctx, b.consumer, operator); n != 2 || err != nil {
		b.Errorf("ReleaseAll: %d, %v; want 2", n, err)
	}
	l.drain()
	if c := b.count(b.consumer); c != (parking.Count{}) {
		b.Errorf("count after all was drained: %+v, want none", c)
	}
}

func (b *bench[Tx]) leases() {
	l := b.line(nil)
	b.breaks("a1", "b1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.DeadLettered, "b", "b1")
	b.release("a")
	b.release("b")
	lease := func(owner string, ttl time.Duration, limit int, want ...string) {
		b.Helper()
		got, err := b.ledger.Lease(b.ctx, b.consumer, owner, ttl, limit)
		slices.Sort(got)
		if err != nil || !slices.Equal(got, want) {
			b.Errorf("Lease for %s: %q, %v; want %q", owner, got, err, want)
		}
	}
	next := func(owner string, want bool) {
		b.Helper()
		if m, ok, err := b.ledger.Next(b.ctx, b.consumer, "a", owner, time.Hour); err != nil || ok != want || ok && m.Record.UUID != "a1" {
			b.Errorf("Next for %s: %t, %v; want %t", owner, ok, err, want)
		}
	}
	lease("x", time.Hour, 1, "a")
	lease("x", time.Nanosecond, 5, "b")
	next("x", true)
	next("y", false)
	lease("y", time.Hour, 5, "b") // its lease has ended
	lease("z", time.Hour, 5)
	if err := b.ledger.Leave(b.ctx, b.consumer, "x"); err != nil {
		b.Error(err)
	}
	next("x", false)
	lease("z", time.Hour, 5, "a")
	next("z", true)
}

// A dead letter was redriven while its key was parked: the inbox took it for a duplicate, and the operator for done.
// A key was released and drained, and the dead letter of its first message stayed new for ever: whoever redrove all of them when the inbox had
// forgotten the message, made its effect a second time.
func (b *bench[Tx]) letter() {
	l := b.line(nil)
	letters, err := deadletter.NewStore(b.Letters, deadletter.Protection{})
	if err != nil {
		b.Fatal(err)
	}
	index := func(key string) string {
		b.Helper()
		list, err := b.ledger.Messages(b.ctx, b.consumer, key, 0, 1)
		if err != nil || len(list) != 1 {
			b.Fatalf("the first message of %s: %d, %v", key, len(list), err)
		}
		if n, err := letters.Add(b.ctx, list[0].Record); err != nil || n != 1 {
			b.Fatalf("Add: %d, %v; want 1", n, err)
		}
		return list[0].Record.ID
	}
	want := func(id string, state deadletter.State, actions ...string) {
		b.Helper()
		letter, err := letters.One(b.ctx, id)
		if err != nil || letter.State != state {
			b.Errorf("dead letter %s is %q, %v; want %q", id, letter.State, err, state)
		}
		trail, err := letters.Trail(b.ctx, id)
		if err != nil || len(trail) != len(actions) {
			b.Errorf("trail of %s: %+v, %v; want %q", id, trail, err, actions)
		}
		for i, e := range trail {
			if e.Action != actions[i] || e.Actor != "headrace" || e.Reason == "" {
				b.Errorf("trail of %s: %+v; want %q", id, e, actions[i])
			}
		}
	}
	b.breaks("a1", "b1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	l.want(flight.DeadLettered, "b", "b1")
	first, skipped := index("a"), index("b")
	b.release("a")
	l.drain() // a1 fails again
	want(first, deadletter.New)
	again := index("a")
	want(first, deadletter.Resolved, deadletter.ActionSupersede)
	b.fix()
	b.release("a")
	l.drain()
	b.wantHistory("a1", "a2")
	want(again, deadletter.Resolved, deadletter.ActionResolve)
	if _, err := b.ledger.Skip(b.ctx, b.consumer, "b", 1, operator); err != nil {
		b.Fatal(err)
	}
	want(skipped, deadletter.New) // what is to become of it is the operator's to say

	// What was done to a letter stays.
	b.breaks("c1")
	l.want(flight.DeadLettered, "c", "c1")
	discarded := index("c")
	if n, err := letters.Discard(b.ctx, deadletter.Filter{IDs: []string{discarded}}, deadletter.By{Actor: "headrace", Reason: "a test"}); err != nil || n != 1 {
		b.Fatalf("Discard: %d, %v; want 1", n, err)
	}
	b.fix()
	b.release("c")
	l.drain()
	want(discarded, deadletter.Discarded, deadletter.ActionDiscard)
}

func (b *bench[Tx]) redrives() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	b.fix()
	list, err := b.ledger.Messages(b.ctx, b.consumer, "a", 0, 1)
	if err != nil {
		b.Fatal(err)
	}
	if ok, err := parking.Redrive(b.ctx, b.ledger, list[0].Record, operator); !ok || err != nil {
		b.Errorf("Redrive of a parked message: %t, %v; want true", ok, err)
	}
	l.drain()
	b.wantHistory("a1", "a2")
	if ok, err := parking.Redrive(b.ctx, b.ledger, list[0].Record, operator); ok || err != nil {
		b.Errorf("Redrive of a message that is not parked: %t, %v; want false", ok, err)
	}
}

// A released message of a type that has no handler any more was acked, and came again for ever.
func (b *bench[Tx]) removesIgnored() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	b.fix()
	b.release("a")
	ctx, cancel := context.WithCancel(b.ctx)
	in := l.source(ctx)
	first := receive(b.ctx, b.T, "a released message", in)
	first.Ack() // as the runtime acks what it ignores
	var served sync.WaitGroup
	served.Go(func() { l.serve(in) })
	b.until("the key is drained", func() bool { return b.count(b.consumer).Keys == 0 })
	cancel()
	served.Wait()
	b.wantHistory("a2")
	log, err := b.ledger.Audit(b.ctx, b.consumer, 0, 10)
	if err != nil || len(log) != 2 || log[1].Skipped == nil || log[1].Skipped.Record.UUID != "a1" {
		b.Errorf("audit %+v, %v; want the release and a1", log, err)
	}
}

// repository is an application's own transaction type.
type repository[Tx any] struct{ tx Tx }

func (b *bench[Tx]) mapped() {
	store := inbox.Map(inbox.Map(b.Store, func(tx Tx) repository[Tx] { return repository[Tx]{tx} }),
		func(r repository[Tx]) *repository[Tx] { return &r })
	wrapped, err := parking.Wrap(store, b.consumer, policy(nil))
	if err != nil {
		b.Fatal(err)
	}
	if !inbox.Same(wrapped, b.Store) {
		b.Error("a store that parks is not the same database as the one it was made of")
	}
	handle := inbox.Handler(inbox.Store[*repository[Tx]](wrapped), b.consumer, func(ctx context.Context, r *repository[Tx], msg *message.Message) error {
		if b.isBroken(msg.UUID) {
			return classify.Permanent(errBroken)
		}
		return b.Effect(ctx, r.tx, msg.UUID)
	})
	l := &line[Tx]{bench: b, handle: func(msg *message.Message) ([]*message.Message, error) { return nil, handle(msg) }}
	b.breaks("a1")
	b.line(nil).want(flight.DeadLettered, "a", "a1")
	b.fix()
	l.want(flight.Parked, "a", "a2")
	b.release("a")
	src, err := wrapped.Source(quiet)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	in, err := src.Subscribe(ctx, "orders")
	if err != nil {
		b.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { l.serve(in) })
	b.until("the key is drained", func() bool { return b.count(b.consumer).Keys == 0 })
	cancel()
	served.Wait()
	l.want(flight.Committed, "a", "a3")
	b.wantHistory("a1", "a2", "a3")
}

func (b *bench[Tx]) foreignTx() {
	if _, _, err := b.ledger.Reserve(b.ctx, "not a transaction", b.consumer, "a", parking.Limits{}); err == nil || !strings.Contains(err.Error(), "string") {
		b.Errorf("Reserve with a string for a transaction: %v; want an error that names its type", err)
	}
}

package parkingsuite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// A message of an account failed, was dead-lettered, and those after it changed the account without it.
func (b *bench[Tx]) order() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2", "a3")
	l.want(flight.Committed, "b", "b1", "b2")
	b.wantHistory("b1", "b2")
	b.wantParked("a", "a1", "a2", "a3")
	if k := b.keys(b.consumer)[0]; k.State != parking.Parked || k.Messages != 3 || k.Failures != 1 || k.FirstError != errBroken.Error() ||
		k.ParkedAt.IsZero() || k.FailedAt.IsZero() || !k.ReleasedAt.IsZero() {
		b.Errorf("key: %+v; want it parked, with 3 messages and the error %q", k, errBroken)
	}
	if got := len(b.deadLetters()); got != 1 {
		b.Errorf("%d dead letters, want 1: what is parked behind has not failed", got)
	}

	b.fix()
	b.release("a")
	l.drain()
	l.want(flight.Committed, "a", "a4")
	b.wantHistory("b1", "b2", "a1", "a2", "a3", "a4")
	if keys := b.keys(b.consumer); len(keys) != 0 {
		b.Errorf("keys after the drain: %+v, want none", keys)
	}
	l.want(flight.Duplicate, "a", "a1", "a2", "a3", "a4")
}

// A payload that was no text, a tombstone and a header of bytes were parked, and something else was handled.
func (b *bench[Tx]) bytes() {
	l := b.line(nil)
	b.breaks("first")
	l.want(flight.DeadLettered, "\xff\x00", "first")
	at := time.Unix(1700000000, 123456789).UTC()
	sent := map[string]*message.Message{}
	for name, payload := range map[string][]byte{"bytes": []byte("\xff\x00\xfe"), "empty": {}, "tombstone": nil} {
		msg := message.NewMessage(name, payload)
		msg.Metadata = message.Metadata{"text": "ä", "bytes": "\xfe\x00", "": "no name", "headrace_dlt_version": "forged"}
		msg.SetContext(brokers.WithDelivery(b.ctx, &brokers.Delivery{
			Topic: "orders", Incarnation: "i\u00e4", Partition: 7, Offset: 1 << 40, Key: []byte("\xff\x00"), Time: at, Count: 2,
			Headers: []brokers.Header{{Key: "h", Value: nil}, {Key: "h", Value: []byte{0xff, 0}}, {Key: "h", Value: []byte{}}},
		}))
		sent[name] = msg
		if receipt, err := l.try(msg); err != nil || receipt != flight.Parked {
			b.Fatalf("%s: %v, %v; want parked", name, receipt, err)
		}
	}
	b.fix()
	b.release("\xff\x00")
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	in := l.source(ctx)
	for range 4 {
		got := receive(b.ctx, b.T, "a released message", in)
		if want := sent[got.UUID]; want != nil {
			metadata := message.Metadata{"text": "ä", "bytes": "\xfe\x00", "": "no name"}
			if (got.Payload == nil) != (want.Payload == nil) || string(got.Payload) != string(want.Payload) || !reflect.DeepEqual(got.Metadata, metadata) {
				b.Errorf("%s: payload %q, metadata %q; want %q, %q", got.UUID, got.Payload, got.Metadata, want.Payload, metadata)
			}
			g, w := brokers.DeliveryOf(got.Context()), brokers.DeliveryOf(want.Context())
			if g.Incarnation != w.Incarnation || g.Partition != w.Partition || g.Offset != w.Offset || !g.Time.Equal(w.Time) ||
				string(g.Key) != string(w.Key) || !reflect.DeepEqual(g.Headers, w.Headers) {
				b.Errorf("%s: delivery %+v, want %+v", got.UUID, g, w)
			}
		}
		if receipt, err := l.try(got); err != nil || receipt != flight.Committed {
			b.Fatalf("%s: %v, %v; want committed", got.UUID, receipt, err)
		}
		got.Ack()
	}
}

// The process died after the message was parked and before the ack.
func (b *bench[Tx]) copies() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	l.want(flight.Duplicate, "a", "a1", "a2", "a1")
	b.wantParked("a", "a1", "a2")
	b.fix()
	b.release("a")
	l.want(flight.Duplicate, "a", "a1", "a2")
	l.drain()
	l.want(flight.Duplicate, "a", "a1", "a2")
	b.wantHistory("a1", "a2")

	// Long after that the inbox has forgotten the claims, but not what is parked.
	b.breaks("c1")
	l.want(flight.DeadLettered, "c", "c1")
	l.want(flight.Parked, "c", "c2")
	if _, err := b.Store.Prune(b.ctx, time.Now().Add(time.Hour), 1000); err != nil {
		b.Fatal(err)
	}
	l.want(flight.Duplicate, "c", "c2")
	l.want(flight.Duplicate, "c", "c1")
	b.wantParked("c", "c1", "c2")
}

// A message waited for longer than the inbox remembers. It was drained, or skipped, and the redrive of its dead letter, which
// was still new, had an effect.
func (b *bench[Tx]) claims() {
	l := b.line(nil)
	forget := func(before time.Time) {
		b.Helper()
		if n, err := b.Store.Prune(b.ctx, before, 1000); err != nil || n == 0 {
			b.Fatalf("Prune: %d, %v; want some", n, err)
		}
	}
	b.breaks("a1", "b1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	l.want(flight.DeadLettered, "b", "b1")
	forget(time.Now().Add(time.Hour))
	b.fix()
	b.release("a")
	l.drain()
	l.want(flight.Duplicate, "a", "a1", "a2")
	b.wantHistory("a1", "a2")
	if ok, err := b.ledger.Skip(b.ctx, b.consumer, "b", 1, operator); err != nil || !ok {
		b.Fatalf("Skip: %t, %v; want true", ok, err)
	}
	l.want(flight.Duplicate, "b", "b1")

	// The claim was still there when the message was drained, and went soon after.
	l.delayed("c", "c1", short)
	parked := b.keys(b.consumer)[0].DelayedUntil.Add(-short)
	l.drain()
	forget(parked.Add(short / 2))
	l.want(flight.Duplicate, "c", "c1")
	b.wantHistory("a1", "a2", "c1")
}

// The process died after the dead letter was stored and before the message was parked.
func (b *bench[Tx]) crashBeforePark() {
	l := b.line(nil)
	b.breaks("a1")
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	b.onLetter(cancel) // so that the transaction that parks is not committed
	if receipt, err := l.try(arrival(ctx, "a", "a1")); err == nil {
		b.Fatalf("a message that could not be parked: receipt %v and no error; want it left un-acked", receipt)
	}
	if keys := b.keys(b.consumer); len(keys) != 0 {
		b.Fatalf("keys: %+v, want none yet", keys)
	}
	l.want(flight.DeadLettered, "a", "a1")
	b.wantParked("a", "a1")
	if ids := b.deadLetters(); len(ids) != 2 || ids[0] != ids[1] {
		b.Errorf("dead letters %q; want two of one id", ids)
	}
}

// The process died between a drained message's effect and the commit.
func (b *bench[Tx]) crashInDrain() {
	if b.Kill == nil {
		b.Skip("the database cannot end a connection")
	}
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	b.fix()
	b.release("a")
	var killed atomic.Bool
	l.within = func(ctx context.Context, tx Tx, name string) error {
		if killed.Swap(true) {
			return nil
		}
		return errors.Join(b.Effect(ctx, tx, name), b.Kill(ctx, tx), errors.New("the connection is gone"))
	}
	l.drain()
	b.wantHistory("a1", "a2")
}

func (b *bench[Tx]) drainRollsBack() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	b.fix()
	b.release("a")
	var failures atomic.Int32
	l.within = func(ctx context.Context, tx Tx, name string) error {
		if failures.Add(1) <= 3 {
			return errors.Join(b.Effect(ctx, tx, name), errors.New("try again"))
		}
		return nil
	}
	l.drain()
	b.wantHistory("a1", "a2")
}

// The cause was not fixed when the key was released: the second message must not run without the first.
func (b *bench[Tx]) failsAgain() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	b.release("a")
	l.drain()
	b.wantHistory()
	b.wantParked("a", "a1", "a2")
	k := b.keys(b.consumer)[0]
	if k.State != parking.Parked || k.Failures != 2 || k.LastError != errBroken.Error() {
		b.Errorf("key %+v; want it parked again, 2 failures", k)
	}
	list, err := b.ledger.Messages(b.ctx, b.consumer, "a", 0, 1)
	if err != nil || list[0].Record.Deaths != 2 || list[0].Seq != 1 {
		b.Errorf("first message %+v, %v; want two deaths and place 1", list[0], err)
	}
	if ids := b.deadLetters(); len(ids) != 2 || ids[0] == ids[1] || list[0].Record.ID != ids[1] {
		b.Errorf("dead letters %q, the parked one's is %q; want two deaths, the second one parked", ids, list[0].Record.ID)
	}
	b.fix()
	b.release("a")
	l.drain()
	b.wantHistory("a1", "a2")
}

// A drainer was frozen with a message in hand; another one drained the key, which was parked anew.
func (b *bench[Tx]) zombieDrainer() {
	l := b.line(func(p *parking.Policy) { p.Lease = time.Nanosecond })
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	b.fix()
	b.release("a")
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	held := receive(b.ctx, b.T, "a released message", l.source(ctx))
	l.drain() // another replica's
	b.wantHistory("a1", "a2")
	b.breaks("a1", "a3")
	l.want(flight.DeadLettered, "a", "a3")
	if receipt, err := l.try(held); err != nil || receipt != flight.Duplicate {
		b.Errorf("the zombie's message: %v, %v; want a duplicate", receipt, err)
	}
	held.Ack()
	b.wantHistory("a1", "a2")
	b.wantParked("a", "a3")
	// Its message failed before that, and it only now comes to say so.
	gone := parking.Message{Consumer: b.consumer, Key: "a", Seq: 1, ID: "uuid:orders a1"}
	gone.Record.Version = poison.Version
	if there, err := b.ledger.Fail(b.ctx, gone); there || err != nil {
		b.Errorf("Fail of a message that is gone: %t, %v; want false", there, err)
	}
	if k := b.keys(b.consumer)[0]; k.Failures != 1 || k.LastError != errBroken.Error() {
		b.Errorf("the zombie changed the key: %+v", k)
	}
	// And its message is gone from a key that is released again.
	b.release("a")
	if _, err := b.Store.Once(b.ctx, inbox.Claim{Consumer: b.consumer, ID: "zombie"}, func(ctx context.Context, tx Tx) error {
		taken, err := b.ledger.Take(ctx, inbox.BaseTx(ctx, b.Store, tx), gone)
		if taken {
			b.Error("a message that is gone was taken")
		}
		return errors.Join(err, errBroken)
	}); !errors.Is(err, errBroken) {
		b.Error(err)
	}
	b.wantParked("a", "a3")
}

// A consumer lost its partition while it handled a message. The new owner parked it; the old one's failure, or
// its success, came after that.
func (b *bench[Tx]) zombieConsumer() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.want(flight.Parked, "a", "a2")
	l.want(flight.Duplicate, "a", "a1")
	b.fix()
	l.want(flight.Duplicate, "a", "a1")
	b.wantHistory()
	b.wantParked("a", "a1", "a2")

	// And the other way round: it took effect elsewhere while its failure was being written down.
	b.breaks("b1")
	b.onLetter(func() {
		if done, err := b.Store.Once(b.ctx, inbox.Claim{Consumer: b.consumer, ID: "uuid:orders b1"}, func(ctx context.Context, tx Tx) error {
			return b.Effect(ctx, tx, "b1")
		}); err != nil || !done {
			b.Errorf("the other consumer: %t, %v", done, err)
		}
	})
	l.deliver("b", "b1")
	b.wantHistory("b1")
	if got := b.parkedIDs("b"); len(got) != 0 {
		b.Errorf("parked of key b: %q; want none, for b1 took effect", got)
	}
}

// onLetter calls f once, when the next dead letter has been stored.
func (b *bench[Tx]) onLetter(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.afterLetter = f
}

// A live message came while the last parked one was being handled, and overtook it.
func (b *bench[Tx]) liveWaits() {
	if b.Store.MaxConcurrency() == 1 {
		b.Skip("one transaction at a time")
	}
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	b.fix()
	b.release("a")
	inside, goOn := make(chan struct{}), make(chan struct{})
	l.within = func(ctx context.Context, _ Tx, name string) error {
		if name != "a1" {
			return nil
		}
		close(inside)
		return wait(ctx, goOn)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	in := l.source(ctx)
	var served sync.WaitGroup
	served.Go(func() { l.serve(in) })
	receive(b.ctx, b.T, "the drain to begin", closed(inside))
	live := make(chan flight.Receipt, 1)
	go func() {
		receipt, err := l.try(arrival(b.ctx, "a", "a2"))
		if err != nil {
			b.Errorf("a2: %v", err)
		}
		live <- receipt
	}()
	// There is no signal for "waits for the row"; other work shows that time has passed.
	l.want(flight.Committed, "b", numbered("b", 1, 5)...)
	select {
	case receipt := <-live:
		b.Errorf("a live message was %v while the last parked one of its key was being handled", receipt)
	default:
	}
	close(goOn)
	if receipt := receive(b.ctx, b.T, "the live message", live); receipt != flight.Committed {
		b.Errorf("the live message: %v, want committed", receipt)
	}
	cancel()
	served.Wait()
	got, err := b.History(b.ctx)
	if err != nil || len(got) < 2 || !slices.Equal(got[len(got)-2:], []string{"a1", "a2"}) {
		b.Errorf("history %q, %v; want a1 and a2 last", got, err)
	}
}

func wait(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closed turns the closing of a channel into a value.
func closed(ch <-chan struct{}) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		<-ch
		out <- struct{}{}
	}()
	return out
}

// A live message was being appended when the drainer took the last one; what it had read before was that there
// is no other, and it deleted the key: the live message was never handled.
func (b *bench[Tx]) drainerWaits() {
	if b.Store.MaxConcurrency() == 1 {
		b.Skip("one transaction at a time")
	}
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	b.fix()
	b.release("a")
	appended, commit := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := b.Store.Once(b.ctx, inbox.Claim{Consumer: b.consumer, ID: "uuid:orders a2"}, func(ctx context.Context, tx Tx) error {
			base := inbox.BaseTx(ctx, b.Store, tx)
			seq, out, err := b.ledger.Reserve(ctx, base, b.consumer, "a", parking.Limits{PerKey: 10, PerConsumer: 10})
			if err != nil || out != parking.Reserved {
				return fmt.Errorf("reserve: %v, %w", out, err)
			}
			m := parking.Message{Consumer: b.consumer, Key: "a", Seq: seq, ID: "uuid:orders a2"}
			m.Record.Version, m.Record.UUID, m.Record.Topic = 1, "a2", "orders"
			m.Record.Metadata, m.Record.Payload = map[string]string{}, []byte("x")
			if _, err := b.ledger.Put(ctx, base, m); err != nil {
				return err
			}
			close(appended)
			return wait(ctx, commit)
		})
		first <- err
	}()
	select {
	case <-appended:
	case err := <-first:
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	in := l.source(ctx)
	// Lease and Next pass the locked row over or wait for it; so the drainer gets its message in another way.
	list, err := b.ledger.Messages(b.ctx, b.consumer, "a", 0, 1)
	if err != nil {
		b.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() {
		_, err := b.Store.Once(b.ctx, inbox.Claim{Consumer: b.consumer, ID: "drain"}, func(ctx context.Context, tx Tx) error {
			ok, err := b.ledger.Take(ctx, inbox.BaseTx(ctx, b.Store, tx), list[0])
			if err == nil && !ok {
				err = errors.New("the first message is not there")
			}
			return errors.Join(err, b.Effect(ctx, tx, "a1"))
		})
		taken <- err
	}()
	l.want(flight.Committed, "b", numbered("b", 1, 5)...)
	close(commit)
	if err := errors.Join(receive(b.ctx, b.T, "the append", first), receive(b.ctx, b.T, "the drain", taken)); err != nil {
		b.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { l.serve(in) })
	b.until("the key is drained", func() bool { return b.count(b.consumer).Keys == 0 })
	cancel()
	served.Wait()
	got, err := b.History(b.ctx)
	if err != nil || !slices.Equal(got[len(got)-2:], []string{"a1", "a2"}) {
		b.Errorf("history %q, %v; want a1 and a2 last", got, err)
	}
}

// While a key was drained, or a handler ran, the database's locks held up keys beside it.
func (b *bench[Tx]) otherKeys() {
	if b.Store.MaxConcurrency() < 3 {
		b.Skip("one transaction at a time")
	}
	l := b.line(nil)
	b.breaks("k2-1", "k1-1", "k3-1")
	l.want(flight.DeadLettered, "k2", "k2-1")
	l.want(flight.DeadLettered, "k3", "k3-1")
	b.fix()
	b.release("k2")
	inside, goOn := make(chan string, 2), make(chan struct{})
	l.within = func(ctx context.Context, _ Tx, name string) error {
		if name != "k2-1" && name != "live" {
			return nil
		}
		inside <- name
		return wait(ctx, goOn)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	in := l.source(ctx)
	var served sync.WaitGroup
	for range 2 {
		served.Go(func() { l.serve(in) })
	}
	live := make(chan error, 1)
	go func() {
		_, err := l.try(arrival(b.ctx, "k1", "live"))
		live <- err
	}()
	receive(b.ctx, b.T, "a handler", inside)
	receive(b.ctx, b.T, "a handler", inside)

	// Two handlers hold their transactions. Around their keys everything goes on.
	b.breaks("k1-1", "k0-1")
	l.want(flight.DeadLettered, "k1x", "k1-1")
	l.want(flight.DeadLettered, "k0", "k0-1")
	l.want(flight.Parked, "k3", "k3-2")
	l.want(flight.Parked, "k1x", "k1-2")
	l.want(flight.Committed, "k4", "k4-1")
	b.fix()
	b.release("k3")
	if _, err := b.ledger.Skip(b.ctx, b.consumer, "k0", 1, operator); err != nil {
		b.Error(err)
	}
	b.until("k3 is drained", func() bool { return !slices.Contains(b.keyNames(), "k3") })
	close(goOn)
	if err := receive(b.ctx, b.T, "the live message", live); err != nil {
		b.Error(err)
	}
	b.until("k2 is drained", func() bool { return !slices.Contains(b.keyNames(), "k2") })
	cancel()
	served.Wait()
}

func (b *bench[Tx]) keyNames() []string {
	var names []string
	for _, k := range b.keys(b.consumer) {
		names = append(names, k.Name)
	}
	return names
}

// history is all of it at once: a history of effects is right if each message is in it once, and those of a key in
// order, whatever fails, is delivered twice or dies on the way.
func (b *bench[Tx]) history() {
	const keys, perKey = 3, 8
	l := b.line(func(p *parking.Policy) { p.Lease, p.Poll = 3*time.Millisecond, 5*time.Millisecond })
	seed := rand.Uint64()
	b.Logf("seed %d", seed)
	defer func() {
		if b.Failed() {
			keys, err := b.ledger.Keys(context.WithoutCancel(b.ctx), b.consumer, "", 100)
			b.Logf("failed with seed %d; parked: %+v, %v", seed, keys, err)
		}
	}()
	var rolls sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 0))
	roll := func(n int) bool {
		rolls.Lock()
		defer rolls.Unlock()
		return dice.IntN(n) == 0
	}
	l.within = func(ctx context.Context, tx Tx, name string) error {
		switch {
		case roll(12) && b.Kill != nil:
			return errors.Join(b.Effect(ctx, tx, name), b.Kill(ctx, tx), errors.New("the connection is gone"))
		case roll(8):
			return errors.Join(b.Effect(ctx, tx, name), errors.New("try again"))
		}
		return nil
	}
	for k := range keys {
		b.breaks(fmt.Sprintf("%d-3", k), fmt.Sprintf("%d-6", k))
	}

	// Two drainers, with leases so short that they are always after the same keys.
	drainCtx, stop := context.WithCancel(b.ctx)
	var drainers sync.WaitGroup
	for range 2 {
		in := l.source(drainCtx)
		for range keys {
			drainers.Go(func() { l.serve(in) })
		}
	}
	// An operator who releases whatever is parked, fixed or not.
	drainers.Go(func() {
		for drainCtx.Err() == nil {
			if _, err := b.ledger.ReleaseAll(drainCtx, b.consumer, operator); err != nil && drainCtx.Err() == nil && !retryable(err) {
				b.Errorf("ReleaseAll: %v", err)
			}
			pause(drainCtx, 20*time.Millisecond)
		}
	})
	// A consumer per key, which delivers in order, again after a failure, and sometimes again after success; and a
	// zombie that delivers what it delivers too.
	var consumers sync.WaitGroup
	for k := range keys {
		for range 2 {
			consumers.Go(func() {
				for i := 1; i <= perKey; i++ {
					for b.ctx.Err() == nil {
						if _, err := l.try(arrival(b.ctx, fmt.Sprint(k), fmt.Sprintf("%d-%d", k, i))); err == nil && !roll(6) {
							break
						}
					}
				}
			})
		}
	}
	consumers.Wait()
	b.fix()
	b.until("all keys are drained", func() bool {
		c, err := b.ledger.Count(b.ctx, b.consumer)
		return err == nil && c.Keys == 0
	})
	stop()
	drainers.Wait()

	got, err := b.History(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	for k := range keys {
		prefix := fmt.Sprintf("%d-", k)
		of := slices.DeleteFunc(slices.Clone(got), func(name string) bool { return !strings.HasPrefix(name, prefix) })
		if want := numbered(prefix, 1, perKey); !slices.Equal(of, want) {
			b.Errorf("history of key %d: %q, want %q", k, of, want)
		}
	}
}

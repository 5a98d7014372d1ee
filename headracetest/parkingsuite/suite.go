// Package parkingsuite is the conformance suite of stores that can park: what every [parking.Ledger] promises, as
// tests, through the stages that use it. A store's own test runs it with [Run].
package parkingsuite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// Harness is one empty database and what the suite does with it besides the contract.
type Harness[Tx any] struct {
	// Store is migrated, empty and a parking.Provider.
	Store inbox.Store[Tx]

	// Effect is a handler's effect: it adds a name to a history, within tx.
	Effect func(ctx context.Context, tx Tx, name string) error

	// History returns the committed names in the order in which they were added.
	History func(ctx context.Context) ([]string, error)

	// Letters is the store's table of dead letters.
	Letters deadletter.Table

	// Kill ends the connection of tx from outside, as a crash of the process would; nil: cannot.
	Kill func(ctx context.Context, tx Tx) error
}

// limit bounds every wait of the suite.
const limit = 2 * time.Minute

// Run runs the suite on one database. Each test has a consumer and a history of its own.
func Run[Tx any](t *testing.T, h Harness[Tx]) {
	for _, tc := range []struct {
		name string
		run  func(*bench[Tx])
	}{
		{"OrderOfAKeyThatFailed", (*bench[Tx]).order},
		{"MessageIsKeptByteForByte", (*bench[Tx]).bytes},
		{"I3CopiesOfParkedMessagesHaveNoEffect", (*bench[Tx]).copies},
		{"D2CrashBetweenDeadLetterAndPark", (*bench[Tx]).crashBeforePark},
		{"I4CrashInTheDrain", (*bench[Tx]).crashInDrain},
		{"I10ClaimOutlastsTheParking", (*bench[Tx]).claims},
		{"I1FailedAttemptInTheDrainLeavesItFirst", (*bench[Tx]).drainRollsBack},
		{"FailureInTheDrainParksAgain", (*bench[Tx]).failsAgain},
		{"ZombieDrainerHasNoEffect", (*bench[Tx]).zombieDrainer},
		{"ZombieConsumerHasNoEffect", (*bench[Tx]).zombieConsumer},
		{"LiveWaitsForTheDrainOfTheLast", (*bench[Tx]).liveWaits},
		{"AppendedWhileTheDrainerWaits", (*bench[Tx]).drainerWaits},
		{"OtherKeysAreNotTouched", (*bench[Tx]).otherKeys},
		{"ConsumersAreApart", (*bench[Tx]).consumers},
		{"KeysAreComparedByteByByte", (*bench[Tx]).names},
		{"WithoutKeyOrIDNothingIsParked", (*bench[Tx]).keyless},
		{"FullKeyHoldsItsMessages", (*bench[Tx]).holds},
		{"FullConsumerHoldsNewKeys", (*bench[Tx]).holdsNewKeys},
		{"OverflowToTheDeadLetters", (*bench[Tx]).overflows},
		{"SkipLeavesAnAudit", (*bench[Tx]).skips},
		{"WithholdStopsTheDrain", (*bench[Tx]).withholds},
		{"DelayedKeyWaitsInOrder", (*bench[Tx]).delays},
		{"DelayBehindAFailedOneReleasesNothing", (*bench[Tx]).delaysBehind},
		{"DelayInTheDrainKeepsItsPlace", (*bench[Tx]).delaysAgain},
		{"LetterOfWhatWasDelayedInTheDrainIsResolved", (*bench[Tx]).delaysLetter},
		{"DelayedKeyIsReleasedAtOnceByAnOperator", (*bench[Tx]).hurries},
		{"ReleaseOfOneAndOfAll", (*bench[Tx]).releases},
		{"LeaseIsOneReplicas", (*bench[Tx]).leases},
		{"RedriveOfAParkedMessageReleases", (*bench[Tx]).redrives},
		{"LetterOfWhatTookEffectIsResolved", (*bench[Tx]).letter},
		{"AckedWithoutAnEffectIsRemoved", (*bench[Tx]).removesIgnored},
		{"MappedStoreParks", (*bench[Tx]).mapped},
		{"ForeignTransactionIsRefused", (*bench[Tx]).foreignTx},
		{"HistoryUnderTwoDrainersAndFailures", (*bench[Tx]).history},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			b := &bench[Tx]{T: t, Harness: h.of(tc.name), ctx: ctx, broken: map[string]bool{}, consumer: "c-" + tc.name}
			b.ledger = b.Store.(parking.Provider).Parking()
			tc.run(b)
			b.wholeKeys()
		})
	}
}

// of is h with a history of its own.
func (h Harness[Tx]) of(test string) Harness[Tx] {
	own := h
	own.Effect = func(ctx context.Context, tx Tx, name string) error { return h.Effect(ctx, tx, test+" "+name) }
	own.History = func(ctx context.Context) ([]string, error) {
		all, err := h.History(ctx)
		var names []string
		for _, name := range all {
			if name, ok := strings.CutPrefix(name, test+" "); ok {
				names = append(names, name)
			}
		}
		return names, err
	}
	return own
}

var (
	errBroken = errors.New("card declined")
	operator  = parking.Reason{Actor: "ada", Reason: "fixed in release 7"}
)

// bench is one test on its harness.
type bench[Tx any] struct {
	*testing.T
	Harness[Tx]
	ctx      context.Context
	ledger   parking.Ledger
	consumer string

	mu      sync.Mutex
	broken  map[string]bool // the messages that fail for good
	letters []string        // the UUIDs of the dead letters

	afterLetter func() // called once, when the next dead letter has been stored
}

// policy is quick.
func policy(change func(*parking.Policy)) parking.Policy {
	p := parking.Policy{Poll: 2 * time.Millisecond, HoldDelay: time.Millisecond, MaxHoldDelay: 2 * time.Millisecond}
	if change != nil {
		change(&p)
	}
	return p
}

// line is a consumer's stages: what the runtime makes of a consumer that parks, without a retry.
type line[Tx any] struct {
	*bench[Tx]
	store  *parking.Store[Tx]
	handle message.HandlerFunc

	// within, if set, runs in the handler's transaction before its effect.
	within func(ctx context.Context, tx Tx, name string) error
}

func (b *bench[Tx]) line(change func(*parking.Policy)) *line[Tx] {
	return b.lineOf(b.consumer, b.Store, change)
}

func (b *bench[Tx]) lineOf(name string, store inbox.Store[Tx], change func(*parking.Policy)) *line[Tx] {
	b.Helper()
	wrapped, err := parking.Wrap(store, name, policy(change))
	if err != nil {
		b.Fatal(err)
	}
	l := &line[Tx]{bench: b, store: wrapped}
	dead, err := poison.New(poison.Config{
		Consumer: name, Publisher: publisher[Tx]{b}, Park: wrapped.Park, Logger: quiet,
		WriteDelay: time.Millisecond, MaxWriteDelay: 2 * time.Millisecond,
	})
	if err != nil {
		b.Fatal(err)
	}
	inner := inbox.Handler(inbox.Store[Tx](wrapped), name, func(ctx context.Context, tx Tx, msg *message.Message) error {
		if l.within != nil {
			if err := l.within(ctx, tx, msg.UUID); err != nil {
				return err
			}
		}
		if b.isBroken(msg.UUID) {
			return errors.Join(b.Effect(ctx, tx, msg.UUID), classify.Permanent(errBroken)) // rolled back
		}
		return b.Effect(ctx, tx, msg.UUID)
	})
	l.handle = dead.Middleware(wrapped.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return nil, inner(msg)
	}))
	return l
}

var quiet = slog.New(slog.DiscardHandler)

// publisher keeps the ids of dead letters.
type publisher[Tx any] struct{ b *bench[Tx] }

func (p publisher[Tx]) Publish(_ string, msgs ...*message.Message) error {
	p.b.mu.Lock()
	for _, m := range msgs {
		p.b.letters = append(p.b.letters, m.UUID)
	}
	after := p.b.afterLetter
	p.b.afterLetter = nil
	p.b.mu.Unlock()
	if after != nil {
		after()
	}
	return nil
}

func (publisher[Tx]) Close() error { return nil }

func (b *bench[Tx]) isBroken(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.broken[name]
}

func (b *bench[Tx]) breaks(names ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range names {
		b.broken[n] = true
	}
}

func (b *bench[Tx]) fix() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.broken)
}

func (b *bench[Tx]) deadLetters() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.letters)
}

// arrival is a message of a key as an adapter delivers it. Its name is its UUID and so its id.
func arrival(ctx context.Context, key, name string) *message.Message {
	msg := message.NewMessage(name, []byte("payload of "+name))
	d := &brokers.Delivery{Topic: "orders", Partition: 3, Offset: 41, Incarnation: "i1"}
	if key != "" {
		d.Key = []byte(key)
	}
	msg.SetContext(brokers.WithDelivery(ctx, d))
	return msg
}

// deliver runs a message through the stages and returns its receipt.
func (l *line[Tx]) deliver(key, name string) flight.Receipt {
	l.Helper()
	receipt, err := l.try(arrival(l.ctx, key, name))
	if err != nil {
		l.Fatalf("message %s of key %s: %v", name, key, err)
	}
	return receipt
}

func (l *line[Tx]) try(msg *message.Message) (flight.Receipt, error) {
	flight.Ensure(msg).Topic = "orders" // as the router says
	_, err := l.handle(msg)
	return flight.From(msg.Context()).Receipt(), err
}

// want delivers messages of one key and checks the receipts.
func (l *line[Tx]) want(receipt flight.Receipt, key string, names ...string) {
	l.Helper()
	for _, name := range names {
		if got := l.deliver(key, name); got != receipt {
			l.Errorf("message %s of key %s: receipt %v, want %v", name, key, got, receipt)
		}
	}
}

// source subscribes to what is released. What it yields is handled by serve.
func (l *line[Tx]) source(ctx context.Context) <-chan *message.Message {
	l.Helper()
	src, err := l.store.Source(quiet)
	if err != nil {
		l.Fatal(err)
	}
	in, err := src.Subscribe(ctx, "orders")
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		if err := src.Close(); err != nil {
			l.Error(err)
		}
	})
	return in
}

// serve handles what a source yields until it ends.
func (l *line[Tx]) serve(in <-chan *message.Message) {
	for msg := range in {
		if receipt, err := l.try(msg); err != nil || receipt == flight.NoReceipt {
			msg.Nack()
		} else {
			msg.Ack()
		}
	}
}

// drain runs a source until no key is released.
func (l *line[Tx]) drain() {
	l.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	in := l.source(ctx)
	var served sync.WaitGroup
	served.Go(func() { l.serve(in) })
	l.until("released keys are drained", func() bool { return l.count(l.consumer).Released == 0 })
	cancel()
	served.Wait()
}

func (b *bench[Tx]) count(consumer string) parking.Count {
	b.Helper()
	c, err := b.ledger.Count(b.ctx, consumer)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func (b *bench[Tx]) release(key string) {
	b.Helper()
	if ok, err := b.ledger.Release(b.ctx, b.consumer, parking.Name(key), operator); err != nil || !ok {
		b.Fatalf("Release(%q): %t, %v; want true", key, ok, err)
	}
}

func (b *bench[Tx]) keys(consumer string) []parking.Key {
	b.Helper()
	list, err := b.ledger.Keys(b.ctx, consumer, "", 1000)
	if err != nil {
		b.Fatal(err)
	}
	return list
}

// parkedIDs are the names of the messages of a key, in order.
func (b *bench[Tx]) parkedIDs(key string) []string {
	b.Helper()
	list, err := b.ledger.Messages(b.ctx, b.consumer, parking.Name(key), 0, 1000)
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for _, m := range list {
		names = append(names, m.Record.UUID)
	}
	return names
}

func (b *bench[Tx]) wantParked(key string, names ...string) {
	b.Helper()
	if got := b.parkedIDs(key); !slices.Equal(got, names) {
		b.Errorf("parked of key %q: %q, want %q", key, got, names)
	}
}

func (b *bench[Tx]) wantHistory(names ...string) {
	b.Helper()
	got, err := b.History(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	if !slices.Equal(got, names) {
		b.Errorf("history %q, want %q", got, names)
	}
}

// wholeKeys checks what is always so: a key has as many messages as its row says, and at least one.
func (b *bench[Tx]) wholeKeys() {
	b.Helper()
	if b.Failed() {
		return
	}
	for _, k := range b.keys(b.consumer) {
		list, err := b.ledger.Messages(b.ctx, b.consumer, k.Name, 0, 1000)
		if err != nil {
			b.Fatal(err)
		}
		if len(list) == 0 || len(list) != k.Messages {
			b.Errorf("key %q: its row says %d messages, and there are %d", k.Name, k.Messages, len(list))
		}
	}
}

// until waits for cond, which looks at the database.
func (b *bench[Tx]) until(what string, cond func() bool) {
	b.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.Fatalf("not in time: %s", what)
		}
	}
}

// receive waits for one value.
func receive[T any](ctx context.Context, t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("closed while waiting for %s", what)
		}
		return v
	case <-ctx.Done():
		t.Fatalf("not in time: %s", what)
	}
	panic("unreachable")
}

func numbered(prefix string, from, to int) []string {
	var names []string
	for i := from; i <= to; i++ {
		names = append(names, fmt.Sprintf("%s%d", prefix, i))
	}
	return names
}

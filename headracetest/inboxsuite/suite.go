// Package inboxsuite is the conformance suite of inbox stores: what every [inbox.Store] promises, as
// tests. A store's own test runs it with [Run].
package inboxsuite

import (
	"context"
	"testing"
	"time"

	"github.com/headrace-go/headrace/inbox"
)

// Harness is one empty database and what the suite does with it besides the contract.
type Harness[Tx any] struct {
	// Store is migrated and empty. The tables may be those of the test before, emptied; the store is a new one.
	Store inbox.Store[Tx]

	// Unmigrated returns a store on a place without our tables; nil where there is no such thing.
	Unmigrated func(t *testing.T) inbox.Store[Tx]

	// Add is a handler's effect: it adds one to the named counter, within tx.
	Add func(ctx context.Context, tx Tx, counter string) error

	// Count returns the committed value of the counter. It is called when no transaction is open.
	Count func(ctx context.Context, counter string) (int, error)

	// Fail runs a statement that the database refuses, and returns its error; nil where nothing can fail.
	Fail func(ctx context.Context, tx Tx) error

	// FailureAborts says that after Fail the database itself gives up the transaction (Postgres).
	FailureAborts bool

	// Kill ends the connection of tx from outside, as a crash of the process would; nil: cannot.
	Kill func(ctx context.Context, tx Tx) error

	// End commits or rolls back tx behind the store's back; nil: tx has no such methods.
	End func(ctx context.Context, tx Tx, commit bool) error

	// Waiting reports whether a claim waits for a lock of the database; nil where transactions queue in
	// the store.
	Waiting func(ctx context.Context) (bool, error)

	// Analyze has the database look anew at what its statistics tell of the size; nil: the store counts.
	Analyze func(ctx context.Context) error

	// Idle reports whether the database has no transaction open and every connection is back in its
	// pool; nil: not known.
	Idle func() bool
}

// Run runs the suite. open is called for each test and cleans up by itself.
func Run[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	for _, tc := range []struct {
		name string
		run  func(*bench[Tx])
	}{
		{"EffectAndClaimCommitTogether", (*bench[Tx]).commits},
		{"I1FailedAttemptLeavesNoClaim", (*bench[Tx]).failedAttempt},
		{"I2ConsumersHaveInboxesOfTheirOwn", (*bench[Tx]).consumers},
		{"I3SecondCopyWaitsForCommit", (*bench[Tx]).secondWaitsForCommit},
		{"I3SecondCopyRunsAfterRollback", (*bench[Tx]).secondRunsAfterRollback},
		{"I3ManyCopiesAtOnceOneEffect", (*bench[Tx]).manyCopies},
		{"I4CrashBetweenEffectAndCommit", (*bench[Tx]).crash},
		{"I5EmptyAndImpossibleNamesAreRefused", (*bench[Tx]).names},
		{"IdsAreComparedByteByByte", (*bench[Tx]).bytewise},
		{"I6EachAttemptHasATransactionOfItsOwn", (*bench[Tx]).freshTransaction},
		{"I8SwallowedSQLErrorIsNotACommit", (*bench[Tx]).swallowedError},
		{"PanicRollsBackAndGoesOn", (*bench[Tx]).panics},
		{"GoexitRollsBack", (*bench[Tx]).goexit},
		{"CancelledHandlerRollsBack", (*bench[Tx]).cancelled},
		{"CancelledHandlerThatReturnsNilIsNotDone", (*bench[Tx]).cancelledQuietly},
		{"CancelledWhileWaitingForTheClaim", (*bench[Tx]).cancelledWaiting},
		{"HandlerThatCommitsItself", (*bench[Tx]).endsItself},
		{"L5TransactionsStayBelowThePool", (*bench[Tx]).bounded},
		{"AdvanceOnlyForward", (*bench[Tx]).advance},
		{"AdvanceIsPartOfTheTransaction", (*bench[Tx]).advanceRollsBack},
		{"AdvanceConcurrently", (*bench[Tx]).advanceConcurrently},
		{"PruneByAgeAndLimit", (*bench[Tx]).prune},
		{"PruneInPasses", (*bench[Tx]).prunePasses},
		{"StatsTellSizeAgeAndDuplicates", (*bench[Tx]).stats},
		{"GroupTellsWhichAreNew", (*bench[Tx]).groupTellsWhichAreNew},
		{"GroupComparesByteByByte", (*bench[Tx]).groupBytewise},
		{"I3GroupWaitsForACopy", (*bench[Tx]).groupWaitsForACopy},
		{"I3OverlappingGroupsDoNotDeadlock", (*bench[Tx]).groupsOverlap},
		{"I4GroupCrashBetweenEffectAndCommit", (*bench[Tx]).groupCrash},
		{"I7I8GroupFailureLeavesNoClaim", (*bench[Tx]).groupFailureLeavesNoClaim},
		{"I7GroupedUnderFailures", (*bench[Tx]).grouped},
		{"MissingTableIsNamed", (*bench[Tx]).missingTable},
		{"MigrateConcurrently", (*bench[Tx]).migrateConcurrently},
		{"MapKeepsThePromises", (*bench[Tx]).mapped},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			b := &bench[Tx]{T: t, Harness: open(t), ctx: ctx}
			tc.run(b)
			b.idle()
		})
	}
}

// limit bounds every wait of the suite.
const limit = 30 * time.Second

// bench is one test on its harness.
type bench[Tx any] struct {
	*testing.T
	Harness[Tx]
	ctx context.Context
}

// once claims id for consumer "c" and, if that is new, adds one to the counter of the same name.
func (b *bench[Tx]) once(id string) bool {
	b.Helper()
	done, err := b.Store.Once(b.ctx, claim(id), b.add(id))
	if err != nil {
		b.Fatalf("Once(%q): %v", id, err)
	}
	return done
}

func (b *bench[Tx]) add(counter string) func(context.Context, Tx) error {
	return func(ctx context.Context, tx Tx) error { return b.Add(ctx, tx, counter) }
}

func claim(id string) inbox.Claim { return inbox.Claim{Consumer: "c", ID: id} }

func (b *bench[Tx]) wantCount(counter string, want int) {
	b.Helper()
	got, err := b.Count(b.ctx, counter)
	if err != nil {
		b.Fatalf("count %q: %v", counter, err)
	}
	if got != want {
		b.Errorf("counter %q is %d, want %d", counter, got, want)
	}
}

// idle checks that the test left no transaction and no connection behind.
func (b *bench[Tx]) idle() {
	if b.Idle == nil || b.Failed() {
		return
	}
	// Pools take a connection back in the background after an error.
	for deadline := time.Now().Add(5 * time.Second); !b.Idle(); {
		if time.Now().After(deadline) {
			b.Fatal("a connection or a transaction was left behind")
		}
		tick(b.ctx)
	}
}

// tick waits a moment between two looks at the database, which cannot signal.
func tick(ctx context.Context) {
	t := time.NewTimer(2 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

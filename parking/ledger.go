package parking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/poison"
)

// Provider is a store that can park: those of stores/*.
type Provider interface {
	inbox.Database
	// Parking returns the store's parked messages. It does no I/O.
	Parking() Ledger
}

// State is that of a parked key.
type State string

// The states.
const (
	Parked   State = "parked"   // its messages wait for an operator
	Released State = "released" // its messages are handled, in order
)

// Key is a parked key.
type Key struct {
	Consumer string
	Name     string // see [Name]
	State    State
	Messages int // at least 1

	// DelayedUntil is when a message that asked to be handled later, and those behind it, may be handled: until then the
	// key waits, in state Released. The zero time if there is none.
	DelayedUntil time.Time

	// ParkedAt is when its first message failed, ReleasedAt when it was released, and the zero time if it was
	// not. FailedAt is the last failure. Failures counts them: 1, and one more for each drain that failed.
	ParkedAt, FailedAt, ReleasedAt time.Time
	Failures                       int

	// Why it was parked, and why it was parked last. A message that was parked because it came behind
	// others does not count.
	FirstErrorType, FirstError string
	LastErrorType, LastError   string
}

// Message is a parked message.
type Message struct {
	Consumer string
	Key      string // its name, see [Name]
	Seq      int64  // its place in the key: rising, from 1, with gaps where one was skipped
	ID       string // within the consumer's inbox
	ParkedAt time.Time

	// Record is the whole message as it arrived, byte for byte, and its failure, if it was one: then it has an ID,
	// its dead letter's. One that was delayed has none, and the Attempts and failures so far, and Letter if it was one before.
	Record poison.Record
}

// Outcome is what became of a try to reserve a place.
type Outcome int

// The outcomes. After Full and Moved the transaction is to be rolled back.
const (
	NotParked Outcome = iota // the key has no row
	Reserved                 // the message's place is the key's last
	Full                     // there is no room
	Moved                    // the row went away meanwhile: what tx reads may be older. Try again in a new one
)

// Limits bounds what is parked.
type Limits struct{ PerKey, PerConsumer int }

// Ledger is what a database does for parking. Users call what an operator needs of it: Keys, Messages, Release,
// ReleaseAll, Withhold, Skip, Find, Count, Audit and PruneAudit; [Wrap] and [Source] do the rest. It is safe
// for concurrent use.
//
// A tx is the transaction of the store whose ledger it is, as its Once gives it; another type is an error.
// Keys are names, see [Name].
type Ledger interface {
	// Open makes the row of a key unless it is there: state Parked, no messages, and the failure of k.
	Open(ctx context.Context, tx any, k Key) error

	// Reserve locks the row of a key until tx ends, and gives the next message its place. If there is no row the
	// outcome is NotParked, and nothing was done.
	Reserve(ctx context.Context, tx any, consumer, key string, l Limits) (seq int64, out Outcome, err error)

	// Put stores m at the place that Reserve gave. It reports false if a message of that id is parked already.
	Put(ctx context.Context, tx any, m Message) (bool, error)

	// Take claims m in the inbox anew, as of now, for its first claim may have been pruned; locks the row of m's key; and
	// deletes m, and the row as well if that was the key's last message. m's dead letter (Record.ID, or else Record.Letter), if it
	// is in the same database and new, becomes resolved. It reports false, and tx is to be rolled back, if the key is not released or m is gone.
	Take(ctx context.Context, tx any, m Message) (bool, error)

	// Fail parks the key of m, which was released, again, and puts m.Record with its failure in the place of m's.
	// It reports false if m is gone: then nothing was done.
	Fail(ctx context.Context, m Message) (bool, error)

	// Delay releases the key, whose row tx has locked, but not before d has passed by the database's clock.
	Delay(ctx context.Context, tx any, consumer, key string, d time.Duration) error

	// DelayAgain puts m.Record in the place of m's, and lets the key of m, if it is released, wait until d has passed. It reports
	// false if m is gone: then nothing was done.
	DelayAgain(ctx context.Context, m Message, d time.Duration) (bool, error)

	// Lease takes at most limit released keys for owner that nobody has a lease of, the first released first.
	Lease(ctx context.Context, consumer, owner string, ttl time.Duration, limit int) ([]string, error)

	// Next prolongs owner's lease of a released key and returns its first message. It reports false if the
	// key is not released, or owner has lost it.
	Next(ctx context.Context, consumer, key, owner string, ttl time.Duration) (Message, bool, error)

	// Leave ends owner's leases.
	Leave(ctx context.Context, consumer, owner string) error

	// Keys lists at most limit parked keys of a consumer whose names come after after, in order of name.
	Keys(ctx context.Context, consumer, after string, limit int) ([]Key, error)

	// Messages lists at most limit messages of a key with a Seq above after, in order.
	Messages(ctx context.Context, consumer, key string, after int64, limit int) ([]Message, error)

	// Find returns the place of a message by its id; false: it is not parked.
	Find(ctx context.Context, consumer, id string) (key string, seq int64, found bool, err error)

	// Release lets a key's messages be handled, in order, before live ones. It reports false if the key is not
	// parked; one that is released already stays so, and is not delayed any more.
	Release(ctx context.Context, consumer, key string, why Reason) (bool, error)

	// ReleaseAll releases the consumer's keys that are parked at this moment, and returns how many.
	ReleaseAll(ctx context.Context, consumer string, why Reason) (int, error)

	// Withhold takes a release back: the key is parked again, after the message that is being handled. It
	// reports false if the key was not released.
	Withhold(ctx context.Context, consumer, key string, why Reason) (bool, error)

	// Skip removes a message for good and keeps it in the audit. It waits for one that is being handled. Its claim
	// is made anew: neither a redelivery nor a redrive will run it for as long as the inbox remembers, from now on. Its
	// dead letter stays as it is, to be edited, say. It reports false if there is no such message.
	Skip(ctx context.Context, consumer, key string, seq int64, why Reason) (bool, error)

	// Count tells how much of a consumer is parked.
	Count(ctx context.Context, consumer string) (Count, error)

	// Audit lists at most limit entries with an N above after, in order.
	Audit(ctx context.Context, consumer string, after int64, limit int) ([]Entry, error)

	// PruneAudit deletes at most limit entries older than before and returns how many.
	PruneAudit(ctx context.Context, before time.Time, limit int) (int, error)
}

// Count is how much of a consumer is parked.
type Count struct {
	Keys     int // parked or released
	Released int // of these
	Delayed  int // of the released: those that wait for a time
	Messages int

	// Oldest is when the key that has waited for longest was parked; the zero time if there is none.
	Oldest time.Time
}

// Reason is who did something and why. Both are required.
type Reason struct {
	Actor  string // at most 255 bytes
	Reason string // at most 4 KiB
}

const maxReason = 4 << 10

// ErrReason is wrapped by errors about a Reason that does not say enough, or too much.
var ErrReason = errors.New("parking: an operator's action needs an actor of 1 to 255 bytes and a reason of 1 byte to 4 KiB, both text")

// Validate reports whether r can be kept. Ledgers call it.
func (r Reason) Validate() error {
	if !isText(r.Actor, inbox.MaxNameBytes) || !isText(r.Reason, maxReason) {
		return fmt.Errorf("%w: actor is %.64q, reason is %.64q", ErrReason, r.Actor, r.Reason)
	}
	return nil
}

func isText(s string, most int) bool {
	return strings.TrimSpace(s) != "" && len(s) <= most && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// Action is what an entry of the audit tells of.
type Action string

// The actions.
const (
	ActionRelease  Action = "release"
	ActionWithhold Action = "withhold"
	ActionSkip     Action = "skip"
)

// Entry is one line of the audit.
type Entry struct {
	N      int64
	At     time.Time
	Action Action
	Reason
	Consumer, Key string

	// Skipped is the message of a skip, as it was parked; else nil.
	Skipped *Message
}

// Redrive is what a redrive of dead letters does before it publishes one: a message that is parked is not
// published, since its claim would suppress it, but its key is released, and it runs in its turn. It reports
// whether the message was parked.
//
// A dead letter whose message was drained without this, after [Ledger.Release], becomes resolved if it is in the same database by
// then. Elsewhere it stays new. A redrive of it is a duplicate for as long as the inbox remembers the drain; after that it
// would take effect again. So there, redrive the letter instead of releasing the key, or mark it resolved.
func Redrive(ctx context.Context, l Ledger, r poison.Record, why Reason) (bool, error) {
	if r.Consumer == "" || r.MessageID == "" {
		return false, nil
	}
	key, _, found, err := l.Find(ctx, r.Consumer, r.MessageID)
	if err != nil || !found {
		return false, err
	}
	// It may have been drained in between: then it took effect, and there is nothing to redrive either.
	_, err = l.Release(ctx, r.Consumer, key, why)
	return err == nil, err
}

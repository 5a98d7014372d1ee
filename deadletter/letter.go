package deadletter

import (
	"fmt"
	"slices"
	"time"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
)

// State is where a dead letter is in its life.
type State string

// The states.
const (
	New       State = "new"       // nobody has done anything about it
	Redriving State = "redriving" // claimed by a redrive, which may have published it
	Redriven  State = "redriven"  // published to its consumer, confirmed
	Resolved  State = "resolved"  // replaced by an edited copy or a later death, or done with otherwise
	Discarded State = "discarded" // given up
)

// States are all of them, in the order of a life.
var States = []State{New, Redriving, Redriven, Resolved, Discarded}

// ParseState returns the state of that name.
func ParseState(name string) (State, error) {
	if s := State(name); slices.Contains(States, s) {
		return s, nil
	}
	return "", fmt.Errorf("state %q: want one of %q", name, States)
}

// Letter is a dead letter in the store.
type Letter struct {
	// Record is what the runtime wrote down. Where the letter was redacted it lacks what was taken out.
	poison.Record

	// Type is the event's type and Subject whose data it is, as far as they are known.
	Type, Subject string

	State State

	// Redacted says that the message itself is not stored as it was: a redrive needs the original from the broker.
	Redacted bool

	// Sealed says that it is stored encrypted. What Store.List returns has its ids, key and subject blinded then.
	Sealed bool

	// ClaimedBy is who redrives it, until ClaimedUntil by the database's clock.
	ClaimedBy    string
	ClaimedUntil time.Time

	// EditedFrom is the id of the letter that this one is an edited copy of.
	EditedFrom string

	// IndexedAt is when it came into the store, ChangedAt when its state last changed.
	IndexedAt, ChangedAt time.Time
}

// FailedAt is when the consumer gave up.
func (l *Letter) FailedAt() time.Time { return l.LastFailure }

// letterOf is a letter that is not in the store yet.
func letterOf(r poison.Record, subject string) Letter {
	l := Letter{Record: r, State: New, Subject: subject}
	if !r.Reference {
		l.Type, _ = event.TypeOf(r.Original())
	}
	return l
}

// Entry is one line of a letter's trail.
type Entry struct {
	// LetterID is whose trail it is.
	LetterID string
	// At is the database's clock.
	At time.Time
	// Actor did it, Reason is why, Batch names the run of a redrive.
	Actor, Reason, Batch string
	// Action tells what: "claim", "redrive", "release", "edit", "discard", "resolve", "purge", "supersede".
	Action string
	// Detail is the difference that an edit made, the id of another letter, or an error's text.
	Detail string
}

// The actions of an [Entry].
const (
	ActionClaim     = "claim"
	ActionRedrive   = "redrive"
	ActionRelease   = "release"
	ActionEdit      = "edit"
	ActionDiscard   = "discard"
	ActionResolve   = "resolve"
	ActionSupersede = "supersede"
	ActionPurge     = "purge"
)

// Group is the letters of one kind of failure.
type Group struct {
	Consumer, Topic, Type, ErrorType, Fingerprint string
	// Count is how many there are, New how many of these nobody has worked.
	Count, New int64
	// First and Last are when the first and the last of them failed.
	First, Last time.Time
	// Sample is the id of the last one, and Error its text.
	Sample, Error string
}

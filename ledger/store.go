package ledger

import (
	"context"
	"errors"
	"time"
)

// Run is one life of one process of a service.
type Run struct {
	// Service is whose ledger it is: replicas share it.
	Service string
	// ID is the run's own, random.
	ID string
	// Instance names the process across restarts.
	Instance string
}

// Key names a message to a consumer. Both are 1 to 255 bytes of UTF-8 without a NUL.
type Key struct{ Consumer, ID string }

// Start is one start of a message that ended with its process.
type Start struct {
	// Run and Instance tell which process died.
	Run, Instance string
	// At is when it was started, by the store's clock, in microseconds.
	At time.Time
	// Alone: nothing else ran, and the process had not announced its stop.
	Alone bool
}

// Suspect is a message that was in flight when a process died, or is in flight in another one.
type Suspect struct {
	Key
	// Starts are those that ended with their process, oldest first.
	Starts []Start
	// Elsewhere: another run that is not known to have ended has a start of it. It may have died just now.
	Elsewhere bool
}

// DeathsToConvict is how many deaths while alone convict.
const DeathsToConvict = 2

// Convicted tells whether enough of the starts were alone.
func (s Suspect) Convicted() bool {
	n := 0
	for _, start := range s.Starts {
		if start.Alone {
			n++
		}
	}
	return n >= DeathsToConvict
}

// known tells whether there is anything against a start beside others.
func (s Suspect) known() bool { return len(s.Starts) > 0 || s.Elsewhere }

// Terms bound what a store keeps.
type Terms struct {
	// TTL is how long a run lives after its last heartbeat.
	TTL time.Duration
	// Retention is how long a suspicion is kept.
	Retention time.Duration
	// MaxSuspects is how many starts of dead runs a service keeps, the newest; those that were alone are kept beyond it.
	MaxSuspects int
}

// Standing is what a store knows of a service.
type Standing struct {
	// Fresh: the service had no ledger before. Begin sets it.
	Fresh bool
	// Lost: the run had been taken for dead, and was taken up again with all its starts. Beat sets it.
	Lost bool
	// Alarms counts the unclean ends that were found; SinceAlarm is the time since the last one.
	Alarms     int64
	SinceAlarm time.Duration
	// Misses counts the last unclean ends in a row that left no start behind.
	Misses int
}

// ErrLost is returned by Record and Alone when the run is not there: it was taken for dead. Nothing was written.
// Beat takes it up again.
var ErrLost = errors.New("ledger: the run was taken for dead")

// ErrNotUsable is wrapped by the error of a store's Check when the store can never work as it is: it is not
// migrated, or too new, or the directory cannot be written. An error that does not wrap it may pass.
var ErrNotUsable = errors.New("the ledger's store is not usable")

// Store keeps runs and starts. Each method is atomic and durable when it has returned nil. A start of a run that
// is not there counts as one of a dead run at the latest when the next dead run is found. It is safe for
// concurrent use by any number of processes. Times are the store's.
type Store interface {
	// Check reports whether the store can be used; see [ErrNotUsable]. It changes nothing.
	Check(ctx context.Context) error

	// Begin registers run. It takes for dead the service's runs whose lease has run out and those of the same
	// instance: their starts become suspicions, not alone where the run had announced its stop. Each of them is an
	// alarm, but one that had announced its stop only if it left starts.
	Begin(ctx context.Context, run Run, terms Terms) (Standing, error)

	// Beat prolongs run, or takes it up again with its starts if it was taken for dead, and takes for dead the
	// runs whose lease has run out.
	Beat(ctx context.Context, run Run, terms Terms) (Standing, error)

	// Stopping announces that run is about to stop.
	Stopping(ctx context.Context, run Run) error

	// End removes run and its starts: a clean stop.
	End(ctx context.Context, run Run) error

	// Record removes the starts of run that are done and then adds those that have begun, without the suspects
	// among them and those that are Elsewhere, which it returns. The lists are at most [MaxRecord] long and
	// hold no key twice.
	Record(ctx context.Context, run Run, done, begun []Key) ([]Suspect, error)

	// Alone adds a start of key that is alone, or makes the one that run has such a start, unless key is
	// convicted or, without force, Elsewhere. It returns what was known of key before; without Starts it is not a
	// suspect.
	Alone(ctx context.Context, run Run, key Key, force bool) (Suspect, error)

	// Clear removes every suspicion of key, and run's own start of it.
	Clear(ctx context.Context, run Run, key Key) error

	// Suspects lists at most limit suspects, by key, but not those whose last start that ended with its process is older than
	// retention.
	Suspects(ctx context.Context, service string, retention time.Duration, limit int) ([]Key, error)
}

// MaxRecord is the longest list that [Store.Record] gets.
const MaxRecord = 256

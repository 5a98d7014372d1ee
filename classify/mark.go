package classify

import "time"

// mark is an error with a verdict on it.
type mark struct {
	err     error
	verdict Verdict
	after   time.Duration
	inOrder bool
	away    bool // see Unavailable
}

func (m *mark) Error() string { return m.err.Error() }
func (m *mark) Unwrap() error { return m.err }

// Permanent marks err as one that no later attempt can mend: the message is dead-lettered at once.
// It returns nil if err is nil. The text of err stays as it is, and errors.Is and errors.As see through the
// mark; this holds for all marks.
func Permanent(err error) error { return marked(err, VerdictPoison, 0) }

// Transient marks err as one that passes: the message is tried again after a backoff.
// It returns nil if err is nil.
func Transient(err error) error { return marked(err, VerdictRetry, 0) }

// RetryAfter marks err as one that passes, but not before d. If d is zero or less it is [Transient].
// It returns nil if err is nil. Whoever retries may bound d.
//
// Under the runtime a delay of at most Policy.MaxHold is waited for with the key held. A longer one is kept outside of the
// process, and later messages of the key go on meanwhile: by the broker where it can delay one message, else in the outbox of a
// relay that the runtime has. Without either the key is held, as far as Policy.Retry allows; beyond that the message is a
// dead letter. Where the consumer parks (ConsumerConfig.Park) the key is parked until then, and its order stays.
func RetryAfter(err error, d time.Duration) error {
	if d <= 0 {
		return Transient(err)
	}
	return marked(err, VerdictRetryAfter, d)
}

// RetryAfterInOrder is [RetryAfter] for a message that must not be overtaken by later ones of its key. Under the runtime the key
// is parked meanwhile, where the consumer parks (ConsumerConfig.Park), which costs nothing while it waits; else it is held,
// as far as Policy.Retry and the broker's patience allow.
func RetryAfterInOrder(err error, d time.Duration) error {
	err = RetryAfter(err, d)
	if m, ok := err.(*mark); ok && m.verdict == VerdictRetryAfter {
		m.inOrder = true
	}
	return err
}

// Unavailable marks err as one of something that everybody depends on: it passes, and it is not the message's fault. It is
// [Transient] but for what follows when the attempts are used up: the message is held and no dead letter, even while
// others succeed. The stores mark so what keeps their own statements from running. A handler that uses it for
// a dependency that not all messages need can hold up its consumer: the messages that need it fill the window.
// It returns nil if err is nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return &mark{err: err, verdict: VerdictRetry, away: true}
}

// Drop marks err as a reason to skip the message: it is acked, not retried and not dead-lettered.
// It returns nil if err is nil.
func Drop(err error) error { return marked(err, VerdictDrop, 0) }

// Stop marks err as a reason to stop and not as a failure of the message, which is left unsettled. A stage
// that knows that the runtime is stopping uses it. A handler that uses it ends the runtime's Run, with err:
// it found that the service cannot go on, whatever the message.
// It returns nil if err is nil.
func Stop(err error) error { return marked(err, VerdictStop, 0) }

func marked(err error, v Verdict, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &mark{err: err, verdict: v, after: after}
}

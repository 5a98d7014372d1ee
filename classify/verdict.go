package classify

import "time"

// Verdict says what to do with a message whose handling gave an error.
// The values are ordered: of the verdicts of a joined error the greatest wins.
type Verdict uint8

// The verdicts, from the mildest to the worst.
const (
	VerdictNone       Verdict = iota // there is no error
	VerdictDrop                      // skip the message: ack it, it has no effect and is not dead-lettered
	VerdictRetry                     // try again after a backoff
	VerdictRetryAfter                // try again, but not before Result.After has passed
	VerdictPoison                    // no attempt can succeed: dead-letter the message
	VerdictStop                      // the runtime is stopping: leave the message for a later delivery
)

var verdictNames = [...]string{"none", "drop", "retry", "retry_after", "poison", "stop"}

// String returns the verdict's name in lower case, as it appears in dead letters, metrics and logs.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "invalid"
}

// Result is what is known of an error.
type Result struct {
	Verdict Verdict

	// After is the least time to wait before the next attempt. It is positive if and only if the verdict
	// is VerdictRetryAfter.
	After time.Duration

	// InOrder says that no later message of the key is to be handled before that. It is false unless the verdict is
	// VerdictRetryAfter.
	InOrder bool

	// Unavailable says that something everybody depends on is away, such as the consumer's database: the message is not at
	// fault, however others fare meanwhile. It is false unless the verdict is VerdictRetry or VerdictRetryAfter.
	Unavailable bool

	// ErrorType names the kind of error for telemetry (the attribute error.type). See the
	// documentation of Standard for the set it comes from. It is empty if and only if there is no error.
	ErrorType string
}

// normal makes what a rule said consistent. It reports false if the rule said nothing of use.
func (r Result) normal() (Result, bool) {
	switch {
	case r.Verdict == VerdictNone || r.Verdict > VerdictStop:
		return Result{}, false
	case r.Verdict == VerdictRetryAfter && r.After <= 0:
		r.Verdict = VerdictRetry
	}
	if r.Verdict != VerdictRetryAfter {
		r.After, r.InOrder = 0, false
	}
	if !r.passes() {
		r.Unavailable = false
	}
	r.ErrorType = shortened(r.ErrorType)
	return r, true
}

// worse reports whether a decides over b.
func (r Result) worse(than Result) bool {
	if r.Verdict != than.Verdict {
		return r.Verdict > than.Verdict
	}
	return r.After > than.After
}

// passes reports whether another attempt may succeed.
func (r Result) passes() bool { return r.Verdict == VerdictRetry || r.Verdict == VerdictRetryAfter }

// over returns r, which decides over than: of two delays the longer one, in order if either asks for it, and an outage if
// either is one.
func (r Result) over(than Result) Result {
	if r.passes() && than.passes() {
		r.Unavailable = r.Unavailable || than.Unavailable
	}
	if r.Verdict == VerdictRetryAfter && than.Verdict == VerdictRetryAfter {
		r.InOrder = r.InOrder || than.InOrder
	}
	return r
}

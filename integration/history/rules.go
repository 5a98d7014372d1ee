package history

import "fmt"

// Rule names a promise.
type Rule string

// The rules. Each holds for every consumer by itself.
const (
	// Lost: a published message has no outcome at the end: no effect, no skip, no dead letter, not parked,
	// not discarded. Only judged in a history whose run was drained, see Options.Drained.
	Lost Rule = "lost"
	// DoubledEffect: a consumer that promises "once" has two effects of one message.
	DoubledEffect Rule = "doubled effect"
	// Inversion: the first outcome of a message came before that of an earlier message of its key. A
	// message that was redriven has left the order.
	Inversion Rule = "order inversion"
	// Overlap: two attempts of one key, or of one message, ran in one process at once.
	Overlap Rule = "overlap"
	// AckBeforeOutcome: a delivery was acked of which no effect, skip, dead letter or parking was certain.
	AckBeforeOutcome Rule = "ack before outcome"
	// EffectAfterRevoke: a process had an effect of a message of a partition that it had given back.
	EffectAfterRevoke Rule = "effect after revoke"
	// UnexplainedDuplicate: an attempt of a message that had an outcome before, or that ran elsewhere, with
	// no crash, release, lost partition, redrive or second publish to explain it.
	UnexplainedDuplicate Rule = "unexplained duplicate"
	// ParkedKeyOvertaken: a message of a key had an effect while an earlier one of this key was parked.
	ParkedKeyOvertaken Rule = "parked key overtaken"
	// Unknown: a record names a message that nobody published.
	Unknown Rule = "unknown message"
)

// Rules are all rules, in the order in which [Verdict] reports them.
var Rules = []Rule{
	Lost, DoubledEffect, Inversion, Overlap, AckBeforeOutcome, EffectAfterRevoke, UnexplainedDuplicate, ParkedKeyOvertaken, Unknown,
}

// Violation is one broken promise.
type Violation struct {
	Rule     Rule   `json:"rule"`
	Consumer string `json:"consumer,omitempty"`
	ID       string `json:"id,omitempty"`
	Key      string `json:"key,omitempty"`
	// At is the index of the record that shows it; -1: the end of the history.
	At int `json:"at"`
	// What happened, in words.
	What string `json:"what"`
}

// String gives the violation as one line.
func (v Violation) String() string {
	where := "at the end"
	if v.At >= 0 {
		where = fmt.Sprintf("at record %d", v.At+1)
	}
	return fmt.Sprintf("%s: consumer %q, message %q, key %q, %s: %s", v.Rule, v.Consumer, v.ID, v.Key, where, v.What)
}

// Verdict is what [Check] found.
type Verdict struct {
	// Violations in the order of the history, those of the end last. At most Options.Limit of each rule.
	Violations []Violation `json:"violations"`
	// Counts of the records, by kind; Broken, of violations by rule, beyond the limit too.
	Counts map[Kind]int `json:"counts"`
	Broken map[Rule]int `json:"broken"`
	// Explained is how many second attempts and effects a crash or the like explains.
	Explained int `json:"explained"`
}

// OK tells that no promise was broken.
func (v Verdict) OK() bool { return len(v.Broken) == 0 }

// Options say what was promised.
type Options struct {
	// Once names the consumers whose effects are promised to happen once (an inbox in the effect's
	// transaction); the others are at-least-once. All: every consumer.
	Once []string
	All  bool
	// Unordered names the consumers without a promise of order.
	Unordered []string
	// Drained says that everything published was to be handled by the end.
	Drained bool
	// Limit bounds the violations that are kept of each rule. Default 20.
	Limit int
}

package classify

// Rule judges an error, or passes by returning false. It is given the error as it was returned, with all
// that it wraps, so it should look with errors.Is and errors.As; the branches of a joined error are given to
// it one by one. It must be safe for concurrent use and should be pure: no clock, no I/O.
//
// An answer without a verdict counts as none. Without an ErrorType the answer gets the one that
// [Standard] would give; a rule's own ErrorType should come from a small set and is cut at 64 bytes.
type Rule func(err error) (Result, bool)

// Classifier judges errors by rules. It does not change after it was made and is safe for concurrent use.
// A nil *Classifier is the default one, which knows marks and [Standard] only.
type Classifier struct {
	before []Rule
	after  []Rule
}

// New returns a classifier that asks the rules in order, and then [Standard].
// It panics if a rule is nil, as that is a mistake of wiring.
func New(rules ...Rule) *Classifier {
	return &Classifier{before: copied(nil, rules)}
}

// Fallback returns a classifier like c that asks more rules about the errors that neither c's rules nor
// [Standard] know, before they are retried as unknown. It panics if a rule is nil.
func (c *Classifier) Fallback(rules ...Rule) *Classifier {
	if c == nil {
		c = &Classifier{}
	}
	return &Classifier{before: c.before, after: copied(c.after, rules)}
}

func copied(have, rules []Rule) []Rule {
	all := make([]Rule, 0, len(have)+len(rules))
	all = append(all, have...)
	for _, rule := range rules {
		if rule == nil {
			panic("classify: a rule is nil")
		}
		all = append(all, rule)
	}
	return all
}

// Classify judges err; see the package's documentation for how. It never panics. For nil it returns the
// zero Result, and for an error never VerdictNone.
func (c *Classifier) Classify(err error) Result {
	if err == nil {
		return Result{}
	}
	w := walk{left: maxErrors}
	if c != nil {
		w.before, w.after = c.before, c.after
	}
	r, _ := w.judge(err, 0)
	if r.Verdict == VerdictNone {
		r.Verdict = VerdictRetry
	}
	if r.ErrorType == "" {
		r.ErrorType = nameOther
	}
	return r
}

package classify

import "cmp"

const (
	maxErrors = 1000 // errors that one walk looks at
	maxDepth  = 100  // errors below one another
)

// walk is one run over the tree of an error.
type walk struct {
	before, after []Rule
	left          int // errors that may still be looked at
}

// judge returns what is known of err, which is not nil: VerdictNone, at best with a name, if that is nothing.
//
// open says that rules may be asked about whatever wraps err too. They may not if err has a mark, as they
// look through it, nor if a part of the tree was out of reach, as errors.Is does not end in a tree that
// leads back to itself.
func (w *walk) judge(err error, depth int) (r Result, open bool) {
	var (
		own      Result  // what is known of the chain, down to where it branches
		guess    Result  // what the standard rules guess of it when they know nothing
		name     string  // the type of the innermost error that has a name
		branches []error // of the joined error at the chain's end
	)
	open = true
	for node := err; node != nil; depth++ {
		if depth >= maxDepth || w.left <= 0 {
			open = false
			break
		}
		w.left--
		if m, ok := node.(*mark); ok {
			r = Result{Verdict: m.verdict, After: m.after, InOrder: m.inOrder, Unavailable: m.away, ErrorType: own.ErrorType}
			if r.ErrorType == "" {
				below, _ := w.judge(m.err, depth+1)
				r.ErrorType = cmp.Or(below.ErrorType, guess.ErrorType, name)
			}
			return r, false
		}
		if !isWrapper(node) {
			if own.Verdict == VerdictNone {
				if k := known(node); k.Verdict != VerdictNone || own.ErrorType == "" {
					own = k
				}
			}
			if own.Verdict == VerdictNone && guess.Verdict == VerdictNone {
				guess = guessed(node)
			}
			name = cmp.Or(typeName(node), name)
		}
		node, branches = unwrap(node)
	}
	if own.Verdict == VerdictNone && guess.Verdict != VerdictNone {
		own = guess.named(own.ErrorType)
	}
	below, all := w.worst(branches, depth)
	open = open && all
	own = own.named(cmp.Or(below.ErrorType, name))
	below = below.named(own.ErrorType)

	if open {
		if r, ok := ask(w.before, err); ok {
			own = r.named(own.ErrorType)
		}
	}
	switch {
	case below.worse(own):
		return below.over(own), open
	case own.Verdict == VerdictNone && open:
		if r, ok := ask(w.after, err); ok {
			own = r.named(own.ErrorType)
		}
	}
	return own.over(below), open
}

// worst returns the worst of what is known of the branches, or VerdictNone if nothing is known of any.
// If something is, those that nothing knows count as Retry. open is as in judge.
func (w *walk) worst(branches []error, depth int) (worst Result, open bool) {
	open = true
	var (
		unknown bool
		name    string // of the first unknown branch that has one
	)
	for _, branch := range branches {
		if branch == nil {
			continue
		}
		if w.left <= 0 {
			unknown, open = true, false
			break
		}
		r, branchOpen := w.judge(branch, depth)
		open = open && branchOpen
		if r.Verdict == VerdictNone {
			unknown, name = true, cmp.Or(name, r.ErrorType)
		} else if r.worse(worst) {
			worst = r.over(worst)
		} else {
			if !worst.worse(r) {
				worst = worst.named(r.ErrorType)
			}
			worst = worst.over(r)
		}
	}
	switch {
	case worst.Verdict == VerdictNone:
		worst.ErrorType = name
	case unknown && worst.Verdict < VerdictRetry:
		worst = retry(name)
	}
	return worst, open
}

// named gives r a name if it has none.
func (r Result) named(name string) Result {
	r.ErrorType = cmp.Or(r.ErrorType, name)
	return r
}

package classify

const (
	maxErrors = 1000 // errors that one walk looks at
	maxDepth  = 100  // errors below one another
)

// walk is one run over the tree of an error.
type walk struct {
	before, after []Rule
	left          int // errors that may still be looked at
}

// judge returns what is known of err, which is not nil, or VerdictNone with at best a name.
func (w *walk) judge(err error, depth int) Result {
	var (
		std      Result  // what the standard rules say of the chain, down to where it branches
		std2     Result  // what they guess when they know nothing
		name     string  // the type of the innermost error that has a name
		branches []error // of the joined error at the chain's end
	)
	for node := err; node != nil; depth++ {
		if depth >= maxDepth || w.left <= 0 {
			break
		}
		w.left--
		if m, ok := node.(*mark); ok {
			return w.marked(m, depth, std.ErrorType)
		}
		if std.Verdict == VerdictNone {
			std = known(node)
		}
		if std2.Verdict == VerdictNone {
			std2 = guessed(node)
		}
		if n := typeName(node); n != "" {
			name = n
		}
		node, branches = unwrap(node)
	}
	if std.Verdict == VerdictNone {
		std = std2
	}
	if std.ErrorType == "" {
		std.ErrorType = name
	}
	if below := w.worst(branches, depth); below.Verdict != VerdictNone {
		if std.worse(below) {
			return std
		}
		return below
	}
	if r, ok := ask(w.before, err); ok {
		return r.named(std.ErrorType)
	}
	if std.Verdict != VerdictNone {
		return std
	}
	if r, ok := ask(w.after, err); ok {
		return r.named(std.ErrorType)
	}
	return std
}

// marked returns the verdict of a mark, with the name of what it wraps.
func (w *walk) marked(m *mark, depth int, above string) Result {
	r := Result{Verdict: m.verdict, After: m.after, ErrorType: above}
	if r.ErrorType == "" {
		r.ErrorType = w.judge(m.err, depth+1).ErrorType
	}
	return r
}

// worst returns the worst of what is known of the branches. Those that nothing knows count as Retry,
// if anything is known of another.
func (w *walk) worst(branches []error, depth int) Result {
	var worst Result
	unknown := false
	for _, branch := range branches {
		if branch == nil {
			continue
		}
		if w.left <= 0 {
			unknown = true
			break
		}
		r := w.judge(branch, depth)
		if r.Verdict == VerdictNone {
			unknown = true
		} else if r.worse(worst) {
			worst = r
		}
	}
	if unknown && worst.Verdict == VerdictDrop {
		return Result{Verdict: VerdictRetry, ErrorType: nameOther}
	}
	return worst
}

// named gives r a name if it has none.
func (r Result) named(name string) Result {
	if r.ErrorType == "" {
		r.ErrorType = name
	}
	return r
}

// ask returns the first answer of the rules.
func ask(rules []Rule, err error) (Result, bool) {
	for _, rule := range rules {
		if r, ok := answer(rule, err); ok {
			return r, true
		}
	}
	return Result{}, false
}

// answer asks one rule. A rule that panics, most likely by a method of the error, has not answered.
func answer(rule Rule, err error) (r Result, ok bool) {
	defer func() {
		if recover() != nil {
			r, ok = Result{}, false
		}
	}()
	r, ok = rule(err)
	if !ok {
		return Result{}, false
	}
	return r.normal()
}

// unwrap returns what err wraps: one error, or several, or nothing. An Unwrap that panics, such as that of
// a typed nil, wraps nothing.
func unwrap(err error) (one error, several []error) {
	defer func() {
		if recover() != nil {
			one, several = nil, nil
		}
	}()
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		return x.Unwrap(), nil
	case interface{ Unwrap() []error }:
		return nil, x.Unwrap()
	}
	return nil, nil
}

package classify

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
func unwrap(err error) (one error, several []error) { //nolint:staticcheck // ST1008: both results are data, not outcomes
	defer func() {
		if recover() != nil {
			one, several = nil, nil
		}
	}()
	switch x := err.(type) {
	case interface{ WrappedErrors() []error }: // go-multierror, whose Unwrap shows one at a time
		return nil, x.WrappedErrors()
	case interface{ Unwrap() error }:
		return x.Unwrap(), nil
	case interface{ Unwrap() []error }:
		return nil, x.Unwrap()
	}
	return nil, nil
}

package classify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
)

// program builds an error from bytes, each of which is one step.
type program struct {
	code  []byte
	depth int
}

func (p *program) next() byte {
	if len(p.code) == 0 {
		return 0
	}
	b := p.code[0]
	p.code = p.code[1:]
	return b
}

func (p *program) build() error {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > 40 || len(p.code) == 0 {
		return errStolen
	}
	switch op := p.next(); op % 24 {
	case 0:
		return errStolen
	case 1:
		return io.EOF
	case 2:
		return context.Canceled
	case 3:
		return &json.SyntaxError{}
	case 4:
		return state(fmt.Sprintf("%c%c%c%c%c", p.next(), p.next(), p.next(), p.next(), p.next()))
	case 5:
		return &Status{Code: int(p.next()) + int(p.next()), After: time.Duration(int8(p.next())), Cause: p.build()}
	case 6:
		return hostile{}
	case 7:
		return (*LimitError)(nil)
	case 8:
		return classify.Permanent(p.build())
	case 9:
		return classify.Transient(p.build())
	case 10:
		return classify.RetryAfter(p.build(), time.Duration(int8(p.next())))
	case 11:
		return classify.Drop(p.build())
	case 12:
		return classify.Stop(p.build())
	case 13:
		return &classify.PanicError{Value: p.build()}
	case 14:
		return &LimitError{Cause: p.build()}
	case 15:
		return timeout{cause: p.build()}
	case 16:
		return fmt.Errorf("w: %w", p.build())
	case 17, 18:
		return errors.Join(p.build(), p.build())
	case 19:
		return fmt.Errorf("%w %w %w", p.build(), p.build(), p.build())
	case 20:
		self := &ring{}
		self.next = self
		return self
	case 21:
		self := &web{}
		self.next = []error{self, p.build()}
		return self
	case 22:
		return nested{[]error{p.build(), nil}}
	default:
		return panicsInIs{p.build()}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add([]byte{0}, []byte{1})
	f.Add([]byte{17, 11, 1, 8, 3}, []byte{16, 12, 2})
	f.Add([]byte{4, '4', '0', '0', '0', '1'}, []byte{4, '2', '3', '5', '0', '5'})
	f.Add([]byte{5, 250, 250, 3, 1}, []byte{10, 16, 1, 60})
	f.Add([]byte{19, 20, 21, 6, 7}, []byte{13, 8, 22, 14, 15, 16, 17, 18, 23})
	classifiers := map[string]*classify.Classifier{
		"default": nil,
		"rules": classify.New(is(io.EOF, classify.Result{Verdict: drop}), classify.RetryPanics).
			Fallback(all(classify.Result{Verdict: poison, ErrorType: "fallback"})),
	}
	f.Fuzz(func(t *testing.T, left, right []byte) {
		if len(left)+len(right) > 200 {
			return // beyond that the walk's limits begin to show
		}
		a, b := (&program{code: left}).build(), (&program{code: right}).build()
		for name, c := range classifiers {
			ra, rb := c.Classify(a), c.Classify(b)
			for _, r := range []classify.Result{ra, rb} {
				if r.Verdict == none || r.Verdict > stop || (r.After > 0) != (r.Verdict == retryAfter) ||
					r.After < 0 || r.ErrorType == "" || len(r.ErrorType) > 64 {
					t.Fatalf("%s: %v %v: inconsistent result %+v", name, left, right, r)
				}
			}
			if again := c.Classify(a); again != ra {
				t.Fatalf("%s: %v: %+v at first, then %+v", name, left, ra, again)
			}
			if limited(a) || limited(b) {
				continue
			}
			if r := c.Classify(&wrapper{&wrapper{a}}); r != ra {
				t.Fatalf("%s: %v: %+v, wrapped %+v", name, left, ra, r)
			}
			joined := c.Classify(&web{[]error{a, b}})
			if joined.Verdict < max(ra.Verdict, rb.Verdict) || joined.After < max(ra.After, rb.After) && joined.Verdict == retryAfter {
				t.Fatalf("%s: %v joined with %v: %+v, weaker than %+v or %+v", name, left, right, joined, ra, rb)
			}
		}
	})
}

// wrapper is what fmt.Errorf("%w") makes, without asking the wrapped error for its text.
type wrapper struct{ err error }

func (w *wrapper) Error() string { return "wrapper" }
func (w *wrapper) Unwrap() error { return w.err }

// limited reports whether err, wrapped twice, may meet the limits of the walk.
func limited(err error) bool {
	left := 400
	var walk func(err error, depth int) bool
	walk = func(err error, depth int) bool {
		left--
		if depth > 80 || left < 0 {
			return true
		}
		switch x := err.(type) {
		case hostile, *LimitError:
			if l, ok := err.(*LimitError); ok && l != nil {
				return walk(l.Cause, depth+1)
			}
			return false
		case nested:
			return walk(x.errs[0], depth+1)
		case interface{ Unwrap() error }:
			if e := x.Unwrap(); e != nil {
				return walk(e, depth+1)
			}
		case interface{ Unwrap() []error }:
			for _, e := range x.Unwrap() {
				if e != nil && walk(e, depth+1) {
					return true
				}
			}
		}
		return false
	}
	return walk(err, 0)
}

package kafka

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// A delivery ends while its handler asks for the first time. One that looks as if it went on after it has ended lets a stage begin what
// nobody will take.
func TestEndedContextStaysEnded(t *testing.T) {
	for range 2000 {
		c := &lazyContext{parent: t.Context()}
		var asking sync.WaitGroup
		for range 2 {
			asking.Go(func() {
				for c.Err() == nil {
				}
				if err := c.Err(); !errors.Is(err, context.Canceled) {
					t.Errorf("the error of a context that has ended became %v, want %v", err, context.Canceled)
				}
			})
		}
		asking.Go(func() { <-c.Done() })
		c.end()
		asking.Wait()
		if t.Failed() {
			return
		}
	}
}

// What a handler derives from its context, before or after the delivery has ended, ends with it, for the parent's cause if that is why.
func TestChildOfALazyContextEndsWithIt(t *testing.T) {
	errLate := errors.New("late")
	for _, end := range []string{"end", "parent"} {
		for _, early := range []bool{true, false} {
			parent, cancel := context.WithCancelCause(t.Context())
			c := &lazyContext{parent: parent}
			derive := func() context.Context {
				child, stop := context.WithCancel(c)
				t.Cleanup(stop)
				return child
			}
			child := context.Context(nil)
			if early {
				child = derive()
			}
			want := context.Canceled
			if end == "end" {
				c.end()
			} else {
				cancel(errLate)
				want = errLate
			}
			if !early {
				child = derive()
			}
			<-child.Done()
			if err, cause := c.Err(), context.Cause(child); !errors.Is(err, context.Canceled) || !errors.Is(cause, want) {
				t.Errorf("ended by %s, derived before %v: error %v, cause %v; want %v, %v", end, early, err, cause, context.Canceled, want)
			}
			cancel(nil)
		}
	}
}

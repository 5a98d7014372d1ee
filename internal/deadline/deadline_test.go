package deadline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace-go/headrace/internal/deadline"
)

type key struct{}

// Whoever looks at it, the lazy context must be indistinguishable from the standard library's.
func TestContextBehavesAsWithDeadline(t *testing.T) {
	type lazy interface {
		context.Context
		Stop()
	}
	observe := func(make func(parent context.Context) (context.Context, func()), arm bool, end string) string {
		var seen string
		synctest.Test(t, func(*testing.T) {
			parent, cancelParent := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
			defer cancelParent()
			start := time.Now()
			ctx, stop := make(parent)
			defer stop()
			child := ctx
			if arm {
				c, cancel := context.WithCancel(ctx)
				defer cancel()
				child = c
			}
			note := func(when string) {
				d, ok := ctx.Deadline()
				seen += fmt.Sprintf("%s: err %v, child %v, deadline %v %v, value %v\n", when, ctx.Err(), child.Err(), d.Sub(start), ok, ctx.Value(key{}))
			}
			note("start")
			time.Sleep(time.Second - 1)
			note("before")
			switch end {
			case "deadline":
				time.Sleep(1)
			case "parent":
				cancelParent()
			case "stop":
				stop()
			}
			synctest.Wait()
			note("after")
			<-ctx.Done()
			synctest.Wait()
			time.Sleep(time.Hour)
			note("later")
		})
		return seen
	}
	for _, end := range []string{"deadline", "parent", "stop"} {
		for _, arm := range []bool{false, true} {
			want := observe(func(p context.Context) (context.Context, func()) {
				return context.WithDeadline(p, time.Now().Add(time.Second))
			}, arm, end)
			got := observe(func(p context.Context) (context.Context, func()) {
				c := deadline.New(p, time.Now().Add(time.Second))
				return c, lazy(c).Stop
			}, arm, end)
			if got != want {
				t.Errorf("end by %s, armed %v:\n%swant\n%s", end, arm, got, want)
			}
		}
	}
}

func TestExpiredTellsTheDeadlineFromOtherEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, arm := range []bool{false, true} {
			for _, end := range []string{"nothing", "deadline", "parent", "stop"} {
				parent, cancel := context.WithCancel(t.Context())
				c := deadline.New(parent, time.Now().Add(time.Second))
				if arm {
					_ = c.Done()
				}
				switch end {
				case "deadline":
					time.Sleep(time.Second)
				case "parent":
					cancel()
				case "stop":
					c.Stop()
				}
				synctest.Wait()
				if got, want := c.Expired(), end == "deadline"; got != want {
					t.Errorf("armed %v, ended by %s: Expired is %v, want %v", arm, end, got, want)
				}
				c.Stop()
				cancel()
			}
		}
	})
}

func TestParentsCauseIsKept(t *testing.T) {
	cause := errors.New("partition lost")
	parent, cancel := context.WithCancelCause(t.Context())
	c := deadline.New(parent, time.Now().Add(time.Hour))
	defer c.Stop()
	cancel(cause)
	if got := context.Cause(c); got != cause {
		t.Errorf("unarmed: cause is %v, want %v", got, cause)
	}
	<-c.Done()
	if got := context.Cause(c); got != cause {
		t.Errorf("armed: cause is %v, want %v", got, cause)
	}
}

func BenchmarkUnused(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.Run("deadline", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			deadline.New(ctx, time.Now().Add(time.Minute)).Stop()
		}
	})
	b.Run("context", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, stop := context.WithDeadline(ctx, time.Now().Add(time.Minute))
			stop()
		}
	})
}

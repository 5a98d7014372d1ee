package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/ledger"
)

// TestR5RandomSchedules runs the real thing under random schedules: messages that kill, fail and take their time,
// in processes that are also killed once from outside, and deployed once.
func TestR5RandomSchedules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := schedule{
			messages: rapid.IntRange(2, 40).Draw(rt, "messages"),
			takes:    rapid.SliceOfN(rapid.IntRange(0, 20), 40, 40).Draw(rt, "takes ms"),
			fails:    rapid.SliceOfN(rapid.IntRange(0, 2), 40, 40).Draw(rt, "fails"),
			kill:     rapid.IntRange(0, 6).Draw(rt, "killed in life"),
			deploy:   rapid.IntRange(0, 6).Draw(rt, "deployed in life"),
			when:     rapid.IntRange(0, 30).Draw(rt, "ms after its start"),
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "killers") {
			s.killers = append(s.killers, rapid.IntRange(0, s.messages-1).Draw(rt, fmt.Sprint("killer ", i)))
		}
		wrong := ""
		synctest.Test(t, func(t *testing.T) { wrong = s.run(t) })
		if wrong != "" {
			rt.Fatalf("%+v: %s", s, wrong)
		}
	})
}

type schedule struct {
	messages     int
	killers      []int
	takes, fails []int
	kill, deploy int // the life in which it happens; 0: never
	when         int
}

// run plays the schedule until every message is settled and tells what went wrong.
func (s schedule) run(t *testing.T) string {
	store := settled(t)
	starts, left := map[int]int{}, map[int]bool{}
	for i := range s.messages {
		left[i] = true
	}
	killer := map[int]bool{}
	for _, k := range s.killers {
		killer[k] = true
	}
	for n := 1; len(left) > 0; n++ {
		if n > 5*len(killer)+10 {
			return fmt.Sprintf("after %d lives %d messages are left", n, len(left))
		}
		l := begin(t, store, nil)
		results := map[int]<-chan error{}
		mine := make([]int, s.messages) // of each message its own goroutine's
		for i := range left {
			results[i] = l.goes(fmt.Sprint(i), func(ctx context.Context) error {
				if l.store.dead.Load() {
					return errDead // the process was gone before
				}
				mine[i]++
				select {
				case <-time.After(time.Duration(s.takes[i]) * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				switch {
				case killer[i]:
					return l.kills(ctx)
				case n <= s.fails[i]:
					return errBroken
				}
				return nil
			})
		}
		switch n {
		case s.kill:
			time.Sleep(time.Duration(s.when) * time.Millisecond)
			l.store.dead.Store(true)
			l.cancel()
		case s.deploy:
			time.Sleep(time.Duration(s.when) * time.Millisecond)
			l.Stopping()
			synctest.Wait()
		}
		l.work.Wait()
		for i, result := range results {
			starts[i] += mine[i]
			switch err := <-result; {
			case errors.As(err, new(*ledger.CrashLoopError)):
				if !killer[i] {
					return fmt.Sprintf("message %d was convicted, though it kills nobody: %v", i, err)
				}
				delete(left, i)
			case err == nil:
				if killer[i] {
					return fmt.Sprintf("killer %d succeeded", i)
				}
				delete(left, i)
			}
		}
		if l.store.dead.Load() {
			l.die()
		} else {
			l.stop()
		}
	}
	for k := range killer {
		if starts[k] > 6 { // four, and one each for the deploy and the kill from outside
			return fmt.Sprintf("killer %d was started %d times", k, starts[k])
		}
	}
	return ""
}

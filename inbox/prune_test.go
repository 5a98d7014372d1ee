package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace-go/headrace/inbox"
)

// claims is a database that holds claims by age and notes what it was asked.
type claims struct {
	inbox.Database
	made  []time.Time
	calls []time.Time
	limit int
	err   error
	takes time.Duration // one statement
}

func (c *claims) Prune(ctx context.Context, before time.Time, limit int) (int, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		return 0, errors.New("a statement without a time limit")
	}
	c.calls, c.limit = append(c.calls, time.Now()), limit
	time.Sleep(c.takes)
	if c.err != nil {
		return 0, c.err
	}
	n := 0
	for n < limit && n < len(c.made) && c.made[n].Before(before) {
		n++
	}
	c.made = c.made[n:]
	return n, nil
}

func pruner(t *testing.T, db inbox.Database, config inbox.PrunerConfig) *inbox.Pruner {
	t.Helper()
	p, err := inbox.NewPruner(db, config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPruneDeletesInBatchesWhatIsTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &claims{}
		for age := 10; age > 0; age-- {
			db.made = append(db.made, time.Now().Add(-time.Duration(age)*time.Hour-time.Minute))
		}
		n, err := pruner(t, db, inbox.PrunerConfig{Retention: 3 * time.Hour, Batch: 3}).Prune(t.Context())
		if n != 8 || err != nil || len(db.calls) != 3 || db.limit != 3 {
			t.Errorf("Prune = %d, %v in %d statements of %d; want 8 in 3 of 3", n, err, len(db.calls), db.limit)
		}
	})
}

// Statement after statement without a pause would leave claims half of a slow database at best.
func TestPruneRestsAfterEachBatch(t *testing.T) {
	for _, test := range []struct{ takes, rests time.Duration }{
		{200 * time.Millisecond, 200 * time.Millisecond},
		{5 * time.Second, time.Second}, // else a slow database would never be pruned
	} {
		synctest.Test(t, func(t *testing.T) {
			old := time.Now().Add(-2 * time.Hour)
			db := &claims{takes: test.takes, made: []time.Time{old, old, old, old, old}}
			p := pruner(t, db, inbox.PrunerConfig{Retention: time.Hour, Batch: 2})
			if n, err := p.Prune(t.Context()); n != 5 || err != nil || len(db.calls) != 3 {
				t.Fatalf("Prune = %d, %v in %d statements; want 5 in 3", n, err, len(db.calls))
			}
			for i, at := range db.calls[1:] {
				if rested := at.Sub(db.calls[i]) - test.takes; rested != test.rests {
					t.Errorf("rested %v after a statement that took %v, want %v", rested, test.takes, test.rests)
				}
			}
		})
	}
}

func TestPrunerRestsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := time.Now().Add(-2 * time.Hour)
		db := &claims{takes: time.Second, made: []time.Time{old, old, old}}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		began := time.Now()
		n, err := pruner(t, db, inbox.PrunerConfig{Retention: time.Hour, Batch: 1}).Prune(ctx)
		if took := time.Since(began); n != 1 || !errors.Is(err, context.DeadlineExceeded) || took != 1500*time.Millisecond {
			t.Errorf("Prune = %d, %v after %v; want 1 and the context's error after 1.5s", n, err, took)
		}
	})
}

func TestPrunerRunsAtTheIntervalUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &claims{err: errors.New("database is down")} // which does not end it
		p := pruner(t, db, inbox.PrunerConfig{Interval: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		start, ended := time.Now(), make(chan error)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(10*time.Hour + time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v; want nil", err)
		}
		if n := len(db.calls); n < 9 || n > 12 {
			t.Fatalf("%d rounds in ten hours, want about 10", n)
		}
		last := db.calls[0]
		if wait := last.Sub(start); wait > 6*time.Minute {
			t.Errorf("the first round was after %s, want it within a tenth of the interval", wait)
		}
		spread := map[time.Duration]bool{}
		for _, at := range db.calls[1:] {
			wait := at.Sub(last)
			last, spread[wait] = at, true
			if wait < 54*time.Minute || wait > 66*time.Minute {
				t.Errorf("waited %s, want an hour and at most a tenth more or less", wait)
			}
		}
		if len(spread) < 2 {
			t.Errorf("every wait was %v: replicas prune in step", spread)
		}
	})
}

func TestNewPrunerNamesWhatIsWrong(t *testing.T) {
	_, err := inbox.NewPruner(nil, inbox.PrunerConfig{Retention: -1, Interval: time.Microsecond, Batch: -2})
	for _, want := range []string{"db is nil", "Retention -1ns", "Interval 1µs", "Batch -2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewPruner: %v; want an error with %q", err, want)
		}
	}
}

func TestMarginIsWhatIsRememberedBeyondTheOldestRedelivery(t *testing.T) {
	const hour = time.Hour
	horizon := inbox.Horizon{Broker: 3 * hour, Retry: hour, DeadLetters: 2 * hour}
	for _, test := range []struct {
		name                    string
		oldest, retention, want time.Duration
		horizon                 inbox.Horizon
	}{
		{"nothing was claimed yet", 0, 10 * hour, 4 * hour, horizon},
		{"nothing was pruned yet", 2 * hour, 10 * hour, 4 * hour, horizon},
		{"pruning does not keep up", 12 * hour, 10 * hour, 6 * hour, horizon},
		{"forgets too early", 5 * hour, 5 * hour, -hour, horizon},
		{"nothing is known of redeliveries", hour, 10 * hour, 10 * hour, inbox.Horizon{}},
		{"no bound of redeliveries", hour, hour, hour - math.MaxInt64, inbox.Horizon{Broker: math.MaxInt64, Retry: hour}},
	} {
		if got := (inbox.Stats{Oldest: test.oldest}).Margin(test.retention, test.horizon); got != test.want {
			t.Errorf("%s: margin %v, want %v", test.name, got, test.want)
		}
	}
}

func TestHorizonNamesBothNumbers(t *testing.T) {
	for _, tc := range []struct {
		name      string
		horizon   inbox.Horizon
		retention time.Duration
		want      []string
	}{
		{"long enough", inbox.Horizon{Broker: time.Hour, Retry: time.Minute, DeadLetters: time.Hour}, 2*time.Hour + time.Minute, nil},
		{"a second short", inbox.Horizon{Broker: time.Hour, Retry: time.Minute, DeadLetters: time.Hour}, 2*time.Hour + 59*time.Second, []string{"2h0m59s", "2h1m0s", "broker 1h0m0s", "retries 1m0s", "dead letters 1h0m0s"}},
		{"nothing known", inbox.Horizon{}, time.Nanosecond, nil},
		{"overflow", inbox.Horizon{Broker: math.MaxInt64, Retry: 1}, time.Hour, []string{"1h0m0s", time.Duration(math.MaxInt64).String()}},
		{"negative parts count as nothing", inbox.Horizon{Broker: -time.Hour, Retry: time.Minute}, time.Second, []string{"1s", "1m0s"}},
	} {
		err := tc.horizon.Check(tc.retention)
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%s: Check(%s) = %v, want an error: %t", tc.name, tc.retention, err, tc.want != nil)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: error %q lacks %q", tc.name, err, w)
			}
		}
	}
}

func ExampleHorizon_Check() {
	h := inbox.Horizon{Broker: 7 * 24 * time.Hour, Retry: time.Hour, DeadLetters: 14 * 24 * time.Hour}
	fmt.Println(h.Check(10 * 24 * time.Hour))
	// Output: inbox retention 240h0m0s is shorter than the oldest redelivery 505h0m0s (broker 168h0m0s + retries 1h0m0s + dead letters 336h0m0s): an older one would take effect again
}

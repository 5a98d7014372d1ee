package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/stores/testonly"
)

var (
	errDead   = errors.New("the process is dead")
	errAway   = errors.New("the database is away")
	errBroken = errors.New("broken")
)

// mortal is a store as one process sees it: when the process is dead, nothing gets through. It counts what is
// written for messages.
type mortal struct {
	ledger.Store
	dead, away, hang atomic.Bool
	records, alone   atomic.Int64
	slow             time.Duration // of a commit
}

func (m *mortal) up(ctx context.Context) error {
	switch {
	case m.dead.Load():
		return errDead
	case m.hang.Load():
		<-ctx.Done()
		return ctx.Err()
	case m.away.Load():
		return errAway
	}
	return nil
}

func (m *mortal) Check(ctx context.Context) error {
	if err := m.up(ctx); err != nil {
		return err
	}
	return m.Store.Check(ctx)
}

func (m *mortal) Begin(ctx context.Context, r ledger.Run, t ledger.Terms) (ledger.Standing, error) {
	if err := m.up(ctx); err != nil {
		return ledger.Standing{}, err
	}
	return m.Store.Begin(ctx, r, t)
}

func (m *mortal) Beat(ctx context.Context, r ledger.Run, t ledger.Terms) (ledger.Standing, error) {
	if err := m.up(ctx); err != nil {
		return ledger.Standing{}, err
	}
	return m.Store.Beat(ctx, r, t)
}

func (m *mortal) Stopping(ctx context.Context, r ledger.Run) error {
	if err := m.up(ctx); err != nil {
		return err
	}
	return m.Store.Stopping(ctx, r)
}

func (m *mortal) End(ctx context.Context, r ledger.Run) error {
	if err := m.up(ctx); err != nil {
		return err
	}
	return m.Store.End(ctx, r)
}

func (m *mortal) Record(ctx context.Context, r ledger.Run, done, begun []ledger.Key) ([]ledger.Suspect, error) {
	if err := m.up(ctx); err != nil {
		return nil, err
	}
	time.Sleep(m.slow)
	m.records.Add(1)
	return m.Store.Record(ctx, r, done, begun)
}

func (m *mortal) Alone(ctx context.Context, r ledger.Run, k ledger.Key, force bool) (ledger.Suspect, error) {
	if err := m.up(ctx); err != nil {
		return ledger.Suspect{}, err
	}
	m.alone.Add(1)
	return m.Store.Alone(ctx, r, k, force)
}

func (m *mortal) Clear(ctx context.Context, r ledger.Run, k ledger.Key) error {
	if err := m.up(ctx); err != nil {
		return err
	}
	return m.Store.Clear(ctx, r, k)
}

func (m *mortal) Suspects(ctx context.Context, service string, retention time.Duration, limit int) ([]ledger.Key, error) {
	if err := m.up(ctx); err != nil {
		return nil, err
	}
	return m.Store.Suspects(ctx, service, retention, limit)
}

// life is one process.
type life struct {
	*ledger.Ledger
	t      *testing.T
	store  *mortal
	ctx    context.Context // of its messages
	cancel context.CancelFunc
	log    *logged
	work   sync.WaitGroup
}

// logged keeps what was logged.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// begin starts a process. Call it inside a synctest bubble, and end it by die or stop.
func begin(t *testing.T, store ledger.Store, change func(*ledger.Config)) *life {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &life{t: t, store: &mortal{Store: store}, ctx: ctx, cancel: cancel, log: &logged{}}
	cfg := ledger.Config{Service: "billing", Instance: "host", Store: l.store, Logger: slog.New(slog.NewTextHandler(l.log, nil))}
	if change != nil {
		change(&cfg)
	}
	var err error
	if l.Ledger, err = ledger.New(cfg); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}

// die is a kill -9: nothing more is written, and what runs ends.
func (l *life) die() {
	l.store.dead.Store(true)
	l.cancel()
	l.work.Wait()
	_ = l.End(context.Background())
}

// stop is a clean stop.
func (l *life) stop() {
	l.t.Helper()
	l.Stopping()
	l.work.Wait()
	if err := l.End(context.Background()); err != nil {
		l.t.Errorf("end: %v", err)
	}
	l.cancel()
}

func (l *life) message(id string) *message.Message {
	msg := message.NewMessage(id, nil)
	msg.SetContext(l.ctx)
	return msg
}

// do handles a message of the consumer "orders" with h.
func (l *life) do(msg *message.Message, h func(context.Context) error) error {
	_, err := l.Middleware("orders")(func(msg *message.Message) ([]*message.Message, error) {
		return nil, h(msg.Context())
	})(msg)
	return err
}

// goes handles a message in the background; the error comes from the channel.
func (l *life) goes(id string, h func(context.Context) error) <-chan error {
	ended := make(chan error, 1)
	l.work.Go(func() { ended <- l.do(l.message(id), h) })
	return ended
}

// hold is a handler that ends with its context only.
func hold(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func succeed(context.Context) error { return nil }

func (l *life) must(id string) {
	l.t.Helper()
	if err := l.do(l.message(id), succeed); err != nil {
		l.t.Errorf("message %s: %v", id, err)
	}
}

func (l *life) wantState(want string) {
	l.t.Helper()
	if got := l.Stats(); got.State != want {
		l.t.Errorf("state: got %+v, want %s", got, want)
	}
}

// settled begins and ends a first process, so that the service is no news.
func settled(t *testing.T) *testonly.Ledger {
	store := testonly.NewLedger()
	begin(t, store, nil).stop()
	return store
}

// unclean is a service whose last process died with the messages in flight, all of them recorded.
func unclean(t *testing.T, ids ...string) *testonly.Ledger {
	store := settled(t)
	begin(t, store, nil).die()
	l := begin(t, store, nil)
	for _, id := range ids {
		l.goes(id, hold)
	}
	synctest.Wait()
	l.die()
	return store
}

func TestCleanStartWritesNothingForMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 3 {
			l := begin(t, settled(t), nil)
			l.wantState("quiet")
			for i := range 100 {
				l.must(fmt.Sprint(i))
			}
			time.Sleep(time.Hour)
			if r, a := l.store.records.Load(), l.store.alone.Load(); r+a != 0 {
				t.Errorf("got %d records and %d solo starts, want none", r, a)
			}
			l.stop()
		}
	})
}

func TestStartsAreCommittedBeforeTheyBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := settled(t)
		begin(t, store, nil).die()
		l := begin(t, store, nil)
		l.wantState("recording")
		l.store.slow = time.Millisecond
		const n = 1000
		for i := range n {
			l.goes(fmt.Sprintf("%04d", i), func(ctx context.Context) error {
				if l.store.records.Load() == 0 {
					t.Error("a handler runs before anything was committed")
				}
				return hold(ctx)
			})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := l.Stats(); got.Recorded != n {
			t.Errorf("got %+v, want %d recorded, all at once", got, n)
		}
		if got := l.store.records.Load(); got > n/100 {
			t.Errorf("got %d transactions for %d starts: want many in one", got, n)
		}
		l.die()
		next := begin(t, store, nil)
		if got := next.Stats(); got.Suspects != n {
			t.Errorf("after the death: got %+v, want %d suspects", got, n)
		}
		next.stop()
	})
}

// What is done is no suspect, whether the store was there when it was done or came back later.
func TestWhatIsDoneIsNoSuspect(t *testing.T) {
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := unclean(t, "alone")
			l := begin(t, store, nil)
			release := make(chan struct{})
			wait := func(context.Context) error { <-release; return nil }
			l.goes("a", wait)
			l.goes("b", func(context.Context) error { <-release; return errBroken })
			synctest.Wait()
			l.store.away.Store(away)
			close(release)
			l.work.Wait()
			if !away {
				l.must("alone")
			}
			l.store.away.Store(false)
			time.Sleep(time.Minute)
			l.must("alone")
			l.goes("last", hold)
			synctest.Wait()
			l.die()
			next := begin(t, store, nil)
			keys, err := store.Suspects(t.Context(), "billing", ledger.DefaultRetention, 10)
			if err != nil || len(keys) != 1 || !strings.HasSuffix(keys[0].ID, ":last") {
				t.Errorf("away %t: got the suspects %v, %v; want the last one alone", away, keys, err)
			}
			next.stop()
		})
	}
}

func TestSuspectRunsAloneInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t, "s1", "s2"), nil)
		var running, most, alone atomic.Int32
		handler := func(suspect bool) func(context.Context) error {
			return func(context.Context) error {
				n := running.Add(1)
				defer running.Add(-1)
				if suspect {
					alone.Add(1)
					time.Sleep(time.Second)
					if got := running.Load(); n != 1 || got != 1 {
						t.Errorf("a suspect runs beside %d others", got-1)
					}
					return nil
				}
				most.Store(max(most.Load(), n))
				time.Sleep(time.Second)
				return nil
			}
		}
		for i := range 20 {
			l.goes(fmt.Sprint("a", i), handler(false))
		}
		synctest.Wait()
		l.goes("s1", handler(true))
		l.goes("s2", handler(true))
		other := l.Middleware("shipping")
		l.work.Go(func() { // gates are the process's, not the consumer's
			_, _ = other(func(*message.Message) ([]*message.Message, error) { return nil, handler(false)(l.ctx) })(l.message("b"))
		})
		l.work.Wait()
		if alone.Load() != 2 || most.Load() < 20 {
			t.Errorf("got %d suspects and %d others at once, want 2 and at least 20", alone.Load(), most.Load())
		}
		if got := l.Stats(); got.Cleared != 2 || got.Suspects != 0 {
			t.Errorf("got %+v, want both cleared", got)
		}
		l.stop()
		if keys, _ := l.store.Suspects(t.Context(), "billing", ledger.DefaultRetention, 10); len(keys) != 0 {
			t.Errorf("suspects left: %v", keys)
		}
	})
}

// kills is a handler that kills the process.
func (l *life) kills(ctx context.Context) error {
	l.store.dead.Store(true)
	l.cancel()
	return hold(ctx)
}

// The counting of deliveries dead-lettered what was beside the killer too; without any, it came back for ever.
func TestR5KillerAmongManyIsConvictedAndNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1024
		store := settled(t)
		starts, lives := 0, 0
		var convicted *ledger.CrashLoopError
		done := make([]bool, n)
		for left := n; left > 0; lives++ {
			if lives > 10 {
				t.Fatalf("after %d lives %d messages are left", lives, left)
			}
			l := begin(t, store, nil)
			results := make([]<-chan error, n)
			for i := range n {
				if done[i] {
					continue
				}
				handler := func(ctx context.Context) error {
					if lives < 2 {
						return hold(ctx)
					}
					return nil
				}
				if i == 700 {
					handler = func(ctx context.Context) error {
						starts++
						if lives < 2 { // the others are in flight
							time.Sleep(time.Second)
						}
						return l.kills(ctx)
					}
				}
				results[i] = l.goes(fmt.Sprint(i), handler)
			}
			l.work.Wait()
			for i, result := range results {
				if result == nil {
					continue
				}
				err := <-result
				var crash *ledger.CrashLoopError
				switch {
				case err == nil:
				case errors.As(err, &crash):
					if i != 700 {
						t.Errorf("message %d was convicted: %v", i, err)
					}
					if verdict := (*classify.Classifier)(nil).Classify(err); verdict.Verdict != classify.VerdictPoison || verdict.ErrorType != "ledger.CrashLoopError" {
						t.Errorf("the classifier says %+v of %v, want poison", verdict, err)
					}
					convicted = crash
				default:
					continue
				}
				done[i] = true
				left--
			}
			l.die()
		}
		if starts != 4 || lives != 5 {
			t.Errorf("the killer was started %d times in %d lives, want 4 and 5", starts, lives)
		}
		if convicted == nil || len(convicted.Starts) != 3 || convicted.Consumer != "orders" || !strings.Contains(convicted.ID, "700") {
			t.Fatalf("got %+v, want a conviction that names three starts of 700", convicted)
		}
		for i, s := range convicted.Starts {
			if s.Alone != (i > 0) || s.Instance != "host" || !strings.Contains(convicted.Error(), s.Run) {
				t.Errorf("start %d is %+v in %q", i, s, convicted)
			}
		}
	})
}

// Who ends the process afterwards has nothing to do with a suspect whose attempt has ended, in whatever way.
func TestSuspectWhoseAttemptFailedIsNotBlamedForALaterDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "s")
		for range 5 {
			l := begin(t, store, nil)
			if err := l.do(l.message("s"), func(context.Context) error { return errBroken }); !errors.Is(err, errBroken) {
				t.Fatalf("got %v, want what its handler returned", err)
			}
			l.die()
		}
	})
}

func TestSuspectThatRestsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t, "s"), nil)
		retry, err := middleware.Retry(middleware.RetryConfig{MaxAttempts: 2, InitialDelay: time.Minute, MaxDelay: time.Minute, MaxElapsed: middleware.NoLimit})
		if err != nil {
			t.Fatal(err)
		}
		attempts := 0
		l.work.Go(func() {
			_, err := retry(l.Middleware("orders")(func(*message.Message) ([]*message.Message, error) {
				if attempts++; attempts == 1 {
					return nil, errBroken
				}
				return nil, nil
			}))(l.message("s"))
			if err != nil {
				t.Errorf("the suspect: %v", err)
			}
		})
		synctest.Wait()
		if attempts != 1 {
			t.Fatalf("got %d attempts, want the first", attempts)
		}
		began := time.Now()
		l.must("other")
		if waited := time.Since(began); waited != 0 {
			t.Errorf("another message waited %v for one that rests", waited)
		}
		l.work.Wait()
		if got := l.Stats(); attempts != 2 || got.Alone != 2 || got.Cleared != 1 {
			t.Errorf("got %d attempts and %+v, want two, both alone, and cleared", attempts, got)
		}
		l.stop()
	})
}

func TestStopThatWasAnnouncedConvictsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "slow")
		for range 5 { // five deploys whose patience the handler outlasts
			l := begin(t, store, nil)
			ended := l.goes("slow", hold)
			synctest.Wait()
			if got := l.Stats(); got.Alone != 1 {
				t.Fatalf("got %+v, want the suspect alone", got)
			}
			l.Stopping()
			synctest.Wait()
			l.die()
			if err := <-ended; err == nil {
				t.Error("the handler was not cut off")
			}
		}
		l := begin(t, store, nil)
		l.must("slow")
		l.stop()
	})
}

// The document says what two kills from outside do, when both hit the time in which one message runs alone.
func TestTwoKillsFromOutsideWhileAloneConvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "innocent", "other")
		for range 2 {
			l := begin(t, store, nil)
			l.goes("innocent", hold)
			synctest.Wait()
			l.die()
		}
		l := begin(t, store, nil)
		if err := l.do(l.message("innocent"), succeed); !errors.As(err, new(*ledger.CrashLoopError)) {
			t.Errorf("after two kills while alone: got %v, want a conviction", err)
		}
		l.must("other")
		l.stop()
	})
}

func TestKillsFromOutsideAmongOthersConvictNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := settled(t)
		for range 20 {
			l := begin(t, store, nil)
			for i := range 50 {
				l.goes(fmt.Sprint("m", i), func(ctx context.Context) error { time.Sleep(time.Second); return ctx.Err() })
			}
			synctest.Wait()
			time.Sleep(1500 * time.Millisecond) // one or two are done, and the next one is alone for the first time
			l.die()
		}
		if keys, err := store.Suspects(t.Context(), "billing", ledger.DefaultRetention, 100); err != nil || len(keys) > 50 {
			t.Errorf("suspects: %v, %v", keys, err)
		}
	})
}

func TestStoreThatIsAwayStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "s")
		l := begin(t, store, nil)
		l.must("a")
		l.store.away.Store(true)
		for i := range 50 {
			l.must(fmt.Sprint("b", i))
		}
		l.wantState("off")
		if got := l.Stats(); !strings.Contains(got.Reason, errAway.Error()) {
			t.Errorf("got %+v, want the reason", got)
		}
		l.must("s")
		time.Sleep(10 * time.Minute)
		if got := strings.Count(l.log.String(), "ledger is off"); got != 1 {
			t.Errorf("it was logged %d times that the ledger is off, want once:\n%s", got, l.log)
		}
		l.store.away.Store(false)
		time.Sleep(time.Minute)
		if got := l.Stats(); got.State == "off" || got.Reason != "" {
			t.Errorf("the store is back: got %+v", got)
		}
		if !strings.Contains(l.log.String(), "on again") {
			t.Errorf("nothing was logged when it came back:\n%s", l.log)
		}
		if keys, _ := store.Suspects(t.Context(), "billing", ledger.DefaultRetention, 10); len(keys) != 0 {
			t.Errorf("what succeeded meanwhile is suspect: %v", keys)
		}
		l.must("c")
		l.stop()
		if next := begin(t, store, nil); next.Stats().Suspects != 0 {
			t.Errorf("after a clean stop: %+v", next.Stats())
		} else {
			next.stop()
		}
	})
}

func TestStoreThatHangsCostsOneTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t, "s"), func(c *ledger.Config) { c.StoreTimeout = time.Second })
		l.store.hang.Store(true)
		began := time.Now()
		l.must("a")
		if took := time.Since(began); took > time.Second {
			t.Errorf("a message waited %v for the store, want the timeout, 1s", took)
		}
		began = time.Now()
		for i := range 100 {
			l.must(fmt.Sprint(i))
		}
		l.must("s")
		if took := time.Since(began); took != 0 {
			t.Errorf("while it is off, messages waited %v", took)
		}
		l.store.hang.Store(false)
		l.stop()
	})
}

func TestStoreThatIsAwayAtTheStartIsFoundLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "s")
		l := begin(t, &flaky{Store: store, until: time.Now().Add(time.Minute)}, nil)
		l.wantState("off")
		l.must("a")
		time.Sleep(2 * time.Minute)
		if got := l.Stats(); got.State != "recording" || got.Suspects != 1 {
			t.Errorf("the store is there: got %+v, want it to record, with one suspect", got)
		}
		l.stop()
	})
}

// flaky is a store that is not there until a time.
type flaky struct {
	ledger.Store
	until time.Time
}

func (f *flaky) Check(context.Context) error { return f.err() }
func (f *flaky) Begin(ctx context.Context, r ledger.Run, t ledger.Terms) (ledger.Standing, error) {
	if err := f.err(); err != nil {
		return ledger.Standing{}, err
	}
	return f.Store.Begin(ctx, r, t)
}

func (f *flaky) err() error {
	if time.Now().Before(f.until) {
		return errAway
	}
	return nil
}

// unusable is a store that nobody has migrated.
type unusable struct{ ledger.Store }

func (unusable) Check(context.Context) error {
	return fmt.Errorf("table x is missing: %w", ledger.ErrNotUsable)
}

func TestStoreThatCannotWorkIsRefused(t *testing.T) {
	l, err := ledger.New(ledger.Config{Service: "s", Store: unusable{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(t.Context()); !errors.Is(err, ledger.ErrNotUsable) || !strings.Contains(err.Error(), "table x") {
		t.Errorf("got %v, want not usable, with the cause", err)
	}
	if err := l.End(t.Context()); err != nil {
		t.Errorf("end without a begin: %v", err)
	}
}

// place is a delivery's place in an intake that drains when told to.
type place struct{ draining chan struct{} }

func (place) Rest()                       {}
func (place) Rouse(context.Context) bool  { return true }
func (p place) Draining() <-chan struct{} { return p.draining }

func TestWaitAtTheGateEndsWithTheDrainAndTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t, "s", "s2"), nil)
		release := make(chan struct{})
		l.goes("s", func(context.Context) error { <-release; return nil })
		synctest.Wait()
		ctx, cancel := context.WithCancel(l.ctx)
		p := place{draining: make(chan struct{})}
		var results []<-chan error
		for _, id := range []string{"a", "s2"} { // one that waits to be beside others, one that waits to be alone
			for _, drains := range []bool{true, false} {
				msg := l.message(id)
				if drains {
					msg.SetContext(l.ctx)
					flight.Ensure(msg).Place = p
				} else {
					msg.SetContext(ctx)
				}
				ended := make(chan error, 1)
				results = append(results, ended)
				l.work.Go(func() {
					ended <- l.do(msg, func(context.Context) error { t.Error("a handler ran"); return nil })
				})
			}
		}
		synctest.Wait()
		close(p.draining)
		cancel()
		for i, ended := range results {
			err := <-ended
			if v := (*classify.Classifier)(nil).Classify(err); v.Verdict != classify.VerdictStop {
				t.Errorf("wait %d ended with %v, verdict %v; want stop", i, err, v.Verdict)
			}
		}
		close(release)
		l.work.Wait()
		l.must("s2")
		l.must("b")
		l.stop()
	})
}

func TestPanicAndGoexitLeaveTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, id := range []string{"s", "a"} {
			l := begin(t, unclean(t, "s"), nil)
			recovered := middleware.Recover()(l.Middleware("orders")(func(*message.Message) ([]*message.Message, error) { panic("x") }))
			if _, err := recovered(l.message(id)); err == nil {
				t.Errorf("%s: the panic is gone", id)
			}
			l.work.Go(func() {
				_ = l.do(l.message(id), func(context.Context) error { t.SkipNow(); return nil })
			})
			l.work.Wait()
			l.must("b")
			l.must("s") // alone, so nobody is inside
			l.stop()
		}
	})
}

func TestReplicaHearsOfADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := settled(t)
		a := begin(t, store, func(c *ledger.Config) { c.Instance = "a" })
		b := begin(t, store, func(c *ledger.Config) { c.Instance = "b" })
		b.wantState("quiet")
		inFlight := b.goes("early", func(context.Context) error { time.Sleep(2 * time.Minute); return nil })
		a.die()
		time.Sleep(10*time.Second + time.Millisecond)
		b.wantState("quiet") // the lease has not run out
		time.Sleep(30 * time.Second)
		b.wantState("recording")
		// A suspect of another process waits for what began unrecorded as well.
		c := begin(t, store, func(c *ledger.Config) { c.Instance = "c" })
		c.goes("m", hold)
		synctest.Wait()
		c.die()
		time.Sleep(time.Minute)
		if got := b.Stats(); got.Suspects != 1 {
			t.Errorf("got %+v, want to know the suspect", got)
		}
		alone := b.goes("m", succeed)
		synctest.Wait()
		select {
		case err := <-alone:
			t.Error(err, "the suspect did not wait for the attempt that began before the death was known")
		default:
		}
		if err := errors.Join(<-inFlight, <-alone); err != nil {
			t.Error(err)
		}
		b.stop()
	})
}

// A message came to a second replica while the first one was dead and not missed yet.
func TestStartElsewhereIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t)
		a := begin(t, store, func(c *ledger.Config) { c.Instance = "a" })
		b := begin(t, store, func(c *ledger.Config) { c.Instance = "b" })
		a.goes("m", hold)
		a.goes("stuck", hold)
		synctest.Wait()
		began := time.Now()
		ended := b.goes("m", succeed)
		synctest.Wait()
		b.must("other")
		a.die()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := b.Stats(); got.Alone != 1 || got.Cleared != 1 {
			t.Errorf("got %+v, want it alone: it was in a process that died", got)
		}
		if took := time.Since(began); took < 30*time.Second || took > time.Minute {
			t.Errorf("it waited %v, want until the lease had run out, 30s", took)
		}
		// One that never ends does not hold it for ever.
		c := begin(t, store, func(c *ledger.Config) { c.Instance = "c" })
		release := make(chan struct{})
		c.goes("long", func(context.Context) error { <-release; return nil })
		synctest.Wait()
		began = time.Now()
		b.must("long")
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it waited %v, want at most twice the TTL", took)
		}
		close(release)
		c.stop()
		b.stop()
	})
}

func TestHorizonEndsAndSuspectsStaySuspects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t, "late"), func(c *ledger.Config) { c.HorizonMessages, c.HorizonTime = 10, time.Minute })
		time.Sleep(2 * time.Minute)
		l.wantState("recording") // the messages have not come yet
		for i := range 10 {
			l.must(fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		l.wantState("watching")
		before := l.store.records.Load()
		l.must("other")
		if l.store.records.Load() != before {
			t.Error("a start was recorded after the horizon")
		}
		l.must("late")
		if got := l.Stats(); got.Alone != 1 || got.Cleared != 1 {
			t.Errorf("the late suspect: got %+v, want it alone and cleared", got)
		}
		time.Sleep(time.Minute)
		l.wantState("quiet")
		l.stop()
	})
}

// One crash left a suspect that never came again. Nobody died after that, and the service watched for it for ever.
func TestSuspectIsForgottenWithoutAnotherDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "gone")
		retention := func(c *ledger.Config) {
			c.HorizonMessages, c.HorizonTime, c.Retention = 1, time.Minute, 24*time.Hour
		}
		l := begin(t, store, retention)
		l.must("warm")
		time.Sleep(23 * time.Hour)
		l.wantState("watching")
		time.Sleep(2 * time.Hour)
		l.wantState("quiet")
		l.stop()
		next := begin(t, store, retention)
		next.wantState("quiet")
		next.stop()
	})
}

// The killer came back after the horizon, every time.
func TestHorizonGrowsUntilTheKillerIsInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := settled(t)
		comes := 10 * time.Minute // after the start
		for deaths := 0; ; deaths++ {
			l := begin(t, store, func(c *ledger.Config) { c.HorizonMessages, c.HorizonTime = 1, time.Minute })
			l.must("warm")
			l.must("up")
			time.Sleep(comes)
			err := l.do(l.message("killer"), l.kills)
			l.die()
			if errors.As(err, new(*ledger.CrashLoopError)) {
				if deaths < 5 || deaths > 10 {
					t.Errorf("convicted after %d deaths, want 5 to 10", deaths)
				}
				return
			}
			if deaths > 20 {
				t.Fatal("the killer is never found out")
			}
		}
	})
}

func TestManyDeliveriesMarkSuspicionWithoutHistoryOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := testonly.NewLedger()
		often := func(l *life, count int) *message.Message {
			msg := message.NewMessage("often", nil)
			msg.SetContext(brokers.WithDelivery(l.ctx, &brokers.Delivery{Topic: "t", Partition: -1, Offset: -1, Count: count}))
			return msg
		}
		l := begin(t, store, nil)
		l.wantState("probing")
		for _, count := range []int{1, 2, 3, 100} {
			if err := l.do(often(l, count), succeed); err != nil {
				t.Errorf("delivery %d: %v", count, err)
			}
		}
		if got := l.Stats(); got.Alone != 2 || got.Cleared != 2 || l.store.records.Load() > 2 {
			t.Errorf("got %+v, want two attempts alone and nothing else written", got)
		}
		l.stop()
		l = begin(t, store, nil)
		l.wantState("quiet")
		if err := l.do(often(l, 100), succeed); err != nil || l.Stats().Alone != 0 {
			t.Errorf("with a history: %v, %+v; want not alone", err, l.Stats())
		}
		l.stop()
	})
}

func TestConvictionIsKeptUntilTheAckIsSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "killer")
		for range 2 {
			l := begin(t, store, nil)
			l.goes("killer", l.kills)
			l.work.Wait()
			l.die()
		}
		crash := new(ledger.CrashLoopError)
		refused := func(l *life, deaths string) bool {
			msg := l.message("killer")
			if deaths != "" {
				msg.Metadata["headrace_dlt_deaths"] = deaths
			}
			return errors.As(l.do(msg, succeed), &crash)
		}
		l := begin(t, store, nil)
		if !refused(l, "") {
			t.Fatal("it is not convicted")
		}
		l.Forget(crash.Consumer, crash.ID, 1)
		time.Sleep(ledger.DefaultHorizonTime / 2) // many heartbeats
		if !refused(l, "") {
			t.Error("the ack was lost, and the killer was started again")
		}
		if refused(l, "1") {
			t.Error("it was redriven after a repair, and refused")
		}
		time.Sleep(2 * ledger.DefaultHorizonTime)
		if refused(l, "") {
			t.Error("long after the dead letter it is still convicted")
		}
		l.stop()
	})
}

func TestRunThatWasTakenForDeadComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t, "s")
		l := begin(t, store, nil)
		release := make(chan struct{})
		l.goes("s", func(context.Context) error { <-release; return nil })
		synctest.Wait()
		twin := begin(t, store, nil) // of the same instance name
		time.Sleep(15 * time.Second)
		if !strings.Contains(l.log.String(), "instance name") {
			t.Errorf("nothing was logged:\n%s", l.log)
		}
		// Its solo start counts as no death.
		suspect, err := store.Alone(t.Context(), ledger.Run{Service: "billing", ID: "x"}, ledger.Key{Consumer: "orders", ID: "s"}, false)
		if !errors.Is(err, ledger.ErrLost) {
			t.Errorf("got %+v, %v", suspect, err)
		}
		close(release)
		l.work.Wait()
		if keys, _ := store.Suspects(t.Context(), "billing", ledger.DefaultRetention, 10); len(keys) != 0 {
			t.Errorf("suspects: %v, want none", keys)
		}
		twin.stop()
		l.stop()
	})
}

func TestCopiesOfAMessageAreOneStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := unclean(t)
		l := begin(t, store, nil)
		release := make(chan struct{})
		first := l.goes("m", func(context.Context) error { <-release; return nil })
		l.goes("m", hold)
		synctest.Wait()
		close(release)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l.die()
		if next := begin(t, store, nil); next.Stats().Suspects != 1 {
			t.Errorf("one copy still ran when the process died: got %+v, want a suspect", next.Stats())
		} else {
			next.stop()
		}
	})
}

func TestMessageWithoutIdentityGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t), nil)
		l.must("")
		if got := l.Stats(); got.Unrecorded != 1 {
			t.Errorf("got %+v, want one unrecorded", got)
		}
		l.stop()
	})
}

func TestConfigErrorsNameTheFieldAndTheValue(t *testing.T) {
	store := testonly.NewLedger()
	for _, test := range []struct {
		config ledger.Config
		want   string
	}{
		{ledger.Config{Service: "s"}, "Store is nil"},
		{ledger.Config{Service: "s", Store: (*testonly.Ledger)(nil)}, "Store is nil"},
		{ledger.Config{Store: store}, `Service is ""`},
		{ledger.Config{Service: strings.Repeat("x", 256), Store: store}, "Service is"},
		{ledger.Config{Service: "s", Store: store, Instance: "a\x00"}, `Instance is "a\x00"`},
		{ledger.Config{Service: "s", Store: store, TTL: time.Millisecond}, "TTL is 1ms"},
		{ledger.Config{Service: "s", Store: store, StoreTimeout: -1}, "StoreTimeout is -1ns"},
		{ledger.Config{Service: "s", Store: store, HorizonMessages: -1}, "HorizonMessages is -1"},
		{ledger.Config{Service: "s", Store: store, HorizonTime: -1}, "HorizonTime is -1ns"},
		{ledger.Config{Service: "s", Store: store, Retention: time.Second}, "Retention is 1s"},
	} {
		if _, err := ledger.New(test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want an error with %s", test.config, err, test.want)
		}
	}
	l, err := ledger.New(ledger.Config{Service: "s", Store: store})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("Middleware of no consumer did not panic")
		}
	}()
	l.Middleware("")
}

func TestBeforeBeginAndAfterEndMessagesPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := begin(t, unclean(t, "s"), nil)
		if err := l.Begin(t.Context()); err == nil {
			t.Error("a second Begin was accepted")
		}
		l.stop()
		if err := l.End(t.Context()); err != nil {
			t.Errorf("second End: %v", err)
		}
		l.ctx = context.Background()
		l.must("s")
		fresh, err := ledger.New(ledger.Config{Service: "s", Store: testonly.NewLedger()})
		if err != nil {
			t.Fatal(err)
		}
		l.Ledger = fresh
		l.must("a")
	})
}

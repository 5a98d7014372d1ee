package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/runtime"
)

// dependency is what a handler needs. It can be down.
type dependency struct {
	mu       sync.Mutex
	down     bool
	calls    int
	running  int
	handled  map[string][]string // ids by key
	atOnce   int                 // the most that ran at once since the last watch
	duration time.Duration       // of a call
	broken   map[string]bool     // ids that fail always
}

func newDependency(d time.Duration) *dependency {
	return &dependency{handled: map[string][]string{}, broken: map[string]bool{}, duration: d}
}

func (d *dependency) handle(ctx context.Context, o order) error {
	d.mu.Lock()
	d.calls++
	d.running++
	d.atOnce = max(d.atOnce, d.running)
	d.mu.Unlock()
	time.Sleep(d.duration)
	env, _ := event.FromContext(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	if d.down || d.broken[o.ID] {
		return errBroken
	}
	d.handled[env.PartitionKey] = append(d.handled[env.PartitionKey], o.ID)
	return nil
}

func (d *dependency) set(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

// watch returns the number of calls so far and the most at once since the last watch.
func (d *dependency) watch() (calls, atOnce int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	atOnce = d.atOnce
	d.atOnce = d.running
	return d.calls, atOnce
}

// realistic has the default retries, and a bubble's time.
func realistic(c *runtime.Config) { c.Retry = middleware.RetryConfig{} }

// until lets virtual time pass until cond is true.
func until(t *testing.T, what string, most time.Duration, cond func() bool) {
	t.Helper()
	for began := time.Now(); !cond(); time.Sleep(max(5*time.Millisecond, most/5000)) {
		if time.Since(began) > most {
			t.Fatalf("not within %v: %s", most, what)
		}
	}
}

func TestD6OutageUnderLoadDeadLettersNothingAndRecoversByItself(t *testing.T) {
	// The database was away for a while: message after message used up its retries, and the whole topic
	// went to the dead letters.
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, func(c *runtime.Config) { realistic(c); c.Window = 200 }), newDependency(5*time.Millisecond)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		const keys, outage = 40, 60 * time.Second
		b.start()

		want, n := map[string][]string{}, 0
		load := func(d time.Duration) { // 50 messages a second
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				key, id := fmt.Sprint("key-", n%keys), fmt.Sprint(n)
				want[key] = append(want[key], id)
				b.publish("orders", placed(t, id, event.WithKey(key)))
				n++
			}
		}
		load(2 * time.Second)
		dep.set(true)
		began := time.Now()
		load(3 * time.Second)
		stats := c.Breaker()
		if stats.State == middleware.BreakerClosed || stats.Cause != middleware.CauseOutage {
			t.Fatalf("the breaker is %+v after 3 s of outage", stats)
		}
		a := health(t, b, "/readyz")
		if why := strings.Join(a.Reasons, " "); a.status != http.StatusServiceUnavailable || !strings.Contains(why, "outage") {
			t.Errorf("/readyz says %+v, want 503 and the outage", a)
		}
		dep.watch()
		before, _ := dep.watch()
		load(outage - time.Since(began))
		calls, atOnce := dep.watch()
		if atOnce > 1 {
			t.Errorf("%d attempts ran at once while the breaker probed, want one at a time", atOnce)
		}
		if probes := calls - before; probes < 3 || probes > 12 {
			t.Errorf("%d probes in the rest of the outage, want a few, with growing pauses", probes)
		}

		dep.set(false)
		load(time.Second)
		until(t, "all handled", 2*time.Minute, func() bool { return c.Stats().Effects == int64(n) })
		until(t, "the breaker is closed", time.Minute, func() bool { return c.Breaker().State == middleware.BreakerClosed })
		if a := health(t, b, "/readyz"); a.status != http.StatusOK {
			t.Errorf("/readyz says %+v after the recovery, want 200", a)
		}
		b.mustStop()
		if s := c.Stats(); s.DeadLettered != 0 || s.Deliveries != int64(n) {
			t.Errorf("stats are %+v, want %d deliveries and no dead letter", s, n)
		}
		for key, ids := range want {
			if !slices.Equal(dep.handled[key], ids) {
				t.Errorf("%s: handled %v, want %v", key, dep.handled[key], ids)
			}
		}
		if s := c.Breaker(); s.Outages != 1 {
			t.Errorf("the breaker is %+v, want one outage", s)
		}
	})
}

func TestD6LittleTrafficDoesNotEmptyItselfOneByOne(t *testing.T) {
	// With a message a minute no count of failures was ever reached: each used up its retries alone.
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, realistic), newDependency(0)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		b.start()
		dep.set(true)
		const n = 4 // one less than the breaker needs
		for i := range n {
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
			time.Sleep(time.Minute)
		}
		if s := c.Breaker(); s.State != middleware.BreakerClosed || s.Held != n {
			t.Errorf("the breaker is %+v, want it closed and %d held", s, n)
		}
		before, _ := dep.watch()
		time.Sleep(10 * time.Minute)
		if calls, _ := dep.watch(); calls-before > n*10*60/20 {
			t.Errorf("%d calls in ten minutes, want at most one each 20 s for %d messages", calls-before, n)
		}
		dep.set(false)
		until(t, "all handled", time.Minute, func() bool { return c.Stats().Effects == n })
		b.mustStop()
		if s := c.Stats(); s.DeadLettered != 0 || s.Deliveries != n {
			t.Errorf("stats are %+v, want no dead letter and %d deliveries", s, n)
		}
	})
}

func TestI11ExhaustedMessageIsDeadLetteredOnceAnotherKeyHasSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, realistic), newDependency(time.Millisecond)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		dep.broken["bad"] = true
		b.publish("orders", placed(t, "before", event.WithKey("other")), placed(t, "bad", event.WithKey("k")), placed(t, "behind", event.WithKey("k")))
		b.start()
		time.Sleep(20 * time.Minute)
		if s, h := c.Stats(), c.Breaker(); s.DeadLettered != 0 || h.Held != 1 {
			t.Fatalf("stats are %+v, %d held; want it held: what succeeded before says nothing", s, h.Held)
		}
		runs, _ := dep.watch()
		b.publish("orders", placed(t, "after", event.WithKey("other")))
		until(t, "dead-lettered", time.Minute, func() bool { return c.Stats().DeadLettered == 1 })
		rec := parseDead(t, b.dead("orders", 1)[0])
		until(t, "the key goes on", time.Second, func() bool { return c.Stats().Effects == 3 })
		after, _ := dep.watch()
		b.mustStop()
		// It is held for 30 s at most, and gets one series more.
		if tried := after - runs - 2; tried < 5 || tried > 6 {
			t.Errorf("it was tried %d times after the other key had succeeded, want one more series of 5", tried)
		}
		if want := after - 3; rec.Attempts != want { // all runs but those of the three others
			t.Errorf("the dead letter tells of %d attempts, want the %d that there were", rec.Attempts, want)
		}
		if took := rec.LastFailure.Sub(rec.FirstFailure); took < 20*time.Minute {
			t.Errorf("the dead letter tells of failures within %v, want more than the 20 min that it was held", took)
		}
	})
}

// A key that always fails is held with the others, and tried with them. The breaker closes all the same.
func TestKeyThatAlwaysFailsDoesNotKeepTheBreakerOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, realistic), newDependency(time.Millisecond)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		b.start()
		dep.set(true)
		const n = 20
		for i := range n {
			dep.broken[fmt.Sprint(i)] = i < 5 // the first ones to be held, and to be probes
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
		}
		until(t, "the breaker opens", 10*time.Second, func() bool { return c.Breaker().State == middleware.BreakerOpen })
		time.Sleep(20 * time.Second)
		dep.set(false)
		until(t, "the good ones are handled", 2*time.Minute, func() bool { return c.Stats().Effects == n-5 })
		until(t, "the others are dead letters, once more has succeeded", 2*time.Minute, func() bool {
			b.publish("orders", placed(t, fmt.Sprint(time.Now().UnixNano()), event.WithKey("later")))
			return c.Stats().DeadLettered == 5
		})
		if s := c.Breaker(); s.State != middleware.BreakerClosed {
			t.Errorf("the breaker is %+v, want it closed", s)
		}
		b.mustStop()
	})
}

// All that is held fails always: no probe among it can succeed. What the intake has tells.
func TestEveryFourthProbeIsNotOneOfThoseThatAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, realistic), newDependency(time.Millisecond)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		for i := range 6 {
			dep.broken[fmt.Sprint(i)] = true
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
		}
		b.start()
		until(t, "the breaker opens", 10*time.Second, func() bool { return c.Breaker().State == middleware.BreakerOpen })
		const n = 50
		for i := range n {
			b.publish("orders", placed(t, fmt.Sprint("good", i), event.WithKey(fmt.Sprint("good", i))))
		}
		until(t, "the good ones are handled", 5*time.Minute, func() bool { return c.Stats().Effects == n })
		until(t, "the others are dead letters, once more has succeeded", time.Minute, func() bool {
			b.publish("orders", placed(t, fmt.Sprint(time.Now().UnixNano()), event.WithKey("later")))
			return c.Stats().DeadLettered == 6
		})
		b.mustStop()
	})
}

func TestR4FailingForLongHoldsNoMoreThanTheWindow(t *testing.T) {
	// 200 records that failed for long filled queue after queue until memory ended.
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, func(c *runtime.Config) { realistic(c); c.Window, c.Concurrency = 20, 10 }), newDependency(time.Millisecond)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		dep.set(true)
		for i := range 200 {
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
		}
		b.start()
		for range 300 {
			time.Sleep(time.Second)
			if s := c.Breaker(); s.Held+s.Waiting > 20 {
				t.Fatalf("the breaker is %+v, want no more than the window of 20", s)
			}
		}
		dep.set(false)
		until(t, "all handled", 2*time.Minute, func() bool { return c.Stats().Effects == 200 })
		b.mustStop()
		if s := c.Stats(); s.DeadLettered != 0 {
			t.Errorf("stats are %+v, want no dead letter", s)
		}
	})
}

func TestD5DrainReleasesWhatIsHeldAtOnce(t *testing.T) {
	for name, keys := range map[string]int{"held while closed": 1, "waiting while open": 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, dep := newBench(t, realistic), newDependency(time.Millisecond)
				c := b.rt.Consumer("billing", "orders")
				runtime.Handle(c, "order.placed", dep.handle)
				dep.set(true)
				for i := range keys {
					b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
				}
				b.start()
				time.Sleep(time.Minute)
				if s := c.Breaker(); s.Held+s.Waiting == 0 || (s.State == middleware.BreakerClosed) != (keys == 1) {
					t.Fatalf("the breaker is %+v, want something held", s)
				}
				began := time.Now()
				b.mustStop()
				if took := time.Since(began); took > 100*time.Millisecond {
					t.Errorf("the drain took %v", took)
				}
				if s := c.Stats(); s.DeadLettered != 0 || s.Released == 0 {
					t.Errorf("stats are %+v, want all released and no dead letter", s)
				}
				if left := b.unacked("orders", "billing"); left != keys {
					t.Errorf("%d un-acked, want all %d for the next process", left, keys)
				}
			})
		})
	}
}

// impatient is a broker that ends a delivery that is held for too long.
type impatient struct {
	brokers.Broker
	limit time.Duration
}

func (b impatient) Capabilities() brokers.Capabilities {
	caps := b.Broker.Capabilities()
	caps.Patience, caps.ExtendsPatience, caps.PatienceLimit = time.Minute, true, b.limit
	return caps
}

func TestBreakersHoldEndsByReleaseBeforeTheBrokersLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 30 * time.Minute
		b, dep := newBench(t, func(c *runtime.Config) { realistic(c); c.Broker = impatient{c.Broker, limit} }), newDependency(0)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		dep.set(true)
		b.publish("orders", placed(t, "1"))
		b.start()
		time.Sleep(limit*8/10 - time.Second)
		if s := c.Stats(); s.Released != 0 {
			t.Errorf("stats are %+v before the limit, want it held", s)
		}
		time.Sleep(2 * time.Second)
		if s := c.Stats(); s.Released != 1 || s.DeadLettered != 0 {
			t.Errorf("stats are %+v at 80 %% of the limit, want it released", s)
		}
		dep.set(false)
		until(t, "it comes again", time.Minute, func() bool { return c.Stats().Effects == 1 })
		b.mustStop()
	})
}

func TestBreakerOffDeadLettersWhateverElseHappens(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.Breaker.Off = true })
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error { return errBroken })
	b.publish("orders", placed(t, "1"))
	b.start()
	if rec := parseDead(t, b.dead("orders", 1)[0]); rec.Attempts != 3 {
		t.Errorf("dead letter after %d attempts, want 3", rec.Attempts)
	}
	b.mustStop()
}

func TestManyPoisonMessagesBlockNothing(t *testing.T) {
	// One in ten, everywhere in the topic: all of them are dead letters, none holds anything up, and the breaker,
	// which counts only what may pass, stays closed.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			if strings.HasPrefix(o.ID, "bad") {
				return classify.Permanent(errBroken)
			}
			return nil
		})
		const n = 10_000
		for i := range n {
			id := fmt.Sprint(i)
			if i%10 == 7 {
				id = "bad" + id
			}
			b.publish("orders", placed(t, id, event.WithKey(fmt.Sprint(i%100))))
		}
		b.start()
		until(t, "all settled", 5*time.Minute, func() bool { return c.Stats().Deliveries == n })
		b.mustStop()
		if s := c.Stats(); s.DeadLettered != n/10 || s.Effects != n-n/10 {
			t.Errorf("stats are %+v, want %d dead letters and %d effects", s, n/10, n-n/10)
		}
		if s := c.Breaker(); s.Outages+s.DeadLetterPauses != 0 {
			t.Errorf("the breaker is %+v, want it never opened", s)
		}
		if left := b.unacked("orders", "billing"); left != 0 {
			t.Errorf("%d un-acked, want 0", left)
		}
	})
}

func TestBadDeploymentDoesNotDeadLetterTheWholeTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *runtime.Config) {
			realistic(c)
			c.Window, c.Concurrency = 32, 16
			c.Breaker.Guard = middleware.DeadLetterGuard{Pause: 10 * time.Second, MaxPause: 2 * time.Minute}
		})
		var fixed atomic.Bool
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", func(context.Context, order) error {
			time.Sleep(time.Millisecond)
			if fixed.Load() {
				return nil
			}
			return classify.Permanent(errors.New("no such column"))
		})
		const n = 1500
		for i := range n {
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i%300))))
		}
		b.start()
		until(t, "the guard trips", time.Minute, func() bool { return c.Breaker().State == middleware.BreakerOpen })
		time.Sleep(5 * time.Second)
		first := c.Stats().DeadLettered
		if first < 200 || first > 200+16 {
			t.Errorf("%d dead letters until it tripped, want the 200 it needs to be sure and what ran then", first)
		}
		a := health(t, b, "/readyz")
		if why := strings.Join(a.Reasons, " "); a.status != http.StatusServiceUnavailable || !strings.Contains(why, "dead letters") {
			t.Errorf("/readyz says %+v, want 503 and the dead letters", a)
		}
		time.Sleep(4 * time.Minute)
		if more := c.Stats().DeadLettered - first; more < 2 || more > 6 {
			t.Errorf("%d messages tested in 4 min whether it got better, want a few", more)
		}

		// An operator may want all of it.
		c.AllowDeadLetters(time.Second)
		time.Sleep(2 * time.Second)
		allowed := c.Stats().DeadLettered
		if allowed < first+500 {
			t.Errorf("%d dead letters after they were allowed, want many more than %d", allowed, first)
		}
		b.eventually("it trips again, or all is through", func() bool {
			s := c.Stats()
			return c.Breaker().State == middleware.BreakerOpen || s.Deliveries == n
		})
		// The fix needs no restart.
		fixed.Store(true)
		until(t, "all settled", time.Hour, func() bool { return c.Stats().Deliveries == n })
		b.mustStop()
	})
}

func TestOperatorPausesAndResumesAConsumer(t *testing.T) {
	b := newBench(t, nil)
	var handled atomic.Int64
	c := b.rt.Consumer("billing", "orders")
	runtime.Handle(c, "order.placed", func(context.Context, order) error { handled.Add(1); return nil })
	c.Pause("migration")
	b.publish("orders", placed(t, "1"))
	b.start()
	<-b.rt.Running()
	b.eventually("readiness tells", func() bool {
		return strings.Contains(strings.Join(health(t, b, "/readyz").Reasons, " "), "migration")
	})
	c.Pause("audit")
	c.Resume("migration")
	c.Resume("never asked for")
	if got := handled.Load(); got != 0 {
		t.Errorf("%d handled during the pause, want 0", got)
	}
	c.Resume("audit")
	b.eventually("handled", func() bool { return handled.Load() == 1 })
	b.mustStop()
}

func TestOperatorForcesTheBreakerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, dep := newBench(t, realistic), newDependency(time.Millisecond)
		c := b.rt.Consumer("billing", "orders")
		runtime.Handle(c, "order.placed", dep.handle)
		c.ForceClose() // before Run: nothing
		dep.set(true)
		for i := range 10 {
			b.publish("orders", placed(t, fmt.Sprint(i), event.WithKey(fmt.Sprint(i))))
		}
		b.start()
		time.Sleep(20 * time.Minute) // probes are far apart now
		dep.set(false)
		began := time.Now()
		c.ForceClose()
		until(t, "all handled", time.Second, func() bool { return c.Stats().Effects == 10 })
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it took %v, want it at once", took)
		}
		b.mustStop()
	})
}

func TestLongRetryAfterLeavesTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, realistic)
		c := b.rt.Consumer("billing", "orders")
		var mu sync.Mutex
		var got []string
		began := time.Now()
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, fmt.Sprintf("%s at %v", o.ID, time.Since(began).Round(time.Second)))
			if o.ID == "1" && len(got) == 1 {
				return classify.RetryAfter(errBroken, 4*time.Minute)
			}
			return nil
		})
		b.publish("orders", placed(t, "1"), placed(t, "2"))
		b.start()
		until(t, "both handled", 10*time.Minute, func() bool { return c.Stats().Effects == 2 })
		b.mustStop()
		if want := []string{"1 at 0s", "2 at 0s", "1 at 4m0s"}; !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q: the key went on meanwhile", got, want)
		}
		if s := c.Stats(); s.Delayed != 1 || s.Deliveries != 3 {
			t.Errorf("stats are %+v, want 1 delayed of 3 deliveries", s)
		}
	})
}

// The retries have a classifier of their own. The consumer's judged once more what they had judged, and dropped or dead-lettered it.
func TestDelayIsObeyedWhateverTheOtherClassifierSays(t *testing.T) {
	for _, verdict := range []classify.Verdict{classify.VerdictDrop, classify.VerdictPoison} {
		t.Run(verdict.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				says := func(r classify.Result) *classify.Classifier {
					return classify.New(func(err error) (classify.Result, bool) { return r, errors.Is(err, errBroken) })
				}
				b := newBench(t, func(c *runtime.Config) {
					realistic(c)
					c.Retry.Classifier = says(classify.Result{Verdict: classify.VerdictRetryAfter, After: 4 * time.Minute})
					c.Classifier = says(classify.Result{Verdict: verdict})
				})
				c := b.rt.Consumer("billing", "orders")
				var runs atomic.Int64
				runtime.Handle(c, "order.placed", func(context.Context, order) error {
					if runs.Add(1) == 1 {
						return errBroken
					}
					return nil
				})
				b.publish("orders", placed(t, "1"))
				b.start()
				until(t, "it is handled", 10*time.Minute, func() bool { return c.Stats().Effects == 1 })
				b.mustStop()
				if s := c.Stats(); s.Delayed != 1 || s.Dropped != 0 || s.DeadLettered != 0 {
					t.Errorf("stats are %+v, want 1 delayed and nothing else", s)
				}
			})
		})
	}
}

func TestR5DelayedRedeliveriesAreBoundedByTheBrokersCount(t *testing.T) {
	// The count of attempts began again with each delivery: a message that asked for a delay each time never ended.
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, realistic)
		c := b.rt.Consumer("billing", "orders")
		var runs atomic.Int64
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			if o.ID == "other" {
				return nil
			}
			runs.Add(1)
			return classify.RetryAfter(errBroken, 2*time.Minute)
		})
		b.publish("orders", placed(t, "1"))
		b.start()
		for range 40 { // others succeed meanwhile: it is no outage
			b.publish("orders", placed(t, "other", event.WithKey("other")))
			time.Sleep(30 * time.Second)
		}
		rec := parseDead(t, b.dead("orders", 1)[0])
		b.mustStop()
		// The last delivery is held until another key has succeeded since it failed, and is tried once more.
		if runs.Load() != 6 || rec.Deliveries != 5 || rec.Attempts != 2 {
			t.Errorf("dead letter after %d runs in %d deliveries, the last with %d; want 6, 5, 2", runs.Load(), rec.Deliveries, rec.Attempts)
		}
		if s := c.Stats(); s.Delayed != 4 {
			t.Errorf("stats are %+v, want 4 delayed", s)
		}
	})
}

func TestMaxHoldOffKeepsTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *runtime.Config) { realistic(c); c.MaxHold = runtime.Off })
		c := b.rt.Consumer("billing", "orders")
		var mu sync.Mutex
		var got []string
		runtime.Handle(c, "order.placed", func(_ context.Context, o order) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, o.ID)
			if len(got) == 1 {
				return classify.RetryAfter(errBroken, 4*time.Minute)
			}
			return nil
		})
		b.publish("orders", placed(t, "1"), placed(t, "2"))
		b.start()
		until(t, "both handled", 10*time.Minute, func() bool { return c.Stats().Effects == 2 })
		b.mustStop()
		if want := []string{"1", "1", "2"}; !slices.Equal(got, want) {
			t.Errorf("handled %q, want %q", got, want)
		}
	})
}

package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

func TestRowsArePublishedInBatchesPerTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		add(t, m, "b", "k", names("b", 30)...)
		add(t, m, "a", "k", names("a", 1_234)...)
		x := run(t, m, b, outbox.RelayConfig{Batch: 100, Page: 250})
		pass(10 * time.Second)
		got := b.published()
		for topic, n := range map[string]int{"a": 1_234, "b": 30} {
			mine := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, topic+"/") })
			if len(mine) != n || !slices.IsSorted(mine) {
				t.Errorf("topic %s: %d rows, sorted %t; want %d, in order", topic, len(mine), slices.IsSorted(mine), n)
			}
		}
		if b.batch != 100 || b.calls() > 20 {
			t.Errorf("%d calls of at most %d messages; want at most 20 and 100", b.calls(), b.batch)
		}
		wantBacklog(t, "at the end", m, outbox.Backlog{})
		x.mustStop(t)
	})
}

// The broker is away for an hour. Nothing is given up, nothing is read into memory, and afterwards all
// is published in order.
func TestOutageUsesUpNoAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		var away atomic.Bool
		away.Store(true)
		b := &broker{before: func(string, []*message.Message) error {
			if away.Load() {
				return errAway
			}
			return nil
		}}
		for k := range 5 {
			add(t, m, "t", fmt.Sprint("k", k), names(fmt.Sprint("k", k, "-"), 100)...)
		}
		x := run(t, m, b, outbox.RelayConfig{Page: 50, Batch: 20})
		pass(time.Hour)
		if n := b.calls(); n > 400 {
			t.Errorf("%d calls in an hour of outage, want a growing wait of 30 s on average", n)
		}
		s := x.Stats()
		if len(s.Failing) != 1 || !s.Failing[0].Down || s.Failing[0].Topic != "t" || !errors.Is(s.Failing[0].Err, errAway) || s.Oldest < 59*time.Minute || s.Backlog.Rows != 500 {
			t.Errorf("stats in the outage: %+v; want topic t down with its error, 500 rows, one hour old", s)
		}
		away.Store(false)
		pass(time.Minute)
		got := b.published()
		for k := range 5 {
			key := fmt.Sprint("t/k", k)
			mine := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return !strings.HasPrefix(s, key) })
			if len(mine) != 100 || !slices.IsSorted(mine) {
				t.Errorf("%s: %d rows, sorted %t; want 100 in order", key, len(mine), slices.IsSorted(mine))
			}
		}
		wantBacklog(t, "after the outage", m, outbox.Backlog{})
		if s := x.Stats(); len(s.Failing) != 0 {
			t.Errorf("after the outage: failing %+v, want none", s.Failing)
		}
		x.mustStop(t)
	})
}

// One key's row fails for a while, with a backlog of many pages of that key: its later rows wait, the
// other keys of the topic go on.
func TestFailingKeyHoldsItselfOnly(t *testing.T) {
	for _, hot := range []int{1, 3, 1_000} {
		t.Run(fmt.Sprint(hot, " rows"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := outboxsuite.NewMemory()
				var away atomic.Bool
				away.Store(true)
				b := &broker{before: func(_ string, msgs []*message.Message) error {
					for _, msg := range msgs {
						if away.Load() && msg.UUID == "hot-0000" {
							return errAway
						}
					}
					return nil
				}}
				add(t, m, "t", "hot", names("hot-", hot)...)
				add(t, m, "t", "cold", "cold-1")
				x := run(t, m, b, outbox.RelayConfig{Page: 20, Batch: 10})
				pass(10 * time.Second)
				wantPublished(t, "while the key fails", b, "t/cold-1")
				add(t, m, "t", "", "none")
				add(t, m, "t", "cold", "cold-2")
				pass(5 * time.Second)
				wantPublished(t, "while the key fails", b, "t/cold-1", "t/none", "t/cold-2")
				if s := x.Stats(); len(s.Failing) != 1 || s.Failing[0].Down || s.Failing[0].Lanes != 1 || s.Failing[0].LaneAttempts < 2 {
					t.Errorf("stats: %+v; want one failing lane of a topic that is not down", s.Failing)
				}
				away.Store(false)
				pass(2 * time.Minute)
				if got := b.published()[3:]; len(got) != hot || !slices.IsSorted(got) {
					t.Errorf("after it: %d rows, sorted %t; want %d in order", len(got), slices.IsSorted(got), hot)
				}
				x.mustStop(t)
			})
		})
	}
}

// A key failed and was well again. As long as its topic had other rows, the stats went on to say that it fails.
func TestRecoveredKeyOfABusyTopicDoesNotFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		var away atomic.Bool
		away.Store(true)
		b := &broker{before: func(_ string, msgs []*message.Message) error {
			time.Sleep(10 * time.Millisecond)
			for _, msg := range msgs {
				if away.Load() && msg.UUID == "hot" {
					return errAway
				}
			}
			return nil
		}}
		add(t, m, "t", "hot", "hot")
		add(t, m, "t", "cold", names("cold-", 10_000)...)
		x := run(t, m, b, outbox.RelayConfig{Page: 10, Batch: 5, BackoffMax: time.Second})
		pass(2 * time.Second)
		if s := x.Stats(); len(s.Failing) != 1 || s.Failing[0].Lanes != 1 {
			t.Fatalf("failing before: %+v, want one key", s.Failing)
		}
		away.Store(false)
		pass(2 * time.Second)
		if s := x.Stats(); len(s.Failing) != 0 {
			t.Errorf("failing afterwards: %+v, want none", s.Failing)
		}
		if left, err := m.Backlog(t.Context(), 100_000); err != nil || left.Rows == 0 {
			t.Errorf("%d rows are left, %v: the test shows nothing", left.Rows, err)
		}
		x.mustStop(t)
	})
}

// One topic hangs, one fails; the others do not notice.
func TestSlowTopicHoldsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		release := make(chan struct{})
		b := &broker{before: func(topic string, _ []*message.Message) error {
			switch topic {
			case "hangs":
				<-release
			case "fails":
				return errAway
			}
			return nil
		}}
		x := run(t, m, b, outbox.RelayConfig{})
		add(t, m, "hangs", "k", "1", "2")
		add(t, m, "fails", "k", "3")
		pass(time.Minute)
		began := time.Now()
		add(t, m, "works", "k", "4")
		pass(time.Second)
		if took := b.at["4"].Sub(began); took > time.Second || len(b.published()) != 1 {
			t.Errorf("published %q after %v; want works/4 within 1s", b.published(), took)
		}
		close(release)
		pass(time.Second)
		wantPublished(t, "after the hang", b, "works/4", "hangs/1", "hangs/2")
		x.mustStop(t)
	})
}

func TestRetryAfterIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		b.before = func(string, []*message.Message) error {
			if b.calls() == 1 {
				return classify.RetryAfter(errAway, 7*time.Minute)
			}
			return nil
		}
		add(t, m, "t", "k", "1")
		began := time.Now()
		x := run(t, m, b, outbox.RelayConfig{})
		pass(10 * time.Minute)
		if took := b.at["1"].Sub(began); took < 7*time.Minute || took > 7*time.Minute+time.Second {
			t.Errorf("published after %v, want 7m", took)
		}
		x.mustStop(t)
	})
}

func TestStopVerdictEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{before: refuse(classify.Stop(errAway), "2")}
		add(t, m, "t", "k", "1", "2", "3")
		x := run(t, m, b, outbox.RelayConfig{})
		err := <-x.done
		if !errors.Is(err, errAway) || !strings.Contains(err.Error(), `message 2) to topic "t"`) {
			t.Errorf("Run: got %v; want the publisher's error, with the message and topic", err)
		}
		wantPublished(t, "at the end", b, "t/1")
		wantBacklog(t, "at the end", m, outbox.Backlog{Rows: 2})
	})
}

// A publisher that panicked once had its row buried, and the later rows of the key went on without it. Now the
// row is tried again, and with it its key waits; Goexit ends the topic's turn only.
func TestPanickingPublisherEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		var exits, panics atomic.Int32
		b.before = func(topic string, msgs []*message.Message) error {
			if topic == "exits" && exits.Add(1) < 3 {
				runtime.Goexit()
			}
			for _, m := range msgs {
				if m.UUID == "bad" && panics.Add(1) < 4 {
					panic("index out of range")
				}
			}
			return nil
		}
		add(t, m, "panics", "k", "1", "bad", "2")
		add(t, m, "exits", "k", "3")
		x := run(t, m, b, outbox.RelayConfig{})
		pass(time.Minute)
		got := b.published()
		slices.Sort(got)
		if want := []string{"exits/3", "panics/1", "panics/2", "panics/bad"}; !slices.Equal(got, want) {
			t.Errorf("published %q, want %q", got, want)
		}
		dead, err := m.Dead(t.Context(), 0, 10)
		if err != nil || len(dead) != 0 {
			t.Errorf("dead rows: %+v, %v; want none", dead, err)
		}
		x.mustStop(t)
	})
}

func TestRunFinishesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		b.before = func(string, []*message.Message) error { time.Sleep(3 * time.Second); return nil }
		add(t, m, "t", "k", names("", 10)...)
		x := run(t, m, b, outbox.RelayConfig{Batch: 2, DrainLimit: 6 * time.Second})
		pass(time.Second)
		began := time.Now()
		x.mustStop(t)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("Run returned %v after its context ended, want 5s: the publish in flight, and one that was begun in the first half of the limit", took)
		}
		wantPublished(t, "at the end", b, "t/0000", "t/0001", "t/0002", "t/0003")
		wantBacklog(t, "at the end", m, outbox.Backlog{Rows: 6})
		tenure, err := m.Lease(t.Context(), "next", time.Minute)
		if err != nil || len(tenure.Leases) != outbox.Buckets || tenure.Relays != 1 {
			t.Errorf("the next relay: %d buckets, %d relays, %v; want all and 1", len(tenure.Leases), tenure.Relays, err)
		}
	})
}

func TestRunNamesAPublishThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		release := make(chan struct{})
		b.before = func(string, []*message.Message) error { <-release; return nil }
		add(t, m, "stuck", "k", "1")
		x := run(t, m, b, outbox.RelayConfig{DrainLimit: 5 * time.Second})
		pass(time.Second)
		began := time.Now()
		err := x.stop(t)
		if err == nil || !strings.Contains(err.Error(), `"stuck"`) || !strings.Contains(err.Error(), "5s") {
			t.Errorf("Run: got %v; want the topic and the limit", err)
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("Run returned after %v, want the limit of 5s and 1s of grace", took)
		}
		// The publisher may go on: nobody else may have the buckets yet.
		if tenure, err := m.Lease(t.Context(), "next", time.Minute); err != nil || len(tenure.Leases) != 0 {
			t.Errorf("the next relay has %d buckets, %v; want none", len(tenure.Leases), err)
		}
		close(release)
	})
}

// Shutdown is no failure: a publish that fails because its context ended gives nothing up.
func TestShutdownIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		b.before = func(_ string, msgs []*message.Message) error {
			<-msgs[0].Context().Done()
			return classify.Permanent(msgs[0].Context().Err())
		}
		add(t, m, "t", "k", "1")
		x := run(t, m, b, outbox.RelayConfig{DrainLimit: time.Second})
		pass(time.Second)
		x.mustStop(t)
		wantBacklog(t, "at the end", m, outbox.Backlog{Rows: 1})
		if s := x.Stats(); s.Failures != 0 || s.Buckets != 0 {
			t.Errorf("stats: %d failures, %d buckets; want none", s.Failures, s.Buckets)
		}
	})
}

// leasing is a source whose Lease takes its time, as that of a busy database.
type leasing struct {
	outbox.Source
	begun   chan context.Context
	release chan struct{}
	left    atomic.Bool
}

func (s *leasing) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	s.begun <- ctx
	<-s.release
	return s.Source.Lease(context.WithoutCancel(ctx), owner, ttl)
}

func (s *leasing) Leave(ctx context.Context, owner string) error {
	s.left.Store(true)
	return s.Source.Leave(ctx, owner)
}

// A relay was stopped just after its start. The lease that it was taking was cut off at the client; the database made it
// after the relay had left, and the buckets were held for all of the LeaseTTL by nobody.
func TestLeaseUnderWayIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := outboxsuite.NewMemory()
		s := &leasing{Source: m, begun: make(chan context.Context), release: make(chan struct{})}
		relay, err := outbox.NewRelay(s, &broker{}, outbox.RelayConfig{Owner: "first"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		lease := <-s.begun
		stop()
		synctest.Wait()
		if lease.Err() != nil || s.left.Load() {
			t.Errorf("while the lease is being taken its context says %v, and the relay has left: %t", lease.Err(), s.left.Load())
		}
		close(s.release)
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
		tenure, err := m.Lease(t.Context(), "second", time.Second)
		if err != nil || len(tenure.Leases) != outbox.Buckets {
			t.Errorf("the next relay gets %d buckets (%v), want all", len(tenure.Leases), err)
		}
	})
}

func TestPublishGetsADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		b.before = func(_ string, msgs []*message.Message) error {
			if b.calls() > 1 {
				return nil
			}
			<-msgs[0].Context().Done()
			return msgs[0].Context().Err()
		}
		add(t, m, "t", "k", "1")
		began := time.Now()
		x := run(t, m, b, outbox.RelayConfig{PublishTimeout: 3 * time.Second})
		pass(time.Minute)
		if took := b.at["1"].Sub(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("published after %v, want the timeout of 3s and a backoff", took)
		}
		x.mustStop(t)
	})
}

func TestDatabaseOutageIsWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		m.Fail(func(string) error { return errors.New("connection refused") })
		x := run(t, m, b, outbox.RelayConfig{})
		pass(time.Hour)
		m.Fail(nil)
		add(t, m, "t", "k", "1")
		pass(15 * time.Second)
		wantPublished(t, "after the outage", b, "t/1")
		if s := x.Stats(); s.LastError == nil || !strings.Contains(s.LastError.Error(), "connection refused") || s.LastErrorAt.IsZero() {
			t.Errorf("stats: last error %v at %v", s.LastError, s.LastErrorAt)
		}
		x.mustStop(t)
	})
}

func TestDelayedMessageWaitsForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		x := run(t, m, b, outbox.RelayConfig{})
		tx := m.Begin()
		at := time.Now().Add(time.Hour)
		if err := outbox.AddAt(t.Context(), m, tx, at, "t", message.NewMessage("timeout", nil)); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		pass(59 * time.Minute)
		wantPublished(t, "before its time", b)
		if s := x.Stats(); s.Backlog.Delayed != 1 {
			t.Errorf("stats: %+v, want 1 delayed", s.Backlog)
		}
		pass(2 * time.Minute)
		if late := b.at["timeout"].Sub(at); len(b.published()) != 1 || late < 0 || late > 2*time.Second {
			t.Errorf("published %q, %v after its time; want within 2s", b.published(), late)
		}
		x.mustStop(t)
	})
}

// A second relay joins and gets half; the first dies without a word and the second gets all.
func TestRelaysShareAndTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		dying := &cutOff{Source: m}
		first := run(t, dying, b, outbox.RelayConfig{Owner: "first"})
		pass(time.Minute)
		second := run(t, m, b, outbox.RelayConfig{Owner: "second"})
		pass(10 * time.Second)
		for name, x := range map[string]*running{"first": first, "second": second} {
			if s := x.Stats(); s.Buckets != 32 || s.Relays != 2 {
				t.Errorf("%s: %d buckets, %d relays; want 32 and 2", name, s.Buckets, s.Relays)
			}
		}
		dying.cut.Store(true)
		pass(15 * time.Second)
		if s := second.Stats(); s.Buckets != 64 || s.Relays != 1 {
			t.Errorf("after the death: %d buckets, %d relays; want all and 1", s.Buckets, s.Relays)
		}
		for i := range 64 {
			add(t, m, "t", fmt.Sprint("k", i), fmt.Sprint(i))
		}
		pass(2 * time.Second)
		if n := len(b.published()); n != 64 {
			t.Errorf("after the death: published %d, want 64", n)
		}
		first.mustStop(t)
		second.mustStop(t)
	})
}

func TestManyTopicsGetTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		const topics = 1_200 // more than one look returns
		for i := range topics {
			add(t, m, fmt.Sprintf("t%04d", i), "k", fmt.Sprint(i))
		}
		x := run(t, m, b, outbox.RelayConfig{Topics: 4})
		pass(5 * time.Second)
		if n := len(b.published()); n != topics {
			t.Errorf("published %d, want %d", n, topics)
		}
		x.mustStop(t)
	})
}

func TestNewRelayNamesEachWrongField(t *testing.T) {
	m, b := outboxsuite.NewMemory(), &broker{}
	for _, test := range []struct {
		cfg  outbox.RelayConfig
		says string
	}{
		{outbox.RelayConfig{Batch: -1}, "Batch -1: want 1 to 10000"},
		{outbox.RelayConfig{Page: 10_001}, "Page 10001"},
		{outbox.RelayConfig{PageBytes: -5}, "PageBytes -5"},
		{outbox.RelayConfig{Topics: 1025}, "Topics 1025"},
		{outbox.RelayConfig{OnPoison: "drop"}, `OnPoison "drop": want "skip_key" or "block_key"`},
		{outbox.RelayConfig{Owner: strings.Repeat("x", 129)}, "Owner"},
		{outbox.RelayConfig{LeaseTTL: 9 * time.Second}, "LeaseTTL 9s: want at least twice PublishTimeout 5s"},
		{outbox.RelayConfig{DatabaseTimeout: 10 * time.Second}, "DatabaseTimeout 10s: want less than LeaseTTL 10s"},
		{outbox.RelayConfig{PollMin: 2 * time.Second}, "PollMin 2s: want at most PollMax 1s"},
		{outbox.RelayConfig{BackoffMin: time.Minute}, "BackoffMin 1m0s: want at most BackoffMax 30s"},
		{outbox.RelayConfig{DrainLimit: -time.Second}, "DrainLimit -1s"},
	} {
		if _, err := outbox.NewRelay(m, b, test.cfg); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("got %v, want an error that says %q", err, test.says)
		}
	}
	_, err := outbox.NewRelay(m, b, outbox.RelayConfig{Batch: -1, Topics: -1})
	if err == nil || !strings.Contains(err.Error(), "Batch") || !strings.Contains(err.Error(), "Topics") {
		t.Errorf("two wrong fields: got %v, want both", err)
	}
	if _, err := outbox.NewRelay(nil, b, outbox.RelayConfig{}); err == nil {
		t.Error("no source: want an error")
	}
	if _, err := outbox.NewRelay(m, nil, outbox.RelayConfig{}); err == nil {
		t.Error("no publisher: want an error")
	}
}

func TestRunRefusesToRunTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := run(t, outboxsuite.NewMemory(), &broker{}, outbox.RelayConfig{})
		pass(time.Second)
		if err := x.Run(t.Context()); err == nil {
			t.Error("second Run: want an error")
		}
		x.mustStop(t)
	})
}

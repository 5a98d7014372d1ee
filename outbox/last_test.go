package outbox_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

// unpolled is a relay that finds nothing by itself within a test.
var unpolled = outbox.RelayConfig{PollMin: time.Hour, PollMax: time.Hour}

// The last handlers committed, and the relay was stopped at once: with no other relay, their events were published when the
// service was started again.
func TestStopPublishesWhatWasCommitted(t *testing.T) {
	for name, fill := range map[string]func(*testing.T, *outboxsuite.Memory) int{
		"one row": func(t *testing.T, m *outboxsuite.Memory) int { add(t, m, "t", "k", "1"); return 1 },
		"many pages of a topic": func(t *testing.T, m *outboxsuite.Memory) int {
			add(t, m, "t", "k", names("", 1_000)...)
			return 1_000
		},
		"more topics than one look returns": func(t *testing.T, m *outboxsuite.Memory) int {
			for i := range 1_200 {
				add(t, m, fmt.Sprintf("t%04d", i), "k", fmt.Sprint(i))
			}
			return 1_200
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, b := outboxsuite.NewMemory(), &broker{}
				cfg := unpolled
				cfg.Page, cfg.Batch, cfg.Topics = 30, 10, 3
				x := run(t, m, b, cfg)
				pass(time.Second)
				want := fill(t, m)
				began := time.Now()
				x.mustStop(t)
				if n := len(b.published()); n != want || time.Since(began) != 0 {
					t.Errorf("published %d rows within %v, want %d at once", n, time.Since(began), want)
				}
				wantBacklog(t, "at the end", m, outbox.Backlog{})
			})
		})
	}
}

// What the last pass cannot publish in time stays for the next relay, and is not published twice.
func TestStopIsBounded(t *testing.T) {
	for name, test := range map[string]struct {
		publish func(context.Context) error
		took    time.Duration
		rows    int
	}{
		"a long backlog":            {func(context.Context) error { time.Sleep(1100 * time.Millisecond); return nil }, 5500 * time.Millisecond, 5},
		"a broker that is away":     {func(context.Context) error { return errAway }, 0, 0},
		"a broker that hangs":       {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 5 * time.Second, 0},
		"a broker that is very far": {func(context.Context) error { time.Sleep(4 * time.Second); return nil }, 8 * time.Second, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, b := outboxsuite.NewMemory(), &broker{}
				b.before = func(_ string, msgs []*message.Message) error { return test.publish(msgs[0].Context()) }
				cfg := unpolled
				cfg.Batch = 1
				x := run(t, m, b, cfg)
				pass(time.Second)
				add(t, m, "t", "k", names("", 20)...)
				began := time.Now()
				x.mustStop(t)
				if took := time.Since(began); took != test.took {
					t.Errorf("Run returned after %v, want %v", took, test.took)
				}
				if n := len(b.published()); n != test.rows {
					t.Errorf("published %q, want %d rows", b.published(), test.rows)
				}
				wantBacklog(t, "at the end", m, outbox.Backlog{Rows: 20 - test.rows})
				if tenure, err := m.Lease(t.Context(), "next", time.Minute); err != nil || len(tenure.Leases) != outbox.Buckets {
					t.Errorf("the next relay: %d buckets, %v; want all", len(tenure.Leases), err)
				}
			})
		})
	}
}

// The database is away when the relay stops: there is nothing to wait for.
func TestStopWithoutTheDatabaseEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		x := run(t, m, b, unpolled)
		pass(time.Second)
		add(t, m, "t", "k", "1")
		m.Fail(func(string) error { return errAway })
		began := time.Now()
		x.mustStop(t)
		if took := time.Since(began); took != 0 || len(b.published()) != 0 {
			t.Errorf("Run returned after %v and had published %q; want at once, and nothing", took, b.published())
		}
	})
}

func TestStopPublishesNothingWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{}
		cut := &leaseless{Source: m}
		cfg := unpolled
		cfg.LeaseTTL, cfg.PublishTimeout = 10*time.Second, 4*time.Second
		x := run(t, cut, b, cfg)
		pass(time.Second)
		cut.cut.Store(true) // the leases end at 10 s
		pass(6 * time.Second)
		add(t, m, "t", "k", "1")
		x.mustStop(t)
		wantPublished(t, "within 4s of the end of the leases", b)
		wantBacklog(t, "at the end", m, outbox.Backlog{Rows: 1})
	})
}

func TestStopVerdictEndsTheLastPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, b := outboxsuite.NewMemory(), &broker{before: refuse(classify.Stop(errAway), "2")}
		x := run(t, m, b, unpolled)
		pass(time.Second)
		add(t, m, "t", "k", "1", "2", "3")
		if err := x.stop(t); err == nil {
			t.Error("Run returned nil, want the publisher's error")
		}
		wantPublished(t, "at the end", b, "t/1")
	})
}

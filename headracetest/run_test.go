package headracetest_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/runtime"
)

// must makes an event of the shop.
func must(t testing.TB, key string, n int) *message.Message {
	t.Helper()
	m, err := placed(event.ContextWithSource(t.Context(), "/shop"), key, n, 100*n)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (s *shop) wantState(t testing.TB, key, want string) {
	t.Helper()
	got, err := s.state(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("the state of %s is %q, want %q", key, got, want)
	}
}

func TestScenarios(t *testing.T) {
	transient := classify.Transient(errors.New("try again"))
	for name, c := range map[string]struct {
		steps func(a1, a2, b1 *message.Message) []headracetest.Step
		a, b  string
		bills int
		dead  []string
	}{
		"interleaved": {
			func(a1, a2, b1 *message.Message) []headracetest.Step {
				return []headracetest.Step{headracetest.Deliver(a1, b1, a2)}
			},
			"version 2 of a, 200 cents, written 2 times", "version 1 of b, 100 cents, written 1 times", 3, nil,
		},
		"twice": {
			func(a1, _, b1 *message.Message) []headracetest.Step {
				return []headracetest.Step{headracetest.Twice(a1), headracetest.Deliver(b1)}
			},
			"version 1 of a, 100 cents, written 1 times", "version 1 of b, 100 cents, written 1 times", 2, nil,
		},
		"older after newer": {
			func(a1, a2, _ *message.Message) []headracetest.Step {
				return []headracetest.Step{headracetest.Deliver(a2), headracetest.Deliver(a1)}
			},
			"version 2 of a, 200 cents, written 1 times", "none", 1, nil,
		},
		"together": {
			func(a1, _, _ *message.Message) []headracetest.Step {
				return []headracetest.Step{headracetest.Together(a1)}
			},
			"version 1 of a, 100 cents, written 1 times", "none", 1, nil,
		},
		"killed and killed again": {
			func(a1, a2, b1 *message.Message) []headracetest.Step {
				return []headracetest.Step{headracetest.KilledBeforeCommit(a1), headracetest.KilledAfterCommit(a2), headracetest.KilledBeforeCommit(b1)}
			},
			"version 2 of a, 200 cents, written 2 times", "version 1 of b, 100 cents, written 1 times", 3, nil,
		},
		"failures for good and for now": {
			func(a1, _, b1 *message.Message) []headracetest.Step {
				return []headracetest.Step{
					headracetest.FailAttempt(1, classify.Permanent(errors.New("too bad")), a1),
					headracetest.FailAttempt(1, transient, b1),
				}
			},
			"none", "version 1 of b, 100 cents, written 1 times", 1,
			[]string{"too bad"},
		},
		"garbage": {
			func(a1, _, b1 *message.Message) []headracetest.Step {
				return []headracetest.Step{headracetest.Deliver(headracetest.Garbage(a1), a1, b1)}
			},
			"version 1 of a, 100 cents, written 1 times", "version 1 of b, 100 cents, written 1 times", 2,
			[]string{"not UTF-8"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, func(p process) { p.handle(p.place) })
			got := headracetest.Run(t, s.spec, c.steps(must(t, "a", 1), must(t, "a", 2), must(t, "b", 1))...)
			s.wantState(t, "a", c.a)
			s.wantState(t, "b", c.b)
			if len(got.Published["bills"]) != c.bills || len(got.Published) != 1 {
				t.Errorf("published %v, want %d bills", got.Published, c.bills)
			}
			if len(got.DeadLetters) != len(c.dead) {
				t.Fatalf("%d dead letters, want %d", len(got.DeadLetters), len(c.dead))
			}
			for i, d := range got.DeadLetters {
				if !strings.Contains(d.Error, c.dead[i]) {
					t.Errorf("dead letter %d says %q, want %q", i, d.Error, c.dead[i])
				}
			}
		})
	}
}

// attempts counts the runs of the handler of a shop.
type attempts struct {
	mu sync.Mutex
	n  int
}

func (a *attempts) add() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	return a.n
}

// The service's own delays are cut, whoever asks for them: hours of waiting take no time.
func TestDelaysAreCut(t *testing.T) {
	var runs attempts
	s := newShop(t, func(p process) {
		p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
			switch runs.add() {
			case 1:
				return errors.New("unknown: backs off for an hour")
			case 2:
				return classify.RetryAfter(errors.New("come back"), time.Minute)
			case 3:
				return classify.RetryAfter(errors.New("come back by the broker"), time.Hour)
			}
			return p.place(ctx, tx, o)
		})
	})
	s.config.Retry = middleware.RetryConfig{InitialDelay: time.Hour, MaxDelay: time.Hour, MaxRetryAfter: 2 * time.Hour, MaxElapsed: middleware.NoLimit}
	headracetest.Run(t, s.spec, headracetest.Deliver(must(t, "a", 1)))
	s.wantState(t, "a", "version 1 of a, 100 cents, written 1 times")
	if runs.n != 4 {
		t.Errorf("the handler ran %d times, want 4", runs.n)
	}
}

// The clock of a bubble is the handler's own: what it sleeps costs nothing, and a limit that passes is seen at once.
func TestRunInABubble(t *testing.T) {
	t.Run("passes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					time.Sleep(5 * time.Second)
					return p.place(ctx, tx, o)
				})
			})
			headracetest.Run(t, s.spec, headracetest.KilledAfterCommit(must(t, "a", 1)), headracetest.Together(must(t, "b", 1)))
			s.wantState(t, "a", "version 1 of a, 100 cents, written 1 times")
			s.wantState(t, "b", "version 1 of b, 100 cents, written 1 times")
		})
	})
	for name, c := range map[string]struct {
		step func(*message.Message) headracetest.Step
		want string
	}{
		"a message that hangs":           {func(m *message.Message) headracetest.Step { return headracetest.Deliver(m) }, "not settled within 10s: 1 messages of orders are not settled by shop.orders; no handler has run"},
		"a message that hangs in a kill": {headracetest.KilledAfterCommit, "was not settled within 10s; no handler has run"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, func(p process) {
					p.handle(func(ctx context.Context, _ *sql.Tx, _ Order) error {
						<-ctx.Done()
						return ctx.Err()
					})
				})
				r := record(t, func(t testing.TB) { headracetest.Run(t, s.spec, c.step(must(t, "a", 1))) })
				if text := r.told(); !strings.Contains(text, c.want) || len(r.errors) != 1 {
					t.Errorf("told %q, want %q alone", text, c.want)
				}
			})
		})
	}
	t.Run("a message that nothing vouches for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newShop(t, func(p process) {
				p.handle(func(context.Context, *sql.Tx, Order) error { return errors.New("the bank is closed") })
			})
			s.spec.Limit = 100 * time.Millisecond // it is tried again each millisecond
			r := record(t, func(t testing.TB) { headracetest.Run(t, s.spec, headracetest.Deliver(must(t, "a", 1))) })
			if text := r.told(); !strings.Contains(text, "not settled within 100ms") || strings.Count(text, "the bank is closed") != 5 || !strings.Contains(text, "attempts before)") {
				t.Errorf("told %q, want the last 5 attempts", text)
			}
		})
	})
}

// A handler that gives up for the whole service.
func TestAServiceThatEndsByItselfIsTold(t *testing.T) {
	for name, step := range map[string]func(*message.Message) headracetest.Step{
		"delivered": func(m *message.Message) headracetest.Step { return headracetest.Deliver(m) },
		"killed":    headracetest.KilledAfterCommit,
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, func(p process) {
				p.handle(func(context.Context, *sql.Tx, Order) error { return classify.Stop(errors.New("no licence")) })
			})
			r := record(t, func(t testing.TB) { headracetest.Run(t, s.spec, step(must(t, "a", 1))) })
			if text := r.told(); !strings.Contains(text, "the service ended by itself") || !strings.Contains(text, "no licence") {
				t.Errorf("told %q", text)
			}
		})
	}
}

// The panic of a handler is an attempt like any other.
func TestAPanicIsSeen(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(func(context.Context, *sql.Tx, Order) error { panic("oh") }) })
	got := headracetest.Run(t, s.spec, headracetest.Deliver(must(t, "a", 1)))
	if len(got.DeadLetters) != 1 || !strings.Contains(got.DeadLetters[0].Error, "oh") {
		t.Errorf("dead letters: %v", got.DeadLetters)
	}
}

// Two consumers of one topic: the process is killed when the last of them would have acked, and both get the message again.
func TestAKillWithTwoConsumers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var quick, slow attempts
		s := newShop(t, func(p process) {
			p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
				slow.add()
				time.Sleep(time.Second)
				return p.place(ctx, tx, o)
			})
			runtime.Handle(p.rt.Consumer("shop.audit", "orders"), "order.placed", func(context.Context, Order) error {
				quick.add()
				return nil
			})
		})
		headracetest.Run(t, s.spec, headracetest.KilledAfterCommit(must(t, "a", 1)))
		s.wantState(t, "a", "version 1 of a, 100 cents, written 1 times")
		if quick.n != 2 || slow.n != 1 {
			t.Errorf("the plain handler ran %d times, want 2: nothing was acked before the kill; that of the inbox %d times, want 1: it had committed", quick.n, slow.n)
		}
	})
}

// What was in the outbox before is published, and is no part of the scenario.
func TestWhatWasInTheOutboxBeforeIsNotOfTheScenario(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(p.place) })
	tx, err := s.store.DB().BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.add(t.Context(), tx, must(t, "other", 1)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	got := headracetest.Run(t, s.spec, headracetest.Deliver(must(t, "a", 1)))
	if n := len(got.Published["bills"]); n != 1 {
		t.Errorf("%d bills, want the scenario's own", n)
	}
	if backlog, err := s.store.Outbox().Backlog(t.Context(), 1); err != nil || backlog.Rows != 0 {
		t.Errorf("%d rows are left in the outbox (%v), want none", backlog.Rows, err)
	}
}

// One of two processes is slow to begin: the other waits for it.
func TestTogetherBeginsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var began []time.Time
		processes := 0
		s := newShop(t, func(p process) {
			runtime.Handle(p.orders, "order.placed", func(context.Context, Order) error {
				mu.Lock()
				defer mu.Unlock()
				began = append(began, time.Now())
				return nil
			})
			if processes++; processes == 2 {
				p.orders.Pause("slow")
				time.AfterFunc(time.Second/2, func() { p.orders.Resume("slow") })
			}
		})
		headracetest.Run(t, s.spec, headracetest.Together(must(t, "a", 1)))
		if len(began) != 2 || !began[0].Equal(began[1]) {
			t.Errorf("the handlers began at %v, want both at the same moment", began)
		}
	})
}

func TestRunChecksItsSteps(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(p.place) })
	m := must(t, "a", 1)
	for want, step := range map[string]headracetest.Step{
		"step 1: it is the zero Step":                 {},
		"step 1: Deliver: message 2 is nil":           headracetest.Deliver(m, nil),
		"step 1: Twice: message 1 has no UUID":        headracetest.Twice(message.NewMessage("", nil)),
		"step 1: FailAttempt: n is 0: want 1 or more": headracetest.FailAttempt(0, errors.New("x"), m),
		"step 1: FailAttempt: err is nil":             headracetest.FailAttempt(1, nil, m),
		"step 1: Together: message 1 is nil":          headracetest.Together(nil),
		"step 1: KilledAfterCommit: message 1 is nil": headracetest.KilledAfterCommit(nil),
	} {
		r := record(t, func(t testing.TB) { headracetest.Run(t, s.spec, step) })
		if text := r.told(); !strings.Contains(text, want) {
			t.Errorf("told %q, want %q", text, want)
		}
	}
	r := record(t, func(t testing.TB) { headracetest.Run(t, headracetest.Spec{}) })
	if text := r.told(); !strings.Contains(text, "Spec.Service is nil") || !strings.Contains(text, `Spec.Topic is ""`) {
		t.Errorf("told %q", text)
	}
}

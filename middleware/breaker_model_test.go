package middleware

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// machineModel remembers everything that a machine was told, and answers each question by reading all of it.
type machineModel struct {
	t *rapid.T
	m machine

	now       time.Time
	outcome   uint64
	successes []success // all
	clock     uint64

	running []modelAttempt
	permits int // of those that run

	// Since the state was BreakerClosed last.
	streak map[string]bool
	first  time.Time // of streak
}

type modelAttempt struct {
	key    string
	begun  uint64
	permit bool
}

func (m *machineModel) key() string {
	return fmt.Sprint(rapid.IntRange(0, 5).Draw(m.t, "key"))
}

// begin starts an attempt as the breaker does: freely when it is closed, else with a permit.
func (m *machineModel) begin() {
	a := modelAttempt{key: m.key(), begun: m.m.clock}
	if m.m.state != BreakerClosed {
		free := m.m.free()
		if a.permit = m.m.take(m.now); a.permit != (free > 0) {
			m.t.Fatalf("take() = %v with %d free", a.permit, free)
		}
		if !a.permit {
			return
		}
		m.permits++
	}
	m.running = append(m.running, a)
}

func (m *machineModel) end() (a modelAttempt, ok bool) {
	if len(m.running) == 0 {
		return a, false
	}
	i := rapid.IntRange(0, len(m.running)-1).Draw(m.t, "attempt")
	a = m.running[i]
	m.running = append(m.running[:i:i], m.running[i+1:]...)
	if a.permit {
		m.permits--
	}
	return a, true
}

func (m *machineModel) fail() {
	a, ok := m.end()
	if !ok {
		return
	}
	before := m.m.state
	m.clock++
	if got := m.m.failed(a.key, "broken", a.permit, m.now); got != m.clock {
		m.t.Fatalf("failed() = %d, want %d", got, m.clock)
	}
	if before != BreakerClosed {
		return
	}
	if len(m.streak) == 0 {
		m.first = m.now
	}
	m.streak[a.key] = true
	opens := len(m.streak) >= m.m.config.Keys && m.now.Sub(m.first) >= m.m.config.After
	if (m.m.state == BreakerOpen) != opens {
		m.t.Fatalf("state is %v after %d keys failed in %v, want opened: %v", m.m.state, len(m.streak), m.now.Sub(m.first), opens)
	}
	if opens {
		clear(m.streak)
	}
}

func (m *machineModel) succeed() {
	a, ok := m.end()
	if !ok {
		return
	}
	m.outcome++
	m.successes = append(m.successes, success{key: a.key, begun: a.begun, ok: true})
	m.m.succeeded(a.key, a.begun, a.permit, m.outcome, m.now)
	clear(m.streak)
}

func (m *machineModel) check(before BreakerState) {
	t, s := m.t, &m.m
	if s.inUse < 0 || s.overdue < 0 || s.inUse+s.overdue != m.permits {
		t.Fatalf("%d permits in use and %d overdue, want %d", s.inUse, s.overdue, m.permits)
	}
	switch s.state {
	case BreakerOpen:
		if s.free() != 0 {
			t.Fatalf("%d permits while it is open", s.free())
		}
		if wait := s.probeAt.Sub(m.now); wait > s.config.Guard.MaxPause {
			t.Fatalf("the next probe is in %v, which is not bounded", wait)
		}
	case BreakerProbing:
		if s.free()+s.inUse > max(1, s.inUse) {
			t.Fatalf("%d permits free and %d in use while it probes, want one at a time", s.free(), s.inUse)
		}
	case BreakerRamping:
		if s.limit < 2 && s.config.Ramp > 1 || s.limit > s.config.Ramp {
			t.Fatalf("limit %d while it ramps up to %d", s.limit, s.config.Ramp)
		}
	}
	if before == BreakerOpen && s.state == BreakerRamping || before == BreakerOpen && s.state == BreakerClosed {
		t.Fatalf("went from %v to %v without a probe", before, s.state)
	}
	if s.state == BreakerClosed && len(s.suspects) > 0 {
		t.Fatalf("%d suspects while it is closed", len(s.suspects))
	}
	if len(s.failing) > s.config.Keys {
		t.Fatalf("%d keys are remembered, at most %d matter", len(s.failing), s.config.Keys)
	}
	for key := range 6 {
		asker := fmt.Sprint(key)
		for first := uint64(1); first <= m.clock; first++ {
			want := false
			for _, ok := range m.successes {
				want = want || ok.key != asker && ok.begun >= first
			}
			if got := s.vouched(asker, first); got != want {
				t.Fatalf("vouched(%s, %d) = %v, want %v, after %v", asker, first, got, want, m.successes)
			}
			if s.mayGiveUp(asker, first, true, m.now) {
				t.Fatalf("mayGiveUp(%s, %d) of an error that is no message's fault", asker, first)
			}
			if got, want := s.mayGiveUp(asker, first, false, m.now), want && s.state == BreakerClosed; got != want {
				t.Fatalf("mayGiveUp(%s, %d) = %v in state %v, want %v", asker, first, got, s.state, want)
			}
		}
		if f := s.floor(); f > 0 { // what is below is of no interest to anybody
			before := s.successes
			s.vouch(asker, f-1)
			if before[0].begun != s.successes[0].begun || before[1].begun != s.successes[1].begun {
				t.Fatalf("a success below the floor %d changed %v to %v", f, before, s.successes)
			}
			s.successes = before
		}
	}
}

func TestBreakerAgreesWithNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := BreakerConfig{
			Keys:  rapid.IntRange(2, 5).Draw(t, "keys"),
			Ramp:  rapid.IntRange(1, 9).Draw(t, "ramp"),
			After: time.Duration(rapid.IntRange(1, 3).Draw(t, "after")) * time.Second,
		}.withDefaults()
		m := &machineModel{
			m:      newMachine(config, func() float64 { return 0.5 }),
			now:    time.Unix(1, 0),
			streak: map[string]bool{},
		}
		step := func(f func()) func(*rapid.T) {
			return func(t *rapid.T) {
				m.t = t
				for range rapid.IntRange(1, 6).Draw(t, "n") {
					before := m.m.state
					f()
					m.check(before)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"begin":   step(m.begin),
			"fail":    step(m.fail),
			"succeed": step(m.succeed),
			"pass":    step(func() { m.now = m.now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(m.t, "ms")) * time.Millisecond) }),
			"tick":    step(func() { m.m.tick(m.outcome, m.now) }),
			"abandon": step(func() {
				if a, ok := m.end(); ok {
					m.m.giveBack(a.permit)
				}
			}),
			"fail for good": step(func() {
				if a, ok := m.end(); ok {
					m.outcome++
					m.m.failedForGood(a.key, "broken", a.permit, m.outcome, m.now)
				}
			}),
			"recover": func(t *rapid.T) {
				// Whatever has happened: when all succeeds from now on, it closes within bounded time.
				m.t = t
				if rapid.IntRange(0, 4).Draw(t, "really") > 0 {
					return
				}
				for len(m.running) > 0 {
					m.succeed()
				}
				for n := 0; m.m.state != BreakerClosed; n++ {
					if n > 1000 {
						t.Fatalf("it is %v after 1000 successes", m.m.state)
					}
					m.now = m.now.Add(time.Second)
					m.m.tick(m.outcome, m.now)
					m.begin()
					m.succeed()
				}
				m.check(BreakerClosed)
			},
		})
	})
}

// The guard, asked after each outcome, against a list of all outcomes.
func TestDeadLetterGuardAgreesWithNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := DeadLetterGuard{
			Share: rapid.Float64Range(0.05, 0.95).Draw(t, "share"), Outcomes: 100,
			PerMinute: rapid.IntRange(1, 80).Draw(t, "per minute"),
		}
		g := newRateGuard(config)
		type entry struct {
			lost bool
			at   time.Time
		}
		var all []entry
		now := time.Unix(1, 0)
		share := rapid.IntRange(1, 10).Draw(t, "tenths lost")
		pace := rapid.IntRange(1, 3000).Draw(t, "ms between")
		for i := range rapid.IntRange(0, 400).Draw(t, "outcomes") {
			now = now.Add(time.Duration(pace) * time.Millisecond)
			e := entry{rapid.IntRange(1, 10).Draw(t, "lost") <= share, now}
			all = append(all, e)
			if !e.lost {
				continue
			}
			inWindow, inMinute := 0, 0
			for j, o := range all {
				if o.lost && j >= len(all)-config.Outcomes {
					inWindow++
				}
				if o.lost && now.Sub(o.at) < time.Minute {
					inMinute++
				}
			}
			want := len(all) >= config.Outcomes && inWindow > int(config.Share*100) && inMinute > config.PerMinute
			if got := g.lost(uint64(i+1), now); got != want {
				t.Fatalf("lost() = %v after %d outcomes, %d of the last 100 and %d within a minute lost; want %v with %+v",
					got, len(all), inWindow, inMinute, want, config)
			}
		}
	})
}

package middleware

import (
	"fmt"
	"testing"
	"time"
)

// A database that came back was met by everything that had waited, all at once, and was gone again. The random schedules of the model
// seldom get as far as a probe.
func TestI11OneProbeAtATimeThenTwiceAsMany(t *testing.T) {
	config := BreakerConfig{Ramp: 8}.withDefaults()
	m, now := newMachine(config, func() float64 { return 0 }), time.Unix(1, 0)
	fails := func() {
		for i := range config.Keys {
			m.failed(fmt.Sprint(i), "down", false, now)
		}
	}
	fails()
	now = now.Add(config.After)
	fails()
	if m.state != BreakerOpen || m.take(now) {
		t.Fatalf("state %v after %d keys failed for %v, or a permit while it is open", m.state, config.Keys, config.After)
	}
	probe := func() {
		t.Helper()
		now = m.probeAt
		m.tick(0, now)
		if m.state != BreakerProbing || !m.take(now) || m.take(now) {
			t.Fatalf("state %v with %d permits in use, want one probe", m.state, m.inUse)
		}
	}
	probe()
	m.failed("0", "down", true, now)
	if wait := m.probeAt.Sub(now); m.state != BreakerOpen || wait != 2*config.ProbeDelay {
		t.Fatalf("state %v, the next probe in %v; want open and %v", m.state, wait, 2*config.ProbeDelay)
	}
	probe()
	m.succeeded("0", m.clock, true, 1, now)
	for want := 2; want <= 8; want *= 2 {
		taken := 0
		for m.take(now) {
			taken++
		}
		if m.state != BreakerRamping || taken != want {
			t.Fatalf("state %v and %d permits, want ramping and %d", m.state, taken, want)
		}
		for range taken {
			m.succeeded("0", m.clock, true, 1, now)
		}
	}
	if m.state != BreakerClosed {
		t.Fatalf("state %v, want closed", m.state)
	}
}

package middleware

import (
	"fmt"
	"time"
)

// BreakerConfig says when a [Breaker] opens, and how it closes again. Its zero value is the default.
type BreakerConfig struct {
	// Off switches all of it off: no outage is recognised, and a message whose retries are used up is a
	// dead letter whatever else happens.
	Off bool

	// Keys is how many distinct keys must fail, with no success in between, to open. Default 5, at least 2.
	Keys int

	// After is how long these failures must have gone on, from the first to the last. Default 1 s.
	After time.Duration

	// ProbeDelay is the time from opening to the first probe. It doubles with each probe that fails, up to
	// MaxProbeDelay, and is shortened at random by up to a fifth. Defaults 1 s and 30 s. They are also how
	// long a message is held between its attempts while the breaker is closed and nothing vouches for it.
	ProbeDelay, MaxProbeDelay time.Duration

	// Ramp is the number of attempts at once from which a recovery is taken for complete. Default 32.
	Ramp int

	// Guard is the limit on failures for good.
	Guard DeadLetterGuard
}

// DeadLetterGuard limits the rate of failures for good: a bad deployment makes dead letters of everything.
// Share and PerMinute have to be exceeded together. Its zero value is the default.
type DeadLetterGuard struct {
	// Off lets any number of messages become dead letters.
	Off bool

	// Share is the part of the last Outcomes messages that failed for good, over 0 and below 1.
	// Default 0.5. Outcomes is 100 to 100,000, default 200; before there were as many, nothing trips.
	Share    float64
	Outcomes int

	// PerMinute is how many failed for good within the last minute. Default 60, at most 100,000.
	PerMinute int

	// Pause is how long the intake is paused then, before one message tests whether it got better. It
	// doubles with each one that fails for good, up to MaxPause. Defaults 1 min and 30 min.
	Pause, MaxPause time.Duration
}

// The bounds of DeadLetterGuard.Outcomes and PerMinute: so many failures are remembered.
const (
	minOutcomes = 100
	maxOutcomes = 100_000
)

// Validate tells the first field that makes no sense, by name and value.
func (c BreakerConfig) Validate() error {
	c = c.withDefaults()
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("middleware.BreakerConfig.%s is %v: want %s", field, value, want)
	}
	g := c.Guard
	switch {
	case c.Keys < 2:
		return bad("Keys", c.Keys, "2 or more, or 0 for the default: one key that fails is no outage")
	case c.After < 0:
		return bad("After", c.After, "a positive duration, or 0 for the default")
	case c.ProbeDelay < 0:
		return bad("ProbeDelay", c.ProbeDelay, "a positive duration, or 0 for the default")
	case c.MaxProbeDelay < c.ProbeDelay:
		return bad("MaxProbeDelay", c.MaxProbeDelay, fmt.Sprintf("at least ProbeDelay, %v", c.ProbeDelay))
	case c.Ramp < 1:
		return bad("Ramp", c.Ramp, "1 or more, or 0 for the default")
	case !(g.Share > 0 && g.Share < 1):
		return bad("Guard.Share", g.Share, "over 0 and below 1, or 0 for the default")
	case g.Outcomes < minOutcomes || g.Outcomes > maxOutcomes:
		return bad("Guard.Outcomes", g.Outcomes, fmt.Sprintf("%d to %d, or 0 for the default", minOutcomes, maxOutcomes))
	case g.PerMinute < 1 || g.PerMinute > maxOutcomes:
		return bad("Guard.PerMinute", g.PerMinute, fmt.Sprintf("1 to %d, or 0 for the default", maxOutcomes))
	case g.Pause < 0:
		return bad("Guard.Pause", g.Pause, "a positive duration, or 0 for the default")
	case g.MaxPause < g.Pause:
		return bad("Guard.MaxPause", g.MaxPause, fmt.Sprintf("at least Guard.Pause, %v", g.Pause))
	}
	return nil
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	c.Keys = or(c.Keys, 5)
	c.After = or(c.After, time.Second)
	c.ProbeDelay = or(c.ProbeDelay, min(time.Second, or(c.MaxProbeDelay, time.Hour)))
	c.MaxProbeDelay = or(c.MaxProbeDelay, max(30*time.Second, c.ProbeDelay))
	c.Ramp = or(c.Ramp, 32)
	c.Guard.Share = or(c.Guard.Share, 0.5)
	c.Guard.Outcomes = or(c.Guard.Outcomes, 200)
	c.Guard.PerMinute = or(c.Guard.PerMinute, 60)
	c.Guard.Pause = or(c.Guard.Pause, min(time.Minute, or(c.Guard.MaxPause, time.Hour)))
	c.Guard.MaxPause = or(c.Guard.MaxPause, max(30*time.Minute, c.Guard.Pause))
	return c
}

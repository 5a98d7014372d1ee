package runtime

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/brokers"
)

// Health returns a handler for probes. Each answers 200, or 503 with the reasons, as JSON:
//
//	/livez      the program runs, and Run has not ended
//	/readyz     Run has subscribed, is not draining, no intake is paused, and dead letters can be written
//	/progressz  no delivery has been in work for longer than Config.StallAfter: alive is not progress
//
// It may be mounted under any prefix and used before, during and after Run.
func (r *Runtime) Health() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", r.health.serve(r.health.live))
	mux.HandleFunc("GET /readyz", r.health.serve(r.health.ready))
	mux.HandleFunc("GET /progressz", r.health.serve(r.health.progress))
	return mux
}

type healthState int32

const (
	healthStarting healthState = iota
	healthRunning
	healthDraining
	healthStopped
)

var healthStateNames = [...]string{"starting", "running", "draining", "stopped"}

// health answers probes from what a run publishes to it.
type health struct {
	runtime *Runtime
	state   atomic.Int32
	lines   atomic.Pointer[[]*line]
}

func (h *health) set(s healthState)   { h.state.Store(int32(s)) }
func (h *health) watch(lines []*line) { h.lines.Store(&lines) }

// consumerHealth is one consumer's part of an answer.
type consumerHealth struct {
	Consumer      string   `json:"consumer"`
	InFlight      int      `json:"in_flight"`
	Waiting       int      `json:"waiting"`
	OldestSeconds float64  `json:"oldest_in_flight_seconds"`
	Paused        []string `json:"paused,omitempty"`
	DLTBlocked    int      `json:"dead_letters_blocked,omitempty"`
	Breaker       string   `json:"breaker"`
	Held          int      `json:"held,omitempty"` // retries used up, but nothing else succeeds; or waiting for the breaker

	Lag        *int64            `json:"lag,omitempty"` // absent: not known
	Partitions []partitionHealth `json:"partitions,omitempty"`
}

// partitionHealth is what an adapter that knows tells of one partition.
type partitionHealth struct {
	Topic         string  `json:"topic"`
	Partition     int32   `json:"partition"`
	Lag           int64   `json:"lag"` // -1: not known
	InFlight      int     `json:"in_flight"`
	Waiting       int     `json:"waiting"`
	Returned      int     `json:"returned"`
	Blocked       int     `json:"blocked_keys"`
	OldestSeconds float64 `json:"oldest_incomplete_seconds"`
	NextSeconds   float64 `json:"next_return_in_seconds,omitempty"`
	Paused        bool    `json:"paused,omitempty"`
}

type healthAnswer struct {
	State     string           `json:"state"`
	Reasons   []string         `json:"reasons,omitempty"`
	Ledger    string           `json:"crash_ledger,omitempty"` // ledger.Stats.State; off is no reason: messages go on
	Consumers []consumerHealth `json:"consumers,omitempty"`
}

func (h *health) serve(check func(healthState, []consumerHealth) []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		state, consumers := healthState(h.state.Load()), h.consumers(time.Now())
		answer := healthAnswer{State: healthStateNames[state], Reasons: check(state, consumers), Consumers: consumers, Ledger: h.runtime.LedgerStats().State}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if len(answer.Reasons) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// The prober has gone if this fails; there is nobody to tell.
		_ = json.NewEncoder(w).Encode(answer)
	}
}

func (h *health) consumers(now time.Time) []consumerHealth {
	lines := h.lines.Load()
	if lines == nil {
		return nil
	}
	all := make([]consumerHealth, 0, len(*lines))
	for _, l := range *lines {
		s, b := l.intake.Stats(), l.breaker.Stats()
		c := consumerHealth{
			Consumer:   l.consumer.config.Name,
			InFlight:   s.InFlight,
			Waiting:    s.Waiting,
			Paused:     s.Paused,
			DLTBlocked: l.poison.Blocked(),
			Breaker:    b.State.String(),
			Held:       b.Held + b.Waiting,
		}
		if !s.OldestStart.IsZero() {
			c.OldestSeconds = now.Sub(s.OldestStart).Seconds()
		}
		c.broker(l.consumer, now)
		all = append(all, c)
	}
	return all
}

// broker adds what the broker knows of the consumer.
func (h *consumerHealth) broker(c *Consumer, now time.Time) {
	cfg := &c.config
	if b, ok := c.runtime.config.Broker.(brokers.Lagger); ok {
		if lag, known := b.Lag(cfg.Name, cfg.Topic); known {
			h.Lag = &lag
		}
	}
	b, ok := c.runtime.config.Broker.(brokers.Progresser)
	if !ok {
		return
	}
	for _, p := range b.Progress(cfg.Name, cfg.Topic) {
		partition := partitionHealth{
			Topic: p.Topic, Partition: p.Partition, Lag: p.Lag,
			InFlight: p.InFlight, Waiting: p.Waiting, Returned: p.Returned, Blocked: p.Blocked, Paused: p.Paused,
		}
		if !p.OldestSince.IsZero() {
			partition.OldestSeconds = now.Sub(p.OldestSince).Seconds()
		}
		if !p.NextReturn.IsZero() {
			partition.NextSeconds = p.NextReturn.Sub(now).Seconds()
		}
		h.Partitions = append(h.Partitions, partition)
	}
}

func (h *health) live(state healthState, _ []consumerHealth) []string {
	if state == healthStopped {
		return []string{"Run has ended"}
	}
	return nil
}

func (h *health) ready(state healthState, consumers []consumerHealth) []string {
	var reasons []string
	if state != healthRunning {
		reasons = append(reasons, "the runtime is "+healthStateNames[state])
	}
	for _, c := range consumers {
		for _, p := range c.Paused {
			reasons = append(reasons, fmt.Sprintf("consumer %s is paused: %s", c.Consumer, p))
		}
		if c.DLTBlocked > 0 {
			reasons = append(reasons, fmt.Sprintf("consumer %s cannot write %d dead letters", c.Consumer, c.DLTBlocked))
		}
	}
	return reasons
}

func (h *health) progress(_ healthState, consumers []consumerHealth) []string {
	limit := h.runtime.config.StallAfter
	if limit == Off {
		return nil
	}
	var reasons []string
	for _, c := range consumers {
		if age := time.Duration(c.OldestSeconds * float64(time.Second)); age > limit {
			reasons = append(reasons, fmt.Sprintf("consumer %s has held a delivery for %v, longer than %v", c.Consumer, age.Round(time.Millisecond), limit))
		}
	}
	return reasons
}

package sqs

import (
	"context"
	"errors"
	"time"
)

// A delivery is prolonged when less than half of its visibility is left. The keeper looks so often that two more tries
// are left then.
const looksPerVisibility = 6

var (
	errTooLong = errors.New("it was held for as long as SQS allows, 12 h")
	errLapsed  = errors.New("its visibility ended before it could be prolonged")
)

// keep prolongs what is held, and repeats deletes that failed, until ctx ends.
func (s *subscription) keep(ctx context.Context) {
	look := time.NewTicker(s.config.Visibility / looksPerVisibility)
	defer look.Stop()
	retry := time.NewTicker(min(maxDelay, s.config.Visibility/looksPerVisibility))
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			s.prolong(ctx)
		case <-retry.C:
			s.deleteUnsent(ctx)
		}
	}
}

// prolong hides what is held for another while, where it is time. What cannot be prolonged any more is let go.
func (s *subscription) prolong(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Visibility/2)
	defer cancel()
	lost := s.prolongHeld(ctx)
	for h, err := range lost {
		s.lose(h, err)
	}
	if len(lost) > 0 {
		s.giveBackRecalled()
	}
}

// prolongHeld returns what was lost, and why.
func (s *subscription) prolongHeld(ctx context.Context) map[*hold]error {
	s.visibility.Lock()
	defer s.visibility.Unlock()
	var (
		lost     = map[*hold]error{}
		now      = time.Now()
		holds    []*hold // nil for an acked one
		entries  []*entry
		timeouts []time.Duration
	)
	add := func(h *hold, e *entry) {
		left := e.until.Sub(now)
		if left >= s.config.Visibility/2 {
			return
		}
		// Less than a second cannot be asked for, and more than is allowed is refused.
		timeout := min(s.config.Visibility, maxVisibility-now.Sub(e.first)).Truncate(time.Second)
		if timeout < time.Second {
			if h != nil && left <= 0 {
				lost[h] = errTooLong
			}
			return
		}
		holds, entries, timeouts = append(holds, h), append(entries, e), append(timeouts, timeout)
	}
	for _, h := range s.settler.Held() {
		add(h, h.Entry)
	}
	s.mu.Lock()
	unsent := append([]*entry(nil), s.unsent...)
	s.mu.Unlock()
	for _, e := range unsent {
		add(nil, e)
	}
	if len(entries) == 0 {
		return lost
	}
	var last error
	for i, err := range s.changeVisibility(ctx, entries, timeouts) {
		h, e := holds[i], entries[i]
		switch {
		case err == nil:
			e.until = now.Add(timeouts[i])
		case h == nil:
			// Its delete will tell.
		case isFinal(err):
			lost[h] = err
		case time.Now().After(e.until):
			lost[h] = errors.Join(errLapsed, err)
		default:
			last = err
		}
	}
	if last != nil {
		s.log.Warn("sqs: could not prolong deliveries; tries again", "error", last)
	}
	return lost
}

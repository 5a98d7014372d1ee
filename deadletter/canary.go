package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// watch waits until the messages of the last step were handled, at most for CanaryWait. It returns ErrCanary when one failed again, or
// is known not to be handled by then.
func (u *run) watch(ctx context.Context) error {
	if len(u.sent) == 0 {
		return nil
	}
	u.sent = distinct(u.sent)
	end := time.NewTimer(u.config.CanaryWait)
	defer end.Stop()
	for ended := false; ; {
		if err := u.look(ctx); err != nil {
			return err
		}
		late, untold, err := u.waiting(ctx)
		switch {
		case err != nil:
			return err
		case late+untold == 0:
			return nil
		case ended && late > 0:
			return fmt.Errorf("%w: %d of %d messages were not handled within %v", ErrCanary, late, len(u.sent), u.config.CanaryWait)
		case ended:
			u.report.Untold += untold
			u.config.Progress(u.report)
			return nil
		}
		poll := time.NewTimer(u.config.CanaryPoll)
		select {
		case <-ctx.Done():
			poll.Stop()
			return ctx.Err()
		case <-end.C:
			ended = true
		case <-poll.C:
		}
		poll.Stop()
	}
}

// look returns ErrCanary if a message of this run has failed again.
func (u *run) look(ctx context.Context) error {
	failed, err := u.config.Watcher.Failed(ctx, u.config.Batch)
	if err != nil {
		return fmt.Errorf("look for redriven messages that failed again: %w", err)
	}
	if len(failed) == 0 {
		return nil
	}
	u.report.FailedAgain = u.report.FailedAgain[:0]
	for _, r := range failed {
		u.report.FailedAgain = append(u.report.FailedAgain, r.ID)
	}
	r := failed[0]
	return fmt.Errorf("%w: messages failed again: %d of %d, the first one of consumer %s for %s: %s (dead letter %s)",
		ErrCanary, len(failed), u.report.Redriven, r.Consumer, r.ErrorType, clean(r.Error, maxColumn), r.ID)
}

// waiting tells how many messages of the step are known not to be handled, and of how many nobody can tell.
func (u *run) waiting(ctx context.Context) (late, untold int, err error) {
	byConsumer := map[string][]string{}
	for _, s := range u.sent {
		if s.messageID != "" {
			byConsumer[s.consumer] = append(byConsumer[s.consumer], s.messageID)
		}
	}
	done, silent := map[[2]string]bool{}, map[string]bool{}
	for consumer, ids := range byConsumer {
		handled, err := u.config.Watcher.Done(ctx, consumer, ids)
		switch {
		case errors.Is(err, ErrUnknown):
			silent[consumer] = true
		case err != nil:
			return 0, 0, fmt.Errorf("look for redriven messages that were handled: %w", err)
		}
		for _, id := range handled {
			done[[2]string{consumer, id}] = true
		}
	}
	var open []sent
	for _, s := range u.sent {
		switch is := done[[2]string{s.consumer, s.messageID}]; {
		case !is:
			open = append(open, s)
		case !s.released:
			u.seen[s.kind] = true
		}
	}
	for _, s := range open {
		if s.messageID != "" && !silent[s.consumer] && (s.released || u.seen[s.kind]) {
			late++
		} else {
			untold++
		}
	}
	return late, untold, nil
}

// distinct leaves one of each message: two letters can be of one.
func distinct(all []sent) []sent {
	known := map[[2]string]bool{}
	return slices.DeleteFunc(all, func(s sent) bool {
		id := [2]string{s.consumer, s.messageID}
		twice := known[id] && s.messageID != ""
		known[id] = true
		return twice
	})
}

// pace bounds a rate. It is not safe for concurrent use.
type pace struct {
	rate float64 // per second; 0: no limit
	next time.Time
}

// wait blocks until the next message may go.
func (p *pace) wait(ctx context.Context) error {
	if p.rate == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	delay := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(time.Second) / p.rate))
	if delay <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// chunk is how many messages can be sent at the rate in a quarter of a claim.
func (p *pace) chunk(ttl time.Duration) int {
	if p.rate == 0 {
		return chunk
	}
	return int(max(1, min(chunk, p.rate*ttl.Seconds()/4)))
}

package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// watch waits until the messages of the last step were handled, or for CanaryWait, and returns ErrCanary when one failed again.
func (u *run) watch(ctx context.Context) error {
	if len(u.sent) == 0 {
		return nil
	}
	end := time.NewTimer(u.config.CanaryWait)
	defer end.Stop()
	for {
		if err := u.look(ctx); err != nil {
			return err
		}
		all, err := u.handled(ctx)
		if err != nil {
			return err
		}
		if all {
			return nil
		}
		poll := time.NewTimer(u.config.CanaryPoll)
		select {
		case <-ctx.Done():
			poll.Stop()
			return ctx.Err()
		case <-end.C:
			poll.Stop()
			return u.look(ctx)
		case <-poll.C:
		}
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
	return fmt.Errorf("%w: %d of %d, the first one of consumer %s for %s: %s (dead letter %s)",
		ErrCanary, len(failed), u.report.Redriven, r.Consumer, r.ErrorType, clean(r.Error, maxColumn), r.ID)
}

// handled tells whether all messages of the step are known to be done.
func (u *run) handled(ctx context.Context) (bool, error) {
	byConsumer := map[string][]string{}
	for _, s := range u.sent {
		if s.messageID == "" {
			return false, nil
		}
		byConsumer[s.consumer] = append(byConsumer[s.consumer], s.messageID)
	}
	for consumer, ids := range byConsumer {
		done, err := u.config.Watcher.Done(ctx, consumer, ids)
		switch {
		case errors.Is(err, ErrUnknown):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("look for redriven messages that were handled: %w", err)
		case len(done) < len(ids):
			return false, nil
		}
	}
	return true, nil
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

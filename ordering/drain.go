package ordering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// errDrained is the cause of the end of a subscription that was drained, as context.Cause gives it.
var errDrained = errors.New("ordering: the subscription was drained")

// maxNamed is how many deliveries a DrainError names.
const maxNamed = 16

// DrainError tells that a drain was not a clean one.
type DrainError struct {
	// Consumer is the consumer's name.
	Consumer string

	// Cancelled is how many deliveries were running when the limit passed. Their contexts were cancelled.
	Cancelled int

	// Held is how many of them had still not returned when the grace had passed. They keep their lanes.
	Held int

	// HeldKeys names the first 16 of those, the oldest first.
	HeldKeys []HeldKey

	// Unclosed are the topics whose subscriber did not close its channel after it was cancelled; the decorated channels are closed.
	Unclosed []string

	// Cause is why the limit passed: the cause of the end of Drain's context. nil if it did not.
	Cause error
}

// HeldKey names a delivery that has not returned.
type HeldKey struct {
	Topic     string
	Partition int32 // -1: the broker has none
	Key       string
	UUID      string        // the Watermill message's, may be empty
	For       time.Duration // since it was handed to the router
}

func (e *DrainError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "ordering: drain %q", e.Consumer)
	sep := ": "
	if e.Cancelled > 0 {
		fmt.Fprintf(&b, "%slimit passed (%v) with %d deliveries running", sep, e.Cause, e.Cancelled)
		sep = "; "
	}
	if e.Held > 0 {
		fmt.Fprintf(&b, "%s%d still held after they were cancelled: ", sep, e.Held)
		for i, k := range e.HeldKeys {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s", k)
		}
		if more := e.Held - len(e.HeldKeys); more > 0 {
			fmt.Fprintf(&b, " and %d more", more)
		}
		sep = "; "
	}
	if len(e.Unclosed) > 0 {
		fmt.Fprintf(&b, "%sthe subscriber did not close its channel of %q", sep, e.Unclosed)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *DrainError) Unwrap() error { return e.Cause }

// String names the delivery as errors and logs do.
func (k HeldKey) String() string {
	topic := k.Topic
	if k.Partition >= 0 {
		topic = fmt.Sprintf("%s/%d", topic, k.Partition)
	}
	return fmt.Sprintf("%s key %q message %q for %v", topic, k.Key, k.UUID, k.For.Round(time.Millisecond))
}

// Drain ends all subscriptions of the intake for good: it lets nothing more start, gives back what
// waits, and waits for what runs to be settled; then it cancels the subscriptions and waits for their
// channels to be closed. It does not close the subscribers.
//
// What waits behind a running delivery of its key is given back when that one has returned.
//
// When ctx ends before that, Drain cancels the contexts of the running deliveries, and waits for them
// for Config.CancelGrace more. The error is then a *DrainError, even if all of them returned.
// It may be called more than once; of several calls at once the earliest limit applies.
func (in *Intake) Drain(ctx context.Context) error {
	in.mu.Lock()
	in.draining = true
	if in.drained == nil {
		in.drained = make(chan struct{})
		defer close(in.drained)
	}
	subs := make([]*subscription, 0, len(in.subs))
	for s := range in.subs {
		subs = append(subs, s)
	}
	in.mu.Unlock()

	report := in.settleHeld(ctx, subs)
	return in.awaitEnd(report, subs)
}

// drainAlone drains s because the context of its Subscribe ended, and logs an error since nobody is
// there to take it.
func (in *Intake) drainAlone(s *subscription) {
	subs := []*subscription{s}
	if err := in.awaitEnd(in.settleHeldWithin(in.cfg.DrainTimeout, subs), subs); err != nil {
		in.cfg.Logger.Error("drain after the subscription's context ended", "consumer", in.cfg.Consumer, "topic", s.topic, "error", err)
	}
}

// settleHeldWithin is settleHeld with a limit that gives way to that of a Drain that is going on.
func (in *Intake) settleHeldWithin(limit time.Duration, subs []*subscription) *DrainError {
	in.mu.Lock()
	in.halt(subs)
	drained := in.drained
	dropped := in.takeDropped()
	in.mu.Unlock()
	in.giveBack(dropped)

	if drained != nil {
		<-drained
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%v passed", limit))
	defer cancel()
	return in.settleHeld(ctx, subs)
}

// halt stops those of subs that have not ended. in.mu is held.
func (in *Intake) halt(subs []*subscription) {
	for _, s := range subs {
		if _, open := in.subs[s]; open {
			s.halt()
		}
	}
}

// settleHeld stops subs and waits until they hold nothing, or gives up on them.
func (in *Intake) settleHeld(ctx context.Context, subs []*subscription) *DrainError {
	in.mu.Lock()
	in.halt(subs)
	var waitFor []*subscription
	for _, s := range subs {
		if _, open := in.subs[s]; open && !s.abandoned {
			waitFor = append(waitFor, s)
		}
	}
	dropped := in.takeDropped()
	in.mu.Unlock()
	in.giveBack(dropped)

	report := &DrainError{Consumer: in.cfg.Consumer}
	if !allQuiet(waitFor, ctx.Done()) {
		report.Cause = context.Cause(ctx)
		report.Cancelled = in.cancelRunning(waitFor, report.Cause)
		grace, stop := context.WithTimeout(context.WithoutCancel(ctx), in.cfg.CancelGrace)
		defer stop()
		if !allQuiet(waitFor, grace.Done()) {
			in.abandon(waitFor)
		}
	}
	in.nameHeld(report, subs)
	return report
}

// allQuiet waits until subs hold nothing. It returns false if limit was closed before that.
func allQuiet(subs []*subscription, limit <-chan struct{}) bool {
	for _, s := range subs {
		select {
		case <-s.quiet:
			continue
		default:
		}
		select {
		case <-s.quiet:
		case <-limit:
			return false
		}
	}
	return true
}

// cancelRunning ends the contexts of what runs, and returns how many these are.
func (in *Intake) cancelRunning(subs []*subscription, cause error) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := 0
	for d := in.lanes.running.first; d != nil; d = d.next {
		if slices.Contains(subs, d.sub) {
			n++
		}
	}
	for _, s := range subs {
		s.cancel(fmt.Errorf("ordering: the limit of the drain passed: %w", cause))
	}
	return n
}

// abandon gives back what waits behind deliveries that do not return, and lets the router's loop end.
func (in *Intake) abandon(subs []*subscription) {
	in.mu.Lock()
	for _, s := range subs {
		if s.isQuiet {
			continue
		}
		in.lanes.drop(func(d *delivery) bool { return d.sub == s })
		s.abandoned = true
		s.closeOut()
	}
	dropped := in.takeDropped()
	in.mu.Unlock()
	in.giveBack(dropped)
}

// nameHeld fills in what is still running.
func (in *Intake) nameHeld(report *DrainError, subs []*subscription) {
	in.mu.Lock()
	defer in.mu.Unlock()
	now := time.Since(in.epoch)
	for d := in.lanes.running.first; d != nil; d = d.next {
		if !slices.Contains(subs, d.sub) {
			continue
		}
		report.Held++
		if len(report.HeldKeys) < maxNamed {
			k, _ := laneOf(d.Delivery, d.Topic, d.Key)
			report.HeldKeys = append(report.HeldKeys, HeldKey{
				Topic: k.topic, Partition: k.partition, Key: k.key, UUID: d.Original.UUID, For: now - d.started,
			})
		}
	}
}

// awaitEnd waits for the inner channels of those that hold nothing, and makes the report an error if
// it tells of anything. A router that reads one that does not end is let go: nothing more is handed to it.
func (in *Intake) awaitEnd(report *DrainError, subs []*subscription) error {
	grace := time.NewTimer(in.cfg.CancelGrace)
	defer grace.Stop()
	late := false
	for _, s := range subs {
		if !late {
			select {
			case <-s.ended:
				continue
			case <-s.readDone:
				continue
			case <-grace.C:
				late = true
			}
		}
		select {
		case <-s.readDone:
		default:
			report.Unclosed = append(report.Unclosed, s.topic)
			in.mu.Lock()
			s.closeOut()
			in.mu.Unlock()
		}
	}
	if report.Cancelled == 0 && report.Held == 0 && len(report.Unclosed) == 0 {
		return nil
	}
	return report
}

// dropEnded gives back the waiting deliveries that were taken away.
func (in *Intake) dropEnded() {
	in.mu.Lock()
	in.lanes.drop((*delivery).ended)
	in.dispatch()
	dropped := in.takeDropped()
	for d := dropped.first; d != nil; d = d.next {
		d.sub.peek = true // the subscription may have ended: during a pause nobody would see that
	}
	in.mu.Unlock()
	in.giveBack(dropped)
}

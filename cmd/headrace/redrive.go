package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

func (a *app) dltRedrive() *cobra.Command {
	var f filterFlags
	var reason, batch string
	var dry, all, canary bool
	var rate float64
	var limit, maxHops int
	var canaryWait, claim time.Duration
	cmd := &cobra.Command{
		Use: "redrive", Short: "Send dead letters back to the consumers that could not handle them",
		Long: `Send dead letters back to the consumers that could not handle them, and to nobody else.

Each one is claimed, published, confirmed and then marked, so that two operators cannot send one twice. One that cannot be
sent does not stop the others. When it is interrupted, the same command goes on: what was published and not marked is
sent again after the claim has ended, and the consumer's inbox removes the copy. A consumer that had handled a message after
all does not do so again.

--canary sends 1, then 10, then the rest, and stops as soon as one of them fails again, or if the database tells that they were
not handled within --canary-wait: they are still parked, or have no claim in the inbox, as another message of this redrive, of the same
event type, has. Otherwise it cannot tell (a handler without a transaction, an inbox elsewhere, a message that was dropped, a service that
does not run), says so, and goes on.

What a consumer that parks has parked is not sent: its key is released, in the database. WITHOUT --database nobody knows what is parked: the
copy that is sent is taken for a duplicate, and the key stays parked. Name the database, or use "park release".`,
		Args: args(cobra.NoArgs),
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&reason, "reason", "", "why, for the trail")
	flags.StringVar(&batch, "batch", "", "name of the run (default: a random one)")
	flags.BoolVar(&dry, "dry-run", false, "count them and do nothing")
	flags.BoolVar(&all, "all", false, "without a filter: all that are new")
	flags.BoolVar(&canary, "canary", false, "send 1, then 10, then the rest; stop when one fails again or is not handled")
	flags.DurationVar(&canaryWait, "canary-wait", deadletter.DefaultCanaryWait, "how long a step waits for its messages to be handled")
	flags.Float64Var(&rate, "rate", deadletter.Unlimited, "messages per second (default: without limit)")
	flags.IntVar(&limit, "limit", 0, "how many at most (default: all)")
	flags.IntVar(&maxHops, "max-hops", deadletter.DefaultMaxHops, "refuse messages that were redriven that often")
	flags.DurationVar(&claim, "claim-ttl", deadletter.DefaultClaimTTL, "how long a claim lasts if this command dies")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		ctx := cmd.Context()
		filter, err := f.parse()
		if err != nil {
			return err
		}
		if filter.IsZero() && !all {
			return usage("dlt redrive: name which dead letters with a filter, or --all")
		}
		by := deadletter.By{Actor: first(a.actor, "nobody"), Reason: first(reason, "dry run")}
		if !dry {
			if by, err = a.by(reason); err != nil {
				return err
			}
		}
		d, err := a.openDesk(ctx, &f, true)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		publisher, err := d.broker.Publisher()
		if err != nil {
			return err
		}
		defer closing(publisher, &err)
		config := deadletter.RedriveConfig{
			Source: d.source(), Publisher: publisher, Prepare: d.broker.keyed, MaxHeaderBytes: d.broker.Capabilities().MaxHeaderBytes,
			Batch: batch, Actor: by.Actor, Reason: by.Reason, MaxHops: maxHops, Rate: rate, Limit: limit, ClaimTTL: claim,
		}
		if d.broker.reader != nil {
			config.Original = deadletter.OriginalFrom(d.broker.reader)
		}
		release := d.releases(parking.Reason(by))
		if d.db != nil {
			config.Parked = release.redrive
		}
		if canary {
			config.Canary, config.CanaryWait = []int{1, 10}, canaryWait
			if config.Watcher, err = d.watcher(ctx, filter, release); err != nil {
				return err
			}
		}
		bar := a.newBar(0)
		untold := 0
		config.Progress = func(r deadletter.RedriveReport) {
			if more := r.Untold - untold; more > 0 {
				bar.end()
				a.warnUntold(more, canaryWait)
				untold = r.Untold
			}
			bar.of = r.Selected
			bar.at(int64(r.Redriven + r.Unmarked + r.Busy + len(r.Unsent)))
		}
		redriver, err := deadletter.NewRedriver(config)
		if err != nil {
			return usage("%w", err)
		}
		if dry {
			counts, err := redriver.Count(ctx, filter)
			if err != nil {
				return err
			}
			a.warnSkipped(d)
			return a.showCounts("redrive", counts)
		}
		if config.Only, err = a.confirmRedrive(ctx, d, filter, limit); err != nil {
			return err
		}
		if redriver, err = deadletter.NewRedriver(config); err != nil {
			return err
		}
		if !a.isJSON() && isTerminal(a.err) {
			bar.w = a.err
		}
		report, err := redriver.Run(ctx, filter)
		bar.end()
		if err == nil {
			err = outcome(report)
		}
		return errors.Join(a.showReport(report), err)
	}
	return cmd
}

// confirmRedrive asks, and returns the ids of the letters that were confirmed: those that can be redriven, and those whose claim
// may have ended.
func (a *app) confirmRedrive(ctx context.Context, d *desk, f deadletter.Filter, limit int) ([]string, error) {
	if len(f.States) == 0 {
		f.States = []deadletter.State{deadletter.New}
	}
	f.States = append(slices.Clone(f.States), deadletter.Redriving)
	pins, err := d.pin(ctx, f)
	if err != nil {
		return nil, err
	}
	a.warnSkipped(d)
	if d.db == nil {
		fmt.Fprintln(a.err, "headrace: without --database parked keys stay parked: what their consumers get is a duplicate to them")
	}
	counts := countsOf(pins)
	delete(counts, deadletter.Redriving)
	if n := total(counts); n > 0 { // else there may be claims that have ended
		if limit > 0 {
			n = min(n, int64(limit))
		}
		if err := a.confirm("redrive %s?", plural(n, "dead letter")); err != nil {
			return nil, err
		}
	}
	return append([]string{}, idsOf(pins)...), nil
}

// warnUntold tells why a canary goes on without an answer.
func (a *app) warnUntold(n int, wait time.Duration) {
	fmt.Fprintf(a.err, "headrace: after %v nobody can tell whether %s handled, and the canary goes on: no message of this redrive of that event type has a claim in the "+
		"inbox of this database. Its handler has no transaction or another database, or drops them, or no service runs\n", wait, wasWere(n, "message"))
}

// wasWere is "1 message was", "2 messages were".
func wasWere(n int, what string) string {
	if n == 1 {
		return plural(n, what) + " was"
	}
	return plural(n, what) + " were"
}

// outcome is the exit code of a run that went to its end.
func outcome(r deadletter.RedriveReport) error {
	switch {
	case len(r.Unsent) > 0:
		return exit(exitPartly, "%s could not be sent", plural(len(r.Unsent), "dead letter"))
	case r.Busy > 0:
		return exit(exitPartly, "%s are redriven by somebody else", plural(r.Busy, "dead letter"))
	case r.Unmarked > 0:
		return exit(exitPartly, "%s were sent, but another run may send them again", plural(r.Unmarked, "dead letter"))
	case r.Redriven == 0:
		return errNothing
	}
	return nil
}

func (a *app) showReport(r deadletter.RedriveReport) error {
	if a.isJSON() {
		return a.writeJSON(r)
	}
	fmt.Fprintf(a.out, "redriven %d of %s in batch %s\n", r.Redriven, plural(r.Selected, "dead letter"), r.Batch)
	if r.Released > 0 {
		fmt.Fprintf(a.out, "%d of them were parked: their keys are released\n", r.Released)
	}
	for _, u := range r.Unsent {
		fmt.Fprintf(a.out, "not sent: %s: %s\n", u.ID, u.Why)
	}
	for _, id := range r.FailedAgain {
		fmt.Fprintf(a.out, "failed again: %s\n", id)
	}
	return nil
}

// releases remembers the parked messages whose keys a redrive released. They run from the database: nothing on the broker tells what
// becomes of them.
type releases struct {
	ledger parking.Ledger // nil without a database
	why    parking.Reason
	parked []parking.Message // as they were before
}

func (d *desk) releases(why parking.Reason) *releases {
	if d.db == nil {
		return &releases{why: why}
	}
	return &releases{ledger: d.db.Parking(), why: why}
}

// redrive is a deadletter.RedriveConfig.Parked.
func (r *releases) redrive(ctx context.Context, letter poison.Record) (bool, error) {
	before, parked, err := findParked(ctx, r.ledger, letter.Consumer, letter.MessageID)
	if err != nil || !parked {
		return false, err
	}
	released, err := parking.Redrive(ctx, r.ledger, letter, r.why)
	if released {
		r.parked = append(r.parked, before)
	}
	return released, err
}

// failed returns the dead letters of released messages that failed again: such a message keeps its place, with its new failure.
func (r *releases) failed(ctx context.Context) ([]poison.Record, error) {
	var list []poison.Record
	for _, before := range r.parked {
		now, parked, err := findParked(ctx, r.ledger, before.Consumer, before.ID)
		if err != nil {
			return nil, err
		}
		if parked && now.Record.ID != "" && now.Record.ID != before.Record.ID {
			list = append(list, now.Record)
		}
	}
	return list, nil
}

// findParked returns a message if it is parked.
func findParked(ctx context.Context, ledger parking.Ledger, consumer, id string) (m parking.Message, parked bool, err error) {
	if consumer == "" || id == "" {
		return m, false, nil
	}
	key, seq, found, err := ledger.Find(ctx, consumer, id)
	if err != nil || !found {
		return m, false, err
	}
	at, err := ledger.Messages(ctx, consumer, key, seq-1, 1)
	if err != nil || len(at) == 0 || at[0].ID != id { // handled meanwhile
		return m, false, err
	}
	return at[0], true, nil
}

// watcher looks for redriven messages that failed again on their dead-letter topics, in the database and among the parked ones, and for
// those that were handled in the inbox, if that is in the same database.
type watcher struct {
	tail    *deadletter.Tail
	store   *deadletter.Store
	db      *database
	release *releases
}

func (d *desk) watcher(ctx context.Context, f deadletter.Filter, release *releases) (*watcher, error) {
	w := &watcher{store: d.store, db: d.db, release: release}
	names := d.names
	if len(names) == 0 && d.store != nil {
		groups, err := d.store.Groups(ctx, f, deadletter.MaxLimit)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			names = append(names, g.Topic+poison.Suffix)
		}
	}
	if d.broker.reader == nil {
		return w, nil
	}
	var err error
	w.tail, err = deadletter.NewTail(ctx, d.broker.reader, names...)
	return w, err
}

// Failed implements deadletter.Watcher.
func (w *watcher) Failed(ctx context.Context, batch string) ([]poison.Record, error) {
	all, err := w.release.failed(ctx)
	if err != nil || len(all) > 0 {
		return all, err
	}
	if w.tail != nil {
		if all, err = w.tail.Failed(ctx, batch); err != nil || len(all) > 0 {
			return all, err
		}
	}
	if w.store == nil {
		return all, nil
	}
	return w.store.Failed(ctx, batch)
}

// Done implements deadletter.Watcher. A claim is no sign of a message that is parked: it was made when that was.
func (w *watcher) Done(ctx context.Context, consumer string, ids []string) ([]string, error) {
	if w.db == nil {
		return nil, deadletter.ErrUnknown
	}
	claimed, err := w.db.claimed(ctx, consumer, ids)
	if err != nil {
		return nil, err
	}
	var done []string
	for _, id := range claimed {
		_, _, parked, err := w.db.Parking().Find(ctx, consumer, id)
		if err != nil {
			return nil, err
		}
		if !parked {
			done = append(done, id)
		}
	}
	return done, nil
}

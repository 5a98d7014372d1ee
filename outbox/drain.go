package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v4"

	"github.com/headrace-go/headrace/classify"
)

// slice is how many pages a topic may publish before another one gets its turn.
const slice = 4

// drain publishes what one topic has. At most one drain of a topic runs at a time, and it has one
// Publish in flight: within a topic there is nothing else to keep in order.
type drain struct {
	*Relay
	t *topic
	// ctx ends when the relay is to stop: nothing new is published. work ends at the drain limit.
	ctx, work context.Context

	published int
	// confirmed are the rows to be deleted.
	confirmed []int64
}

// outcome tells how far a page came.
type outcome int

const (
	finished outcome = iota // all rows were looked at
	stopped                 // the relay stops, or a lease is lost or runs out
	failed                  // the topic fails as a whole
)

// run publishes pages until the topic is empty (false), or it is another one's turn (true).
func (d *drain) run() (more bool, err error) {
	t := d.t
	defer func() { t.wait(time.Now()) }()
	for range slice {
		full, out, err := d.page()
		if err != nil || out != finished {
			t.restart()
			return false, err
		}
		if !full {
			d.endOfPass()
			return false, nil
		}
	}
	return true, nil
}

// endOfPass forgets the lanes that did not fail again: they were published, or have no rows any more.
func (d *drain) endOfPass() {
	if len(d.t.held) == 0 {
		return
	}
	for l, f := range d.t.held {
		if f.trying {
			delete(d.t.held, l)
		}
	}
	d.note()
}

// page publishes one page of rows. more says that there may be more behind it.
func (d *drain) page() (more bool, out outcome, err error) {
	t := d.t
	if d.ctx.Err() != nil {
		return false, stopped, nil
	}
	g := d.tenancy.grant(time.Now().Add(d.cfg.PublishTimeout))
	if g == nil {
		return false, stopped, nil
	}
	defer d.tenancy.done(g)
	t.begin(time.Now(), g, &d.cfg)
	if err := d.learnBlocked(); err != nil {
		return false, failed, err
	}
	q := Query{Topic: t.name, Buckets: g.buckets(), After: t.low, Rows: d.cfg.Page, Bytes: d.cfg.PageBytes}
	var p Page
	err = d.call(d.work, func(ctx context.Context) (err error) {
		p, err = d.src.Fetch(ctx, q)
		return err
	})
	if err != nil {
		return false, failed, fmt.Errorf("fetch rows of topic %q: %w", t.name, err)
	}
	rows, full := p.Rows, p.More
	if len(rows) == 0 {
		if t.low == 0 && t.out != nil { // nothing is left that could fail
			t.recovered(time.Now())
			d.note()
		}
		return false, finished, nil
	}
	last := rows[len(rows)-1].ID
	d.tenancy.narrow(g, rows)
	d.confirmed = d.confirmed[:0]
	out, err = d.publish(g, rows, full)
	if derr := d.delete(g); derr != nil {
		return false, stopped, errors.Join(err, derr)
	}
	t.low = last
	return full, out, err
}

// learnBlocked reads which keys must wait. It comes before the rows are read: a row that is returned
// although its key was unblocked in between is skipped like those before it.
func (d *drain) learnBlocked() error {
	return d.call(d.work, func(ctx context.Context) error {
		keys, err := d.src.Blocked(ctx, d.t.name, maxBlocked+1)
		if err != nil {
			return fmt.Errorf("read the blocked keys of topic %q: %w", d.t.name, err)
		}
		if len(keys) > maxBlocked {
			return fmt.Errorf("topic %q has more than %d blocked keys: revive or discard dead rows", d.t.name, maxBlocked)
		}
		for _, k := range keys {
			d.t.block(k)
		}
		return nil
	})
}

// publish brings the rows that are not held to the publisher, in order per lane. full says that there may
// be more rows behind these.
func (d *drain) publish(g *grant, rows []Row, full bool) (outcome, error) {
	ready := d.open(rows)
	if d.t.out != nil && len(ready) > 0 {
		i, heads := d.pick(ready)
		out, err := d.single(g, &ready[i])
		if out == failed && full && d.t.probe >= len(heads) {
			d.pass(heads)
		}
		if out != finished || err != nil {
			return out, err
		}
		ready = append(ready[:i], ready[i+1:]...)
	}
	for len(ready) > 0 {
		n := min(len(ready), d.cfg.Batch)
		if out, err := d.batch(g, d.open(ready[:n])); out != finished || err != nil {
			return out, err
		}
		ready = ready[n:]
	}
	return finished, nil
}

// open drops the rows, in place, whose lanes are held or blocked.
func (d *drain) open(rows []Row) []Row {
	if len(d.t.held) == 0 && len(d.t.blocked) == 0 {
		return rows
	}
	keep := rows[:0]
	for i := range rows {
		if !d.t.skips(lane(&rows[i])) {
			keep = append(keep, rows[i])
		}
	}
	return keep
}

// pick chooses the row that shall tell whether the topic is well again: the first row of a lane, another
// lane each time. heads are the lanes it chose from.
func (d *drain) pick(rows []Row) (at int, heads []string) {
	var first []int
	seen := map[string]bool{}
	for i := range rows {
		if l := lane(&rows[i]); !seen[l] {
			seen[l] = true
			first, heads = append(first, i), append(heads, l)
		}
	}
	at = first[d.t.probe%len(first)]
	d.t.probe++
	return at, heads
}

// pass holds the lanes of a full page when each of them was tried in vain: the trouble may be theirs, and
// the rows behind them are to be tried next.
func (d *drain) pass(heads []string) {
	if len(d.t.held)+len(heads) > maxHeldLanes {
		clear(d.t.held) // all were tried: begin again
	} else {
		for _, l := range heads {
			d.t.hold(l, time.Now(), d.t.out.err, d.cfg.BackoffMax, &d.cfg)
		}
	}
	d.t.probe = 0
}

// batch publishes rows in one call, and where that fails one by one, so that each answers for itself.
func (d *drain) batch(g *grant, rows []Row) (outcome, error) {
	switch {
	case len(rows) == 0:
		return finished, nil
	case !d.may(g, rows):
		return stopped, nil
	}
	if len(rows) > 1 {
		err := d.send(rows)
		if err == nil {
			d.confirm(rows)
			return finished, nil
		}
		if d.work.Err() != nil {
			return stopped, nil
		}
		d.failure(err)
	}
	return d.oneByOne(g, rows)
}

func (d *drain) oneByOne(g *grant, rows []Row) (outcome, error) {
	before := len(d.confirmed)
	answered := false // something was published or refused for good: the broker is there
	failing := map[string]bool{}
	var worst error
	var after time.Duration
	for i := range rows {
		l := lane(&rows[i])
		if d.t.skips(l) {
			continue
		}
		if !d.may(g, rows[i:i+1]) {
			return d.settle(failing, len(d.confirmed) > before || answered, worst, after, stopped), nil
		}
		err := d.send(rows[i : i+1])
		if err == nil {
			d.confirm(rows[i : i+1])
			continue
		}
		if d.work.Err() != nil {
			return stopped, nil
		}
		res := d.cfg.Classifier.Classify(err)
		switch res.Verdict {
		case classify.VerdictStop:
			return stopped, d.fatal(&rows[i], err)
		case classify.VerdictPoison, classify.VerdictDrop:
			if held, err := d.bury(g, &rows[i], res, err); err != nil || !held {
				return stopped, err
			}
			answered = true
		default:
			failing[l] = true
			worst, after = err, max(after, res.After)
			d.t.hold(l, time.Now(), err, res.After, &d.cfg)
			d.failure(err)
			if len(failing) >= outageLanes && len(d.confirmed) == before && !answered {
				return d.settle(failing, false, worst, after, failed), nil
			}
		}
	}
	return d.settle(failing, len(d.confirmed) > before || answered, worst, after, finished), nil
}

// settle decides whether what failed is the topic or some of its lanes.
func (d *drain) settle(failing map[string]bool, answered bool, err error, after time.Duration, out outcome) outcome {
	if len(failing) == 0 {
		return out
	}
	if answered && len(d.t.held) <= maxHeldLanes {
		d.note()
		return out
	}
	// The lanes are not to blame: an outage uses up no attempts of theirs.
	for l := range failing {
		delete(d.t.held, l)
	}
	d.fail(err, after)
	return failed
}

// fail records an outage of the topic.
func (d *drain) fail(err error, after time.Duration) {
	fresh := d.t.out == nil
	d.t.stop(time.Now(), err, after, &d.cfg)
	if fresh {
		d.cfg.Logger.WarnContext(d.work, "outbox: topic cannot be published to; its rows wait", "topic", d.t.name, "error", err)
	}
	d.note()
}

// single publishes one row while the topic fails, and finds out whether it still does.
func (d *drain) single(g *grant, row *Row) (outcome, error) {
	one := []Row{*row}
	if !d.may(g, one) {
		return stopped, nil
	}
	err := d.send(one)
	if err != nil {
		if d.work.Err() != nil {
			return stopped, nil
		}
		res := d.cfg.Classifier.Classify(err)
		switch res.Verdict {
		case classify.VerdictStop:
			return stopped, d.fatal(row, err)
		case classify.VerdictPoison, classify.VerdictDrop: // the broker has looked at it
			if held, err := d.bury(g, row, res, err); err != nil || !held {
				return stopped, err
			}
		default:
			d.failure(err)
			d.fail(err, res.After)
			return failed, nil
		}
	} else {
		d.confirm(one)
	}
	d.cfg.Logger.InfoContext(d.work, "outbox: topic is published to again", "topic", d.t.name,
		"attempts", d.t.out.attempts, "since", d.t.out.since)
	d.t.recovered(time.Now())
	d.note()
	return finished, nil
}

// may reports whether a Publish of rows may begin now.
func (d *drain) may(g *grant, rows []Row) bool {
	return d.ctx.Err() == nil && d.tenancy.covers(g, rows, time.Now().Add(d.cfg.PublishTimeout))
}

// confirm counts rows as published.
func (d *drain) confirm(rows []Row) {
	for i := range rows {
		d.confirmed = append(d.confirmed, rows[i].ID)
		if len(d.t.held) > 0 {
			delete(d.t.held, lane(&rows[i]))
		}
	}
	d.published += len(rows)
	d.stats.published.Add(uint64(len(rows)))
}

// send gives rows to the publisher. It blocks as long as that does.
func (d *drain) send(rows []Row) (err error) {
	ctx, cancel := context.WithTimeout(d.work, d.cfg.PublishTimeout)
	defer cancel()
	msgs := make([]*message.Message, len(rows))
	for i := range rows {
		msg := message.NewMessage(rows[i].UUID, rows[i].Payload)
		// A publisher may change its message; the row must be the same when it is sent again.
		for k, v := range rows[i].Metadata {
			msg.Metadata[k] = v
		}
		msg.SetContext(ctx)
		msgs[i] = msg
	}
	defer func() {
		if v := recover(); v != nil {
			err = &classify.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return d.pub.Publish(d.t.name, msgs...)
}

// fatal is the error of a publisher that wants everything to stop.
func (d *drain) fatal(row *Row, err error) error {
	d.failure(err)
	return &stopError{fmt.Errorf("outbox: publish row %d (message %s) to topic %q: %w", row.ID, row.UUID, d.t.name, err)}
}

// stopError ends the relay.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// bury gives a row up. It repeats until the database has answered.
func (d *drain) bury(g *grant, row *Row, res classify.Result, cause error) (held bool, err error) {
	d.failure(cause)
	b := Burial{
		Topic: row.Topic, ID: row.ID, ErrorType: bounded(res.ErrorType, maxErrorType), Error: bounded(cause.Error(), maxErrorText),
		Block: d.cfg.OnPoison == BlockKey && row.Key != "",
	}
	err = d.persist("bury row", func(ctx context.Context) error {
		held, err = d.src.Bury(ctx, d.cfg.Owner, g.leases[row.Bucket], b)
		return err
	})
	if err != nil {
		return false, err
	}
	if !held {
		d.tenancy.lost([]Lease{g.leases[row.Bucket]})
		return false, nil
	}
	if b.Block {
		d.t.block(row.Key)
	}
	delete(d.t.held, lane(row))
	d.stats.buried.Add(1)
	d.cfg.Logger.ErrorContext(d.work, "outbox: row cannot be published; moved to the dead rows", "topic", d.t.name,
		"row", row.ID, "message", row.UUID, "key_blocked", b.Block, "error", cause)
	return true, nil
}

// delete removes the confirmed rows. Until it has succeeded no other page is read: the rows would be
// published again.
func (d *drain) delete(g *grant) error {
	if len(d.confirmed) == 0 {
		return nil
	}
	leases := g.all()
	return d.persist("delete published rows", func(ctx context.Context) error {
		lost, err := d.src.Delete(ctx, d.cfg.Owner, d.t.name, leases, d.confirmed)
		if err == nil && len(lost) > 0 {
			d.tenancy.lost(lost)
		}
		return err
	})
}

// persist repeats a call of the database until it succeeds or the drain limit has passed.
func (d *drain) persist(what string, f func(context.Context) error) error {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.MaxElapsedTime = d.cfg.PollMin, d.cfg.PollMax, 0
	b.Reset()
	for attempt := 1; ; attempt++ {
		err := d.call(d.work, f)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("%s of topic %q: %w", what, d.t.name, err)
		if d.work.Err() != nil {
			return err
		}
		d.databaseError(d.work, err)
		timer := time.NewTimer(b.NextBackOff())
		select {
		case <-timer.C:
		case <-d.work.Done():
			timer.Stop()
			return err
		}
	}
}

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
//
// Each page is read from the topic's first row, in one statement, after the rows of the page before were
// deleted. Reading on behind the last id instead would invert a key: a row with a lower id can be
// committed late, and by then its successor with a higher id, too.
type drain struct {
	*Relay
	t *topic
	// ctx ends when the relay is to stop: nothing new is published. work ends at the drain limit.
	ctx, work context.Context

	published int

	// Of the page at hand: when it was begun, the rows to be deleted, and the lanes that a buried row
	// blocks.
	began     time.Time
	confirmed []int64
	blocked   map[string]bool
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
	defer func() { d.t.wait(time.Now()) }()
	for range slice {
		more, out, err := d.page()
		if err != nil || out != finished || !more {
			return false, err
		}
	}
	return true, nil
}

// page publishes one page of rows. more says that there can be others behind them.
func (d *drain) page() (more bool, out outcome, err error) {
	t := d.t
	if d.ctx.Err() != nil {
		return false, stopped, nil
	}
	d.began = time.Now()
	g := d.tenancy.grant(d.began.Add(d.cfg.PublishTimeout))
	if g == nil {
		return false, stopped, nil
	}
	defer d.tenancy.done(g)
	q := Query{Topic: t.name, Buckets: g.buckets(), Rows: d.cfg.Page, Bytes: d.cfg.PageBytes}
	t.leaveOut(&q, d.began)
	var p Page
	err = d.call(d.work, func(ctx context.Context) (err error) {
		p, err = d.src.Fetch(ctx, q)
		return err
	})
	if err != nil {
		return false, failed, fmt.Errorf("fetch rows of topic %q: %w", t.name, err)
	}
	d.tenancy.narrow(g, p.Rows)
	d.confirmed, d.blocked = d.confirmed[:0], nil
	if len(p.Rows) > 0 {
		out, err = d.publish(g, p.Rows)
		if derr := d.delete(g); derr != nil || err != nil {
			return false, stopped, errors.Join(err, derr)
		}
	}
	if out == finished && !p.More {
		t.forget(d.began)
		if len(t.held) == 0 && t.out != nil { // nothing is left that could fail
			t.recovered(time.Now())
		}
	}
	d.note()
	return p.More, out, nil
}

// publish brings rows to the publisher, in order per lane.
func (d *drain) publish(g *grant, rows []Row) (outcome, error) {
	if d.t.out != nil {
		// One row tells whether the topic is well again. If not, its lane is held, and another one's row
		// is tried next time: it may be the row that is the trouble.
		if out, err := d.oneByOne(g, rows[:1]); out != finished || err != nil {
			return out, err
		}
		rows = rows[1:]
	}
	for len(rows) > 0 {
		n := min(len(rows), d.cfg.Batch)
		if out, err := d.batch(g, d.open(rows[:n])); out != finished || err != nil {
			return out, err
		}
		rows = rows[n:]
	}
	return finished, nil
}

// open drops the rows, in place, whose lanes have failed or were blocked in this page.
func (d *drain) open(rows []Row) []Row {
	if len(d.t.held) == 0 && len(d.blocked) == 0 {
		return rows
	}
	keep := rows[:0]
	for i := range rows {
		if !d.skips(lane(&rows[i])) {
			keep = append(keep, rows[i])
		}
	}
	return keep
}

func (d *drain) skips(l string) bool {
	f := d.t.held[l]
	return f != nil && f.next.After(d.began) || d.blocked[l]
}

// batch publishes rows in one call, and where that fails one by one, so that each answers for itself.
func (d *drain) batch(g *grant, rows []Row) (outcome, error) {
	if len(rows) > 1 {
		if !d.may(g, rows) {
			return stopped, nil
		}
		err := d.send(rows)
		if err == nil {
			d.confirm(rows)
			return finished, nil
		}
		if d.work.Err() != nil {
			return stopped, nil //nolint:nilerr // the relay stops; err only says so
		}
		d.failure(err)
	}
	return d.oneByOne(g, rows)
}

func (d *drain) oneByOne(g *grant, rows []Row) (outcome, error) {
	for i := range rows {
		row := &rows[i]
		if d.skips(lane(row)) {
			continue
		}
		if !d.may(g, rows[i:i+1]) {
			return stopped, nil
		}
		err := d.send(rows[i : i+1])
		if err == nil {
			d.confirm(rows[i : i+1])
			continue
		}
		if d.work.Err() != nil {
			return stopped, nil //nolint:nilerr // the relay stops; err only says so
		}
		d.failure(err)
		res := d.cfg.Classifier.Classify(err)
		switch {
		case res.Verdict == classify.VerdictStop:
			return stopped, &stopError{fmt.Errorf("outbox: publish row %d (message %s) to topic %q: %w", row.ID, row.UUID, d.t.name, err)}
		case (res.Verdict == classify.VerdictPoison || res.Verdict == classify.VerdictDrop) && d.t.refused < maxRefused:
			if held, err := d.bury(g, row, res, err); err != nil || !held {
				return stopped, err
			}
			d.t.refused++
			d.answered()
		default:
			if d.fail(row, err, res.After) {
				return failed, nil
			}
		}
	}
	return finished, nil
}

// fail holds the row's lane and reports whether the topic as a whole fails. Lanes that have failed before
// tell nothing about the topic.
func (d *drain) fail(row *Row, err error, after time.Duration) bool {
	now := time.Now()
	fresh := d.t.held[lane(row)] == nil
	if fresh && len(d.t.held) >= maxHeldLanes {
		clear(d.t.held) // the page ends here, so that no row of theirs is let through
		d.t.unanswered = outageLanes
	} else if fresh {
		d.t.unanswered++
	}
	d.t.hold(row, now, err, after, &d.cfg)
	defer d.note()
	if d.t.out == nil && (d.t.unanswered < outageLanes || !fresh) {
		return false
	}
	if d.t.out == nil {
		d.t.out = newFailure(now, &d.cfg)
		d.cfg.Logger.WarnContext(d.work, "outbox: topic cannot be published to; its rows wait", "topic", d.t.name, "error", err)
	}
	d.t.out.again(now, err, after)
	return true
}

// answered records that the broker has taken a row, or refused it for good: it is there.
func (d *drain) answered() {
	d.t.unanswered = 0
	if d.t.out != nil {
		d.cfg.Logger.InfoContext(d.work, "outbox: topic is published to again", "topic", d.t.name,
			"attempts", d.t.out.attempts, "since", d.t.out.since)
		d.t.recovered(time.Now())
	}
}

// may reports whether a Publish of rows may begin now.
func (d *drain) may(g *grant, rows []Row) bool {
	return d.ctx.Err() == nil && d.tenancy.covers(g, rows, time.Now().Add(d.cfg.PublishTimeout))
}

// confirm counts rows as published.
func (d *drain) confirm(rows []Row) {
	d.t.refused = 0
	d.answered()
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

// stopError ends the relay.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// bury gives a row up. It repeats until the database has answered.
func (d *drain) bury(g *grant, row *Row, res classify.Result, cause error) (held bool, err error) {
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
		if d.blocked == nil {
			d.blocked = map[string]bool{}
		}
		d.blocked[lane(row)] = true
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

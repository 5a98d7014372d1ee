package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v4"

	"github.com/headrace-go/headrace/classify"
)

// slice is how many pages a topic may publish while another one waits for its turn.
const slice = 4

// drain publishes what one topic has. At most one drain of a topic runs at a time.
type drain struct {
	*Relay
	t *topic
	// ctx ends when the relay is to stop: nothing new is published. work ends at the drain limit.
	ctx, work context.Context

	rows int // published

	// began is when the last page was begun; blocked are the lanes that a buried row blocks since then.
	began   time.Time
	blocked map[string]bool
}

// outcome tells how far a page came.
type outcome int

const (
	finished outcome = iota // all rows were looked at
	stopped                 // the relay stops, or a lease is lost or runs out
	failed                  // the topic fails as a whole
)

// run publishes until the topic is empty (false), or it is another one's turn (true).
func (d *drain) run() (more bool, err error) {
	defer func() { d.t.wait(time.Now()) }()
	for turns := 0; ; turns++ {
		var out outcome
		if d.t.out != nil {
			more, out, err = d.probe()
		} else {
			more, out, err = (&flow{drain: d}).run()
		}
		d.note()
		if err != nil || out != finished || !more {
			return false, err
		}
		if turns >= slice || d.queued.Load() > 0 {
			return true, nil
		}
	}
}

// probe tries one row of a topic that is out: it tells whether the topic is well again. If not, its lane is
// held, and another one's row is tried next time: it may be the row that is the trouble.
func (d *drain) probe() (more bool, out outcome, err error) {
	if d.ctx.Err() != nil {
		return false, stopped, nil
	}
	d.began = time.Now()
	g := d.tenancy.grant(d.began.Add(d.cfg.PublishTimeout))
	if g == nil {
		return false, stopped, nil
	}
	q := Query{Topic: d.t.name, Buckets: g.buckets(), Rows: 1, Bytes: d.cfg.PageBytes}
	d.t.leaveOut(&q, d.began)
	var p Page
	err = d.call(d.work, func(ctx context.Context) (err error) {
		p, err = d.src.Fetch(ctx, q)
		return err
	})
	d.tenancy.narrow(g, p.Rows)
	defer d.tenancy.done(g)
	if err != nil {
		return false, failed, fmt.Errorf("fetch rows of topic %q: %w", d.t.name, err)
	}
	if len(p.Rows) > 0 {
		out, err = d.oneByOne([]*batch{{page: &openPage{grant: g}, rows: p.Rows}})
		return true, out, err
	}
	d.t.forget(d.began)
	if len(d.t.held) == 0 { // nothing is left that could fail
		d.t.recovered(time.Now())
	}
	return false, finished, nil
}

// oneByOne publishes the rows of batches each by itself, so that each answers for itself, and deletes those
// that were confirmed.
func (d *drain) oneByOne(batches []*batch) (outcome, error) {
	d.began, d.blocked = time.Now(), nil
	for _, b := range batches {
		confirmed, out, err := d.each(b)
		if len(confirmed) > 0 {
			err = errors.Join(err, d.remove([]*batch{{page: b.page, rows: confirmed}}))
		}
		if out != finished || err != nil {
			return out, err
		}
	}
	return finished, nil
}

func (d *drain) each(b *batch) (confirmed []Row, out outcome, err error) {
	for i := range b.rows {
		row := &b.rows[i]
		if d.skips(lane(row)) {
			continue
		}
		err := b.err
		if len(b.rows) > 1 || err == nil { // else it was alone when it failed
			if !d.may(b.page.grant, b.rows[i:i+1]) {
				return confirmed, stopped, nil
			}
			if err = d.send(b.rows[i : i+1]); err == nil {
				d.confirm(b.rows[i : i+1])
				confirmed = append(confirmed, *row)
				continue
			}
			if d.work.Err() != nil {
				return confirmed, stopped, nil //nolint:nilerr // the relay stops; err only says so
			}
			d.failure(err)
		}
		if out, err := d.judge(b.page.grant, row, err); out != finished || err != nil {
			return confirmed, out, err
		}
	}
	return confirmed, finished, nil
}

// judge decides what becomes of a row that could not be published.
func (d *drain) judge(g *grant, row *Row, err error) (outcome, error) {
	res := d.cfg.Classifier.Classify(err)
	switch {
	case res.Verdict == classify.VerdictStop:
		return stopped, &stopError{fmt.Errorf("outbox: publish row %d (message %s) to topic %q: %w", row.ID, row.UUID, d.t.name, err)}
	case (res.Verdict == classify.VerdictPoison || res.Verdict == classify.VerdictDrop) && d.t.refused < maxRefused:
		if held, err := d.bury(g, row, res, err); err != nil || !held {
			return stopped, err
		}
		d.t.refused++
		d.answers()
	default:
		if d.fail(row, err, res.After) {
			return failed, nil
		}
	}
	return finished, nil
}

func (d *drain) skips(l string) bool {
	f := d.t.held[l]
	return f != nil && f.next.After(d.began) || d.blocked[l]
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

// answers records that the broker has taken a row, or refused it for good: it is there.
func (d *drain) answers() {
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
	d.answers()
	held := len(d.t.held)
	for i := 0; i < len(rows) && len(d.t.held) > 0; i++ {
		delete(d.t.held, lane(&rows[i]))
	}
	if len(d.t.held) < held {
		d.note()
	}
	d.rows += len(rows)
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
	began := time.Now()
	defer func() {
		if v := recover(); v != nil {
			err = &classify.PanicError{Value: v, Stack: debug.Stack()}
		}
		d.observe(rows, began, err)
	}()
	return d.pub.Publish(d.t.name, msgs...)
}

func (d *drain) observe(rows []Row, began time.Time, err error) {
	if d.cfg.Observe == nil {
		return
	}
	now := time.Now()
	p := Published{Topic: d.t.name, Rows: len(rows), Took: now.Sub(began), Err: err}
	if ahead := time.Duration(d.ahead.Load()); ahead != unknown {
		there := now.Add(ahead)
		for i := range rows {
			p.Age = max(p.Age, there.Sub(rows[i].CreatedAt))
		}
	}
	d.cfg.Observe(p)
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

// remove deletes the rows of batches that were published. It repeats until the database has answered.
func (d *drain) remove(batches []*batch) error {
	var ids []int64
	var leases []Lease
	var page *openPage
	for _, b := range batches {
		for i := range b.rows {
			ids = append(ids, b.rows[i].ID)
		}
		if b.page != page {
			page = b.page
			leases = append(leases, page.grant.all()...)
		}
	}
	slices.SortFunc(leases, func(a, b Lease) int { return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Epoch, b.Epoch)) })
	leases = slices.Compact(leases)
	return d.persist("delete published rows", func(ctx context.Context) error {
		lost, err := d.src.Delete(ctx, d.cfg.Owner, d.t.name, leases, ids)
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

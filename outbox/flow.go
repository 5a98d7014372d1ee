package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pagesInFlight is how many pages of a topic may be read and not yet deleted.
const pagesInFlight = 3

// flow brings a topic's rows to the publisher as fast as the slowest of its three steps allows: while
// batches of one page are published, the next page is read and the one before is deleted.
//
// Two batches with a bucket in common are published one after the other, in the order in which they were
// read; so a key's rows keep their order, whatever else is in flight. Each page is read from the topic's
// first row, in one statement, without the rows that are in flight. Reading on behind the last id instead
// would invert a key: a row with a lower id can be committed late, and by then its successor with a higher
// id, too.
//
// When a publish fails nothing new begins, what is in flight ends, and the rows that failed are tried one by
// one. All of the state belongs to the goroutine of run; the steps report to it on events.
type flow struct {
	*drain
	events chan func()

	waiting   []*batch // not begun, in order
	publishes int      // in flight
	busy      uint64   // their buckets
	failed    []*batch // in the order in which they were read
	published []*batch // to be deleted
	inFlight  map[int64]struct{}
	open      int // pages read and not done with
	fetching  bool
	deleting  bool

	pages int  // read in all
	empty bool // the last page was the end of the topic
	ends  bool // nothing new begins: out and err tell why
	out   outcome
	err   error
}

// batch is rows for one Publish.
type batch struct {
	page    *openPage
	rows    []Row
	buckets uint64 // bit set
	order   int64
	err     error
}

// openPage is a page that was read. Its grant is over when the last of its batches is.
type openPage struct {
	grant *grant
	left  int
}

// run publishes until the topic is empty, it is another one's turn (more), or something fails.
func (f *flow) run() (more bool, out outcome, err error) {
	f.events = make(chan func(), f.cfg.InFlight+2) // all steps in flight can report
	f.inFlight = map[int64]struct{}{}
	for {
		f.fetch()
		f.publish()
		f.delete()
		if f.publishes == 0 && !f.fetching && !f.deleting {
			break
		}
		select {
		case report := <-f.events:
			report()
		case <-f.t.poke: // rows were committed: look again before the topic is given back
		}
	}
	more = !f.empty || len(f.waiting) > 0 || len(f.failed) > 0
	for _, b := range f.waiting {
		f.close(b)
	}
	if f.err == nil && f.out == finished && len(f.failed) > 0 {
		f.out, f.err = f.oneByOne(f.failed)
	}
	for _, b := range f.failed {
		f.close(b)
	}
	if f.err == nil && f.out == finished && !more {
		f.t.forget(f.began)
	}
	return more, f.out, f.err
}

// end lets nothing new begin.
func (f *flow) end(out outcome, err error) {
	if !f.ends {
		f.ends, f.out = true, out
	}
	f.err = errors.Join(f.err, err)
}

// fetch begins to read the next page.
func (f *flow) fetch() {
	if f.fetching || f.ends || f.open >= pagesInFlight || f.empty && !f.t.again.Load() {
		return
	}
	if f.pages >= slice && f.queued.Load() > 0 { // another topic waits
		f.empty = false
		return
	}
	if f.ctx.Err() != nil {
		f.end(stopped, nil)
		return
	}
	f.began = time.Now()
	g := f.tenancy.grant(f.began.Add(f.cfg.PublishTimeout))
	if g == nil {
		f.end(stopped, nil)
		return
	}
	f.t.again.Store(false)
	q := Query{Topic: f.t.name, Buckets: g.buckets(), Rows: f.cfg.Page, Bytes: f.cfg.PageBytes}
	f.t.leaveOut(&q, f.began)
	for id := range f.inFlight {
		q.NotIDs = append(q.NotIDs, id)
	}
	f.fetching = true
	go func() {
		var p Page
		err := f.call(f.work, func(ctx context.Context) (err error) {
			p, err = f.src.Fetch(ctx, q)
			return err
		})
		f.events <- func() { f.fetched(g, p, err) }
	}()
}

func (f *flow) fetched(g *grant, p Page, err error) {
	f.fetching = false
	if err != nil {
		f.end(failed, fmt.Errorf("fetch rows of topic %q: %w", f.t.name, err))
	}
	if f.ends || len(p.Rows) == 0 {
		f.tenancy.done(g)
		f.empty = !f.ends && !p.More
		return
	}
	f.pages++
	f.open++
	f.empty = !p.More
	f.tenancy.narrow(g, p.Rows)
	for i := range p.Rows {
		f.inFlight[p.Rows[i].ID] = struct{}{}
	}
	f.waiting = append(f.waiting, f.cut(&openPage{grant: g}, p.Rows)...)
}

// cut makes batches of a page: as many side by side as it fills, each with buckets of its own.
func (f *flow) cut(p *openPage, rows []Row) []*batch {
	strands := make([][]Row, max(1, min(f.cfg.InFlight, (len(rows)+f.cfg.Batch-1)/f.cfg.Batch)))
	if len(strands) == 1 {
		strands[0] = rows
	} else {
		for i := range rows {
			s := rows[i].Bucket % len(strands)
			strands[s] = append(strands[s], rows[i])
		}
	}
	var list []*batch
	for more := true; more; {
		more = false
		for s, rest := range strands {
			if len(rest) == 0 {
				continue
			}
			n := min(len(rest), f.cfg.Batch)
			b := &batch{page: p, rows: rest[:n], order: int64(f.pages)<<16 + int64(len(list))}
			for i := range b.rows {
				b.buckets |= 1 << b.rows[i].Bucket
			}
			list = append(list, b)
			strands[s], more = rest[n:], true
		}
	}
	p.left = len(list)
	return list
}

// publish begins what may be published now.
func (f *flow) publish() {
	var before uint64 // buckets of batches that wait
	keep := f.waiting[:0]
	for _, b := range f.waiting {
		if f.ends || f.publishes == f.cfg.InFlight || b.buckets&(f.busy|before) != 0 {
			before |= b.buckets
			keep = append(keep, b)
			continue
		}
		if !f.may(b.page.grant, b.rows) {
			f.end(stopped, nil)
			keep = append(keep, b)
			continue
		}
		f.publishes++
		f.busy |= b.buckets
		go func() {
			err := errGoexit
			defer func() { f.events <- func() { f.answered(b, err) } }()
			err = f.send(b.rows)
		}()
	}
	clear(f.waiting[len(keep):])
	f.waiting = keep
}

func (f *flow) answered(b *batch, err error) {
	f.publishes--
	f.busy &^= b.buckets
	switch {
	case err == nil:
		f.confirm(b.rows)
		f.published = append(f.published, b)
	case errors.Is(err, errGoexit):
		f.close(b)
		f.end(stopped, err)
	case f.work.Err() != nil: // the relay stops; err only says so
		f.close(b)
		f.end(stopped, nil)
	default:
		f.failure(err)
		b.err = err
		i := len(f.failed)
		for i > 0 && f.failed[i-1].order > b.order {
			i--
		}
		f.failed = append(f.failed[:i], append([]*batch{b}, f.failed[i:]...)...)
		f.end(finished, nil)
	}
}

// delete begins to remove what was published meanwhile.
func (f *flow) delete() {
	if f.deleting || len(f.published) == 0 {
		return
	}
	if f.publishes > 0 && len(f.published) < f.cfg.InFlight {
		return // more will come: a statement costs nearly the same for few rows
	}
	list := f.published
	f.published, f.deleting = nil, true
	go func() {
		err := f.remove(list)
		f.events <- func() {
			f.deleting = false
			for _, b := range list {
				for i := range b.rows {
					delete(f.inFlight, b.rows[i].ID)
				}
				f.close(b)
			}
			if err != nil {
				f.end(stopped, err)
			}
		}
	}()
}

// close ends a batch's part in its page.
func (f *flow) close(b *batch) {
	if b.page.left--; b.page.left == 0 {
		f.open--
		f.tenancy.done(b.page.grant)
	}
}

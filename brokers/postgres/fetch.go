package postgres

import (
	"context"
	"fmt"
	"time"
)

const (
	// pageBytes bounds what one page brings, in bytes of metadata and payload; one message is read whatever its size.
	pageBytes = 4 << 20
	// rescanEvery is how often all ids are looked at again, should anything have escaped the proof.
	rescanEvery = 30 * time.Second
	// firstTake is how many rows of a bucket are read at once, until it turns out to have more.
	firstTake = 8
)

// request is what to read next. The fetcher has it until it answers.
type request struct {
	buckets []*bucket // as they were when it was made
	numbers []int16
	lows    []int64
	seen    []int64
	takes   []int64
	known   []int64     // ids in memory
	stored  []time.Time // and when those rows were stored: an id alone can be given out again after a failover
	safe    int64       // proven before it was made
}

// know adds a row that is in memory.
func (r *request) know(id int64, stored time.Time) {
	r.known, r.stored = append(r.known, id), append(r.stored, stored)
}

// page is the answer.
type page struct {
	*request
	entries []*entry
	of      []int16 // the entries' buckets
	bytes   int
	err     error
}

// fetchLoop answers requests until the channel is closed. There is one at a time, so it never waits to answer.
func (s *subscription) fetchLoop(ctx context.Context) {
	for r := range s.requests {
		s.pages <- s.fetch(ctx, r)
	}
}

func (s *subscription) fetch(ctx context.Context, r *request) *page {
	p := &page{request: r}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	p.err = func() error {
		rows, err := s.broker.pool.Query(ctx, s.broker.sql.fetch, s.group.id, r.numbers, r.lows, r.seen, r.takes, r.known, r.stored, pageBytes)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			e := &entry{}
			var number int16
			var micros int64
			if err := rows.Scan(&number, &e.id, &e.key, &e.uuid, &e.metadata, &e.payload, &micros, &e.deliveries); err != nil {
				return err
			}
			e.stored = time.UnixMicro(micros)
			p.entries, p.of = append(p.entries, e), append(p.of, number)
			p.bytes += e.size()
		}
		return rows.Err()
	}()
	if p.err != nil {
		p.err = fmt.Errorf("read messages: %w", p.err)
	}
	return p
}

// ask makes a request if there is room for what it may bring. now tells whether it is time to look whatever
// came last.
func (s *subscription) ask(now time.Time) {
	if s.asked || len(s.owned) == 0 || s.buffered > s.room/2 || s.bufferedBytes >= pageBytes || now.Before(s.askAgain) {
		return
	}
	if !s.more && !s.woken.Load() && now.Before(s.pollAt) {
		return
	}
	if s.woken.Swap(false) {
		s.poll = s.broker.config.PollMin
	}
	if s.void.Swap(false) || now.Sub(s.rescanned) >= rescanEvery {
		s.fromScratch()
		s.rescanned = now
	}
	r := &request{safe: s.safe.Load(), known: []int64{}, stored: []time.Time{}} // a nil slice is NULL
	for _, b := range s.owned {
		if b.leaving {
			continue
		}
		r.buckets = append(r.buckets, b)
		r.numbers = append(r.numbers, b.bucket)
		r.lows = append(r.lows, b.low)
		r.seen = append(r.seen, b.seen)
		for _, e := range b.queue {
			r.know(e.id, e.stored)
		}
	}
	if len(r.buckets) == 0 { // they are about to be given up
		s.more, s.pollAt = false, now.Add(s.poll)
		return
	}
	r.takes = s.takes(r.buckets)
	for _, h := range s.held {
		r.know(h.entry.id, h.entry.stored)
	}
	if s.next != nil {
		r.know(s.next.entry.id, s.next.entry.stored)
	}
	s.keeper.unremoved(r)
	s.more, s.asked = false, true
	s.requests <- r // has room for one
}

// takes divides the room among buckets: those that had more than was taken get more.
func (s *subscription) takes(list []*bucket) []int64 {
	room, sum := int64(s.room-s.buffered), int64(0)
	for _, b := range list {
		sum += b.take
	}
	takes := make([]int64, len(list))
	for i, b := range list {
		takes[i] = b.take
		if sum > room {
			takes[i] = max(1, b.take*room/sum)
		}
	}
	return takes
}

// fromScratch forgets what was proven of ids.
func (s *subscription) fromScratch() {
	s.safe.Store(0)
	for _, b := range s.owned {
		b.low = 0
	}
}

// add puts a page into the buckets that are still the same.
func (s *subscription) add(p *page, now time.Time) {
	s.asked = false
	s.trouble.report(s, p.err)
	if p.err != nil {
		// The server may be another one now, with another history.
		s.fromScratch()
		s.askAgain = now.Add(s.trouble.wait(s.broker.config.PollMax))
		s.more = true
		return
	}
	for i, e := range p.entries {
		if b := s.buckets[p.of[i]]; b != nil && b == p.bucketOf(p.of[i]) {
			b.add(e)
			s.buffered++
			s.bufferedBytes += e.size()
		}
	}
	cut := p.bytes >= pageBytes
	var read [buckets]int64
	var last [buckets]int64
	for i, e := range p.entries {
		read[p.of[i]]++
		last[p.of[i]] = e.id
	}
	for i, b := range p.buckets {
		// Up to this id, all that this snapshot has was read.
		complete := int64(1<<63 - 1)
		switch n := read[b.bucket]; {
		case n >= p.takes[i]:
			complete = last[b.bucket]
			b.take = min(2*b.take, int64(s.room))
			s.more = true
		case cut:
			complete = p.entries[len(p.entries)-1].id
		case n < b.take/2:
			b.take = max(b.take/2, firstTake)
		}
		b.low = max(b.low, min(p.safe, complete))
	}
	s.more = s.more || cut
	if len(p.entries) > 0 {
		s.busy.Store(true)
		s.poll = s.broker.config.PollMin
	} else {
		s.poll = min(2*s.poll, s.broker.config.PollMax)
	}
	s.pollAt = now.Add(s.poll)
}

// bucketOf returns the bucket that was asked for.
func (r *request) bucketOf(number int16) *bucket {
	for _, b := range r.buckets {
		if b.bucket == number {
			return b
		}
	}
	return nil
}

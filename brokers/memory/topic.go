package memory

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// record is a message as it was published. Nobody changes it.
type record struct {
	uuid      string
	metadata  message.Metadata
	payload   message.Payload
	key       []byte
	time      time.Time
	partition int32
	offset    int64
}

// topic holds the records of one topic and how far each group is. mu guards all of it; nothing is
// called under mu that could block.
type topic struct {
	name        string
	incarnation string
	config      *Config

	mu         sync.Mutex
	partitions []partition
	groups     map[string]*group
	spread     int // the partition of the next record without a key
}

// partition is one sequence of records.
type partition struct {
	records []*record // by offset, from base on
	base    int64     // the offset of records[0]
	floor   int64     // every group has acked all below it
}

func (p *partition) end() int64 { return p.base + int64(len(p.records)) }

// group is the consumers of one name: one cursor for each partition.
type group struct {
	cursors []cursor
	members []*subscription // in order of arrival; partition i belongs to members[i % len]
}

// cursor is how far a group is in a partition.
type cursor struct {
	next int64              // the first offset never taken
	low  int64              // the first offset not acked
	done map[int64]struct{} // acked offsets above low
	back []returned         // given back, by offset: they come before next

	// A partition changes hands only when nothing of it is held, so that no two members of
	// the group ever have deliveries of one partition at the same time.
	owner *subscription
	held  int
}

// returned is an offset that was delivered count times and has to come again.
type returned struct {
	offset int64
	count  int
	at     time.Time
	by     *subscription // who has to wait until at; nil: everybody

	// delayed ones do not hold up what follows them while they wait.
	delayed bool
}

// waits tells whether s may not have r at now.
func (r *returned) waits(s *subscription, now time.Time) bool {
	return (r.by == nil || r.by == s) && !r.at.IsZero() && now.Before(r.at)
}

func newTopic(name string, config *Config) *topic {
	return &topic{
		name:        name,
		incarnation: rand.Text(),
		config:      config,
		partitions:  make([]partition, config.Partitions),
		groups:      make(map[string]*group),
	}
}

// add stores copies of all messages, or none.
func (t *topic) add(messages []*message.Message) error {
	now := time.Now()
	records := make([]record, len(messages))
	for i, m := range messages {
		records[i] = record{
			uuid:     m.UUID,
			metadata: maps.Clone(m.Metadata),
			payload:  bytes.Clone(m.Payload),
			key:      t.config.Key(m),
			time:     now,
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	kept := 0
	for i := range t.partitions {
		kept += int(t.partitions[i].end() - t.partitions[i].floor)
	}
	if kept+len(records) > t.config.MaxMessages {
		return fmt.Errorf("memory: publish %d messages to topic %q: %w: MaxMessages is %d and %d are not acked by %s",
			len(records), t.name, ErrFull, t.config.MaxMessages, kept, t.slowest())
	}
	for i := range records {
		r := &records[i]
		r.partition = int32(t.partitionOf(r.key))
		p := &t.partitions[r.partition]
		r.offset = p.end()
		p.records = append(p.records, r)
		t.wake(int(r.partition))
	}
	return nil
}

func (t *topic) partitionOf(key []byte) int {
	n := len(t.partitions)
	if n == 1 {
		return 0
	}
	if key == nil {
		t.spread = (t.spread + 1) % n
		return t.spread
	}
	h := fnv.New32a()
	_, _ = h.Write(key) // gives no error
	return int(h.Sum32() % uint32(n))
}

// slowest names the group that has acked least, for an error.
func (t *topic) slowest() string {
	name, most := "any consumer yet", -1
	for n, g := range t.groups {
		if u := t.unackedBy(g); u > most || u == most && n < name {
			name, most = n, u
		}
	}
	if most < 0 {
		return name
	}
	return fmt.Sprintf("consumer %q", name)
}

// unackedBy counts what g has not acked. The acked ones above a gap are acked too.
func (t *topic) unackedBy(g *group) int {
	n := 0
	for i := range t.partitions {
		n += int(t.partitions[i].end()-g.cursors[i].low) - len(g.cursors[i].done)
	}
	return n
}

func (t *topic) unacked(consumer string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.groups[consumer]; g != nil {
		return t.unackedBy(g)
	}
	n := 0
	for i := range t.partitions {
		n += len(t.partitions[i].records)
	}
	return n
}

// join returns the group of that name; it exists from now on.
func (t *topic) join(consumer string) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[consumer]
	if g != nil {
		return g
	}
	g = &group{cursors: make([]cursor, len(t.partitions))}
	for i := range g.cursors {
		p := &t.partitions[i]
		p.floor = p.base
		g.cursors[i] = cursor{next: p.base, low: p.base}
	}
	t.groups[consumer] = g
	return g
}

// enter makes s a member of its group. Partitions also change hands between the others.
func (t *topic) enter(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.group.members = append(s.group.members, s)
	s.group.wakeLocked()
}

// leave ends the membership of s, which holds nothing any more.
func (t *topic) leave(s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.group.members = slices.DeleteFunc(s.group.members, func(m *subscription) bool { return m == s })
	s.group.wakeLocked()
}

// wakeLocked tells all members that partitions have changed hands. It needs topic.mu.
func (g *group) wakeLocked() {
	for _, m := range g.members {
		m.wakeLocked()
	}
}

// wake tells every group's owner of partition i that there is something to take.
func (t *topic) wake(i int) {
	for _, g := range t.groups {
		if n := len(g.members); n > 0 {
			g.members[i%n].wakeLocked()
		}
	}
}

// take gives s the next record that it may have and the count of this delivery. Without one it returns nil and
// when to ask again, if that is known; s is also woken when something comes.
func (t *topic) take(s *subscription) (r *record, count int, again time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g, n := s.group, len(t.partitions)
	for range n {
		i := s.turn % n
		s.turn++
		c := &g.cursors[i]
		if g.members[i%len(g.members)] != s || c.held > 0 && c.owner != s {
			continue
		}
		p := &t.partitions[i]
		var offset int64
		first, wait := c.firstBack(s)
		if !wait.IsZero() && (again.IsZero() || wait.Before(again)) {
			again = wait
		}
		switch {
		case first < len(c.back):
			b := c.back[first]
			if b.waits(s, time.Now()) {
				continue
			}
			c.back = slices.Delete(c.back, first, first+1)
			offset, count = b.offset, b.count+1
		case c.next < p.end():
			offset, count = c.next, 1
			c.next++
		default:
			continue
		}
		c.owner = s
		c.held++
		return p.records[offset-p.base], count, time.Time{}
	}
	s.waiting = true
	return nil, 0, again
}

// firstBack finds the first of c.back that is not delayed any more, and the earliest time at which one of those
// before it, or itself, may be taken.
func (c *cursor) firstBack(s *subscription) (i int, at time.Time) {
	if len(c.back) == 0 {
		return 0, time.Time{}
	}
	now := time.Now()
	for ; i < len(c.back); i++ {
		b := &c.back[i]
		waits := b.waits(s, now)
		if waits && (at.IsZero() || b.at.Before(at)) {
			at = b.at
		}
		if !waits || !b.delayed {
			break
		}
	}
	return i, at
}

// done records that s's group has acked r.
func (t *topic) done(s *subscription, r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &s.group.cursors[r.partition]
	t.let(s, c, r)
	if r.offset != c.low {
		if c.done == nil {
			c.done = make(map[int64]struct{})
		}
		c.done[r.offset] = struct{}{}
		return
	}
	c.low++
	for len(c.done) > 0 {
		if _, ok := c.done[c.low]; !ok {
			break
		}
		delete(c.done, c.low)
		c.low++
	}
	t.trim(int(r.partition))
}

// giveBack returns r to s's group, on the terms of b.
func (t *topic) giveBack(s *subscription, r *record, b returned) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &s.group.cursors[r.partition]
	i, _ := slices.BinarySearchFunc(c.back, r.offset, func(b returned, offset int64) int {
		return int(b.offset - offset)
	})
	b.offset = r.offset
	c.back = slices.Insert(c.back, i, b)
	t.let(s, c, r)
}

// let ends the hold of s on r.
func (t *topic) let(s *subscription, c *cursor, r *record) {
	c.held--
	if c.held > 0 {
		return
	}
	c.owner = nil
	if m := s.group.members; len(m) > 0 {
		m[int(r.partition)%len(m)].wakeLocked()
	}
}

// trim drops what every group has acked, but for the history.
func (t *topic) trim(i int) {
	p := &t.partitions[i]
	floor := p.end()
	for _, g := range t.groups {
		floor = min(floor, g.cursors[i].low)
	}
	p.floor = floor
	drop := int(floor-p.base) - t.config.History
	if drop <= 0 {
		return
	}
	clear(p.records[:drop])
	p.records = p.records[drop:]
	p.base += int64(drop)
}

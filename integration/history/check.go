package history

import (
	"cmp"
	"fmt"
	"slices"
)

// Check judges a history. It goes through it twice; its memory grows with the number of messages and
// consumers. A consumer is one that some record names, and each is to have every published message.
func Check(records []Record, o Options) Verdict {
	c := &checker{
		options:  o,
		limit:    cmp.Or(o.Limit, 20),
		verdict:  Verdict{Counts: map[Kind]int{}, Broken: map[Rule]int{}},
		messages: map[string]*published{},
		scopes:   map[string]*scope{},
		crashed:  map[string]bool{},
	}
	for _, r := range records {
		if r.Kind == Published { // a confirmation can come later than the delivery
			c.publish(r)
		}
	}
	for i, r := range records {
		c.at = i
		c.verdict.Counts[r.Kind]++
		c.step(r)
	}
	c.at = -1
	if o.Drained {
		c.end()
	}
	return c.verdict
}

type checker struct {
	options  Options
	limit    int
	verdict  Verdict
	at       int // the index of the record that is judged
	messages map[string]*published
	ids      []string // in the order of their first publish
	scopes   map[string]*scope
	names    []string // of the scopes, in the order of their first record
	crashed  map[string]bool
}

// published is a message as its producer knows it.
type published struct {
	key   string
	seq   int64
	times int
}

// scope is what is known of one consumer.
type scope struct {
	name          string
	once, ordered bool
	messages      map[string]*state
	last          map[string]int64            // by key: the highest number that had its outcome
	parked        map[string]map[string]int64 // by key: the parked messages and their numbers
	running       map[lane]string             // the message whose attempt runs
	revoked       map[tenure]bool
	began         map[string]map[*state]string // by process: what it began, and of which partition
}

type lane struct{ process, key string }

type tenure struct{ process, partition string }

// state is what is known of one message of one consumer.
type state struct {
	starts, effects int
	excuses         int  // how many more starts are explained
	settled         bool // it has an outcome
	placed          bool // it has one that took its place in the key's order
	redriven        bool // it left the order
}

func (c *checker) publish(r Record) {
	if m := c.messages[r.ID]; m != nil {
		m.times++
		return
	}
	c.messages[r.ID] = &published{key: r.Key, seq: r.Seq, times: 1}
	c.ids = append(c.ids, r.ID)
}

func (c *checker) scope(name string) *scope {
	s := c.scopes[name]
	if s == nil {
		s = &scope{
			name:     name,
			once:     c.options.All || slices.Contains(c.options.Once, name),
			ordered:  !slices.Contains(c.options.Unordered, name),
			messages: map[string]*state{},
			last:     map[string]int64{},
			parked:   map[string]map[string]int64{},
			running:  map[lane]string{},
			revoked:  map[tenure]bool{},
			began:    map[string]map[*state]string{},
		}
		c.scopes[name] = s
		c.names = append(c.names, name)
	}
	return s
}

// message returns what is known of r's message. It is nil for one that nobody published.
func (c *checker) message(s *scope, r Record) (*published, *state) {
	p := c.messages[r.ID]
	if p == nil {
		c.broken(Unknown, s, r, "%s of a message that was never published", r.Kind)
		return nil, nil
	}
	m := s.messages[r.ID]
	if m == nil {
		m = &state{excuses: p.times - 1}
		s.messages[r.ID] = m
	}
	return p, m
}

func (c *checker) step(r Record) {
	switch r.Kind {
	case Published:
	case Crash:
		c.crash(r.Process)
	case Assign:
		delete(c.scope(r.Consumer).revoked, tenure{r.Process, r.Partition})
	case Revoke:
		c.scope(r.Consumer).revoke(r.Process, r.Partition)
	case Start, End, Failed, Effect, Skipped, Ack, Dead, Redrive, Park, Unpark, Discard, Release:
		s := c.scope(r.Consumer)
		if p, m := c.message(s, r); p != nil {
			c.handled(s, p, m, r)
		}
	}
}

// handled judges a record of one message.
func (c *checker) handled(s *scope, p *published, m *state, r Record) {
	switch r.Kind {
	case Start:
		c.start(s, p, m, r)
	case End:
		s.ended(p, r)
	case Failed, Release:
		s.ended(p, r)
		m.excuses++
	case Effect:
		c.effect(s, p, m, r)
	case Skipped, Discard:
		// Where it is a duplicate, the record of the effect is late: its process was frozen after the COMMIT.
		m.settled, m.placed = true, true
		delete(s.parked[p.key], r.ID)
	case Dead, Park:
		c.inOrder(s, p, m, r)
		if r.Kind == Park {
			s.park(p, r.ID)
		}
		m.settled = true
	case Ack:
		if !m.settled {
			c.broken(AckBeforeOutcome, s, r, "acked by %s with no effect, skip, dead letter or parking before", r.Process)
		}
	case Redrive, Unpark:
		m.redriven = true
		m.excuses++
	case Published, Assign, Revoke, Crash: // of no one message of one consumer
	}
}

// crash explains one more start of everything that the process has begun.
func (c *checker) crash(process string) {
	c.crashed[process] = true
	for _, s := range c.scopes {
		for m := range s.began[process] {
			m.excuses++
		}
		clear(s.began[process])
	}
}

// revoke explains one more start of everything that the process has begun of the partition, or of an unknown one.
func (s *scope) revoke(process, partition string) {
	s.revoked[tenure{process, partition}] = true
	for m, of := range s.began[process] {
		if of == "" || of == partition {
			m.excuses++
			delete(s.began[process], m)
		}
	}
}

func (c *checker) start(s *scope, p *published, m *state, r Record) {
	at := laneOf(p, r)
	if other, busy := s.running[at]; busy {
		c.broken(Overlap, s, r, "began in %s while %q of the same lane ran there", r.Process, other)
	}
	s.running[at] = r.ID
	m.starts++
	if m.starts > 1 {
		if m.excuses == 0 {
			c.broken(UnexplainedDuplicate, s, r, "attempt %d, by %s, and nothing explains it", m.starts, r.Process)
		} else {
			m.excuses--
			c.verdict.Explained++
		}
	}
	if c.crashed[r.Process] { // the record of a crash comes before it
		m.excuses++
		return
	}
	if s.began[r.Process] == nil {
		s.began[r.Process] = map[*state]string{}
	}
	s.began[r.Process][m] = r.Partition
}

// laneOf is what runs one at a time in a process: a key, or else a message.
func laneOf(p *published, r Record) lane {
	if p.key == "" {
		return lane{r.Process, "\x00" + r.ID}
	}
	return lane{r.Process, p.key}
}

func (s *scope) ended(p *published, r Record) {
	if at := laneOf(p, r); s.running[at] == r.ID {
		delete(s.running, at)
	}
}

func (c *checker) effect(s *scope, p *published, m *state, r Record) {
	m.effects++
	if s.once && m.effects > 1 {
		c.broken(DoubledEffect, s, r, "effect %d of a message that takes effect once", m.effects)
	}
	if r.Partition != "" && s.revoked[tenure{r.Process, r.Partition}] {
		c.broken(EffectAfterRevoke, s, r, "%s had given partition %s back", r.Process, r.Partition)
	}
	c.inOrder(s, p, m, r)
	m.settled = true
	delete(s.parked[p.key], r.ID)
	if !s.ordered {
		return
	}
	for id, seq := range s.parked[p.key] {
		if seq < p.seq {
			c.broken(ParkedKeyOvertaken, s, r, "number %d of the key had its effect while %q, number %d, was parked", p.seq, id, seq)
			break
		}
	}
}

// inOrder judges a message's first outcome. A skip is not judged: a stale message may be skipped at any time.
func (c *checker) inOrder(s *scope, p *published, m *state, r Record) {
	first := !m.placed
	m.placed = true
	if !first || p.key == "" || p.seq == 0 || !s.ordered || m.redriven {
		return
	}
	if last := s.last[p.key]; p.seq < last {
		c.broken(Inversion, s, r, "number %d of the key had its first outcome, %s, after number %d", p.seq, r.Kind, last)
		return
	}
	s.last[p.key] = p.seq
}

func (s *scope) park(p *published, id string) {
	if s.parked[p.key] == nil {
		s.parked[p.key] = map[string]int64{}
	}
	s.parked[p.key][id] = p.seq
}

// end judges what is missing when everything was to be handled.
func (c *checker) end() {
	for _, name := range c.names {
		s := c.scopes[name]
		for _, id := range c.ids {
			if m := s.messages[id]; m == nil || !m.settled {
				p := c.messages[id]
				c.broken(Lost, s, Record{ID: id, Key: p.key}, "published as number %d of its key, and it has no outcome", p.seq)
			}
		}
	}
}

func (c *checker) broken(rule Rule, s *scope, r Record, what string, args ...any) {
	c.verdict.Broken[rule]++
	if c.verdict.Broken[rule] > c.limit {
		return
	}
	c.verdict.Violations = append(c.verdict.Violations, Violation{
		Rule: rule, Consumer: s.name, ID: r.ID, Key: r.Key, At: c.at, What: fmt.Sprintf(what, args...),
	})
}

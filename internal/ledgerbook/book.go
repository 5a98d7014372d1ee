// Package ledgerbook is the ledger's contract as a state machine in memory: no clock, no I/O, no lock. The stores in
// memory and on files keep one, the model checks it, and the databases must behave as it does.
package ledgerbook

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headrace-go/headrace/ledger"
)

// Book is the ledgers of all services. Each call gets the time, which must not go back. It is not safe for
// concurrent use.
type Book struct{ services map[string]*service }

type service struct {
	alarms  int64
	alarmed time.Time
	misses  int
	runs    map[string]*run
	starts  map[ledger.Key]map[string]start // by the run's ID
}

type run struct {
	instance string
	expires  time.Time
	stopping bool
}

type start struct {
	instance string
	at       time.Time
	alone    bool
	died     bool // its run has died
}

// New returns an empty book.
func New() *Book { return &Book{services: map[string]*service{}} }

// service returns the service's ledger, and whether it was made.
func (b *Book) service(name string) (s *service, fresh bool) {
	if s = b.services[name]; s == nil {
		s, fresh = &service{runs: map[string]*run{}, starts: map[ledger.Key]map[string]start{}}, true
		b.services[name] = s
	}
	return s, fresh
}

// Begin is ledger.Store's.
func (b *Book) Begin(now time.Time, r ledger.Run, t ledger.Terms) ledger.Standing {
	s, fresh := b.service(r.Service)
	s.bury(now, r, r.Instance, t)
	s.runs[r.ID] = &run{instance: r.Instance, expires: now.Add(t.TTL)}
	standing := s.standing(now)
	standing.Fresh = fresh
	return standing
}

// Beat is ledger.Store's.
func (b *Book) Beat(now time.Time, r ledger.Run, t ledger.Terms) ledger.Standing {
	s, _ := b.service(r.Service)
	lost := s.runs[r.ID] == nil
	if lost {
		s.runs[r.ID] = &run{instance: r.Instance}
		s.each(func(k ledger.Key, id string, st start) {
			if id == r.ID {
				st.died = false
				s.starts[k][id] = st
			}
		})
	}
	s.runs[r.ID].expires = now.Add(t.TTL)
	s.bury(now, r, "", t)
	standing := s.standing(now)
	standing.Lost = lost
	return standing
}

func (s *service) standing(now time.Time) ledger.Standing {
	return ledger.Standing{Alarms: s.alarms, SinceAlarm: now.Sub(s.alarmed), Misses: s.misses}
}

// bury takes for dead the runs but r whose lease has run out and those of instance, "" is none.
func (s *service) bury(now time.Time, r ledger.Run, instance string, t ledger.Terms) {
	buried, alarms, left := false, 0, 0
	for id, dead := range s.runs {
		if id == r.ID || !dead.expires.Before(now) && (instance == "" || dead.instance != instance) {
			continue
		}
		buried = true
		n := 0
		s.each(func(k ledger.Key, of string, st start) {
			if of == id && !st.died {
				n++
				st.alone = st.alone && !dead.stopping
				s.starts[k][of] = st
			}
		})
		delete(s.runs, id)
		left += n
		if !dead.stopping || n > 0 {
			alarms++
		}
	}
	if alarms > 0 {
		s.alarms += int64(alarms)
		s.alarmed = now
		s.misses += alarms
		if left > 0 {
			s.misses = 0
		}
	}
	if !buried {
		return
	}
	s.each(func(k ledger.Key, id string, st start) {
		if s.runs[id] == nil && !st.died {
			st.died = true
			s.starts[k][id] = st
		}
	})
	s.prune(now, t)
}

// prune forgets suspicions that are too old or too many.
func (s *service) prune(now time.Time, t ledger.Terms) {
	var ages []time.Time
	s.each(func(k ledger.Key, id string, st start) {
		switch {
		case !st.died:
		case st.at.Before(now.Add(-t.Retention)):
			s.remove(k, id)
		case !st.alone:
			ages = append(ages, st.at)
		}
	})
	if len(ages) <= t.MaxSuspects {
		return
	}
	slices.SortFunc(ages, func(a, b time.Time) int { return b.Compare(a) })
	oldest := ages[t.MaxSuspects] // and what is as old goes too
	s.each(func(k ledger.Key, id string, st start) {
		if st.died && !st.alone && !st.at.After(oldest) {
			s.remove(k, id)
		}
	})
}

func (s *service) each(f func(ledger.Key, string, start)) {
	for k, starts := range s.starts {
		for id, st := range starts {
			f(k, id, st)
		}
	}
}

func (s *service) remove(k ledger.Key, id string) {
	delete(s.starts[k], id)
	if len(s.starts[k]) == 0 {
		delete(s.starts, k)
	}
}

// Stopping is ledger.Store's.
func (b *Book) Stopping(r ledger.Run) {
	s, _ := b.service(r.Service)
	if run := s.runs[r.ID]; run != nil {
		run.stopping = true
	}
}

// End is ledger.Store's.
func (b *Book) End(r ledger.Run) {
	s, _ := b.service(r.Service)
	delete(s.runs, r.ID)
	s.each(func(k ledger.Key, id string, _ start) {
		if id == r.ID {
			s.remove(k, id)
		}
	})
	s.misses = 0
}

// Record is ledger.Store's.
func (b *Book) Record(now time.Time, r ledger.Run, done, begun []ledger.Key) ([]ledger.Suspect, error) {
	s, _ := b.service(r.Service)
	if s.runs[r.ID] == nil {
		return nil, ledger.ErrLost
	}
	for _, k := range done {
		s.remove(k, r.ID)
	}
	var suspects []ledger.Suspect
	for _, k := range begun {
		if suspect := s.suspect(k, r.ID); len(suspect.Starts) > 0 || suspect.Elsewhere {
			suspects = append(suspects, suspect)
		} else if _, there := s.starts[k][r.ID]; !there {
			s.put(k, r.ID, start{instance: r.Instance, at: now})
		}
	}
	return suspects, nil
}

func (s *service) put(k ledger.Key, id string, st start) {
	if s.starts[k] == nil {
		s.starts[k] = map[string]start{}
	}
	s.starts[k][id] = st
}

// Alone is ledger.Store's.
func (b *Book) Alone(now time.Time, r ledger.Run, k ledger.Key, force bool) (ledger.Suspect, error) {
	s, _ := b.service(r.Service)
	if s.runs[r.ID] == nil {
		return ledger.Suspect{}, ledger.ErrLost
	}
	suspect := s.suspect(k, r.ID)
	if !suspect.Convicted() && (force || !suspect.Elsewhere) {
		s.put(k, r.ID, start{instance: r.Instance, at: now, alone: true})
	}
	return suspect, nil
}

// Clear is ledger.Store's.
func (b *Book) Clear(r ledger.Run, k ledger.Key) {
	s, _ := b.service(r.Service)
	for id, st := range s.starts[k] {
		if st.died || id == r.ID {
			s.remove(k, id)
		}
	}
}

// Suspects is ledger.Store's.
func (b *Book) Suspects(now time.Time, name string, retention time.Duration, limit int) []ledger.Key {
	s, _ := b.service(name)
	var keys []ledger.Key
	for k, starts := range s.starts {
		for _, st := range starts {
			if st.died && !st.at.Before(now.Add(-retention)) {
				keys = append(keys, k)
				break
			}
		}
	}
	slices.SortFunc(keys, func(a, b ledger.Key) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.ID, b.ID))
	})
	return keys[:min(len(keys), limit)]
}

// suspect returns what is known of k to a run.
func (s *service) suspect(k ledger.Key, run string) ledger.Suspect {
	suspect := ledger.Suspect{Key: k}
	for id, st := range s.starts[k] {
		if st.died {
			suspect.Starts = append(suspect.Starts, ledger.Start{Run: id, Instance: st.instance, At: st.at, Alone: st.alone})
		} else if id != run {
			suspect.Elsewhere = true
		}
	}
	slices.SortFunc(suspect.Starts, func(a, b ledger.Start) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Run, b.Run)) })
	return suspect
}

// Clone copies the book, for a model that goes two ways from one state.
func (b *Book) Clone() *Book {
	c := New()
	for name, s := range b.services {
		copied := *s
		copied.runs, copied.starts = map[string]*run{}, map[ledger.Key]map[string]start{}
		for id, r := range s.runs {
			r := *r
			copied.runs[id] = &r
		}
		for k, starts := range s.starts {
			copied.starts[k] = maps.Clone(starts)
		}
		c.services[name] = &copied
	}
	return c
}

// Alarms is how many unclean ends of a service were found.
func (b *Book) Alarms(name string) int64 {
	s, _ := b.service(name)
	return s.alarms
}

// Each calls f for each start of a service, in no order.
func (b *Book) Each(name string, f func(k ledger.Key, instance string, alone, died bool)) {
	s, _ := b.service(name)
	s.each(func(k ledger.Key, _ string, st start) { f(k, st.instance, st.alone, st.died) })
}

package parking_test

import (
	"fmt"
	"strings"
	"testing"
)

// The model is the protocol of the package comment for one key, in small steps: two processes, each with a
// consumer and a drainer, an operator who releases and fixes, a broker that delivers in order and moves the
// partition while a message is being handled, and crashes. A step is a statement or a commit; what a transaction
// writes is seen when it commits, as under READ COMMITTED. The explorer visits every state that any order of the
// steps can reach.
//
// A message can also ask for a delay, some times: then it is parked without a dead letter, and its key is released at once, since
// the model has no clock: a drain that comes early is one that comes in time.
//
// The property, in every state: a message takes effect once and after all before it; what is claimed has taken
// effect or is parked; a key has a row if, and only if, messages of it are parked. And where nothing can
// step any more, everybody is done: nobody waits for ever, and nothing is lost.

const (
	modelMessages = 3 // 1 and up; the first is the first of the broker
	processes     = 2
)

// variant is what the protocol is without.
type variant struct {
	noLock       bool                    // live reads the row, and drain looks for messages, without locking the row
	sameSnapshot bool                    // drain decides whether a message is the last by what it read before it had the lock
	noClaim      bool                    // park does not claim the failed message
	delays       [modelMessages + 1]int8 // the messages that ask for a delay, and how often
	overtaken    bool                    // what asks for a delay is put behind the live messages of its key, as by a broker
}

// step counters of an actor's program.
const (
	idle = iota
	liveClaim
	liveLook
	liveAppend
	liveEffect
	liveCommit
	liveDeadLetter
	parkClaim
	parkOpen
	parkCommit
	liveAck
	drainLock
	drainCheck
	drainEffect
	drainCommit
	drainFail
)

type actor struct {
	pc, m    int8
	last     bool // drain: m is the key's last
	inserted bool // park: the key's row is new
	delays   bool // park: the message asked for a delay
}

// model is one state. It is comparable, and so its own key.
type model struct {
	// committed
	claimed  [modelMessages + 1]bool
	key      bool
	released bool
	nextSeq  int8
	parked   [modelMessages + 1]int8 // the place; 0: not parked
	effects  int8                    // 1 to this have taken effect
	letters  [modelMessages + 1]bool
	delays   [modelMessages + 1]int8 // so often it asks for one

	// locks, by actor + 1
	claimBy  [modelMessages + 1]int8
	rowBy    int8
	insertBy int8 // of a row that is not committed

	acked [modelMessages + 1]bool
	owner int8

	actors [2 * processes]actor // consumers, then drainers

	fixed                    bool
	moves, crashes, releases int8
}

type explorer struct {
	variant
	poison  [modelMessages + 1]bool
	seen    map[model]struct{}
	todo    []model
	wrong   string
	drained int // states in which everything had taken effect
}

// explore visits everything that can be reached from the start, or stops at the first violation.
func (e *explorer) explore(start model) {
	e.seen = map[model]struct{}{}
	e.add(start)
	for len(e.todo) > 0 && e.wrong == "" {
		s := e.todo[len(e.todo)-1]
		e.todo = e.todo[:len(e.todo)-1]
		stepped := e.steps(s)
		if e.wrong == "" {
			e.check(s, stepped)
		}
	}
}

func (e *explorer) add(s model) {
	if _, known := e.seen[s]; known {
		return
	}
	e.seen[s] = struct{}{}
	e.todo = append(e.todo, s)
}

func (e *explorer) violation(s model, what string, args ...any) {
	if e.wrong == "" {
		e.wrong = fmt.Sprintf(what, args...) + fmt.Sprintf(" in %+v", s)
	}
}

// steps adds every successor of s and reports whether there is any.
func (e *explorer) steps(s model) bool {
	stepped := false
	step := func(next model) {
		stepped = true
		e.add(next)
	}
	for i := range s.actors {
		e.actorSteps(s, i, step)
	}
	if !s.fixed {
		next := s
		next.fixed = true
		step(next)
	}
	if s.releases > 0 && s.key && !s.released && s.rowBy == 0 {
		next := s
		next.releases--
		next.released = true
		step(next)
	}
	if s.moves > 0 {
		next := s
		next.moves--
		next.owner = 1 - s.owner
		step(next)
	}
	if s.crashes > 0 {
		for p := range processes {
			next := s
			next.crashes--
			for _, i := range []int{p, processes + p} {
				next.free(i)
				next.actors[i] = actor{}
			}
			step(next)
		}
	}
	return stepped
}

// free ends an actor's transaction.
func (s *model) free(i int) {
	me := int8(i + 1)
	for m := range s.claimBy {
		if s.claimBy[m] == me {
			s.claimBy[m] = 0
		}
	}
	if s.rowBy == me {
		s.rowBy = 0
	}
	if s.insertBy == me {
		s.insertBy = 0
	}
}

func (e *explorer) actorSteps(s model, i int, step func(model)) {
	me, a := int8(i+1), s.actors[i]
	m := int(a.m)
	// to returns s with the actor at pc.
	to := func(pc int8) model {
		next := s
		next.actors[i].pc = pc
		return next
	}
	// ended is to for one whose transaction has ended, after changes to the state.
	ended := func(pc int8, change func(*model)) model {
		next := to(pc)
		next.free(i)
		if change != nil {
			change(&next)
		}
		if pc == idle {
			next.actors[i] = actor{}
		}
		return next
	}
	switch a.pc {
	case idle:
		if i >= processes {
			if first := s.first(); s.key && s.released && first > 0 {
				next := to(drainLock)
				next.actors[i].m = int8(first)
				next.actors[i].last = s.count() == 1
				step(next)
			}
			return
		}
		if int(s.owner) != i {
			return
		}
		for m := 1; m <= modelMessages; m++ {
			if !s.acked[m] {
				next := to(liveClaim)
				next.actors[i].m = int8(m)
				step(next)
				return
			}
		}
	case liveClaim, parkClaim:
		switch {
		case e.noClaim && a.pc == parkClaim:
			step(to(parkOpen))
		case s.claimBy[m] != 0: // waits
		case s.claimed[m]:
			step(ended(liveAck, nil)) // a duplicate
		default:
			next := to(liveLook)
			if a.pc == parkClaim {
				next = to(parkOpen)
			}
			next.claimBy[m] = me
			step(next)
		}
	case liveLook:
		switch {
		case !s.key:
			step(to(liveEffect))
		case e.noLock:
			step(to(liveAppend))
		case s.rowBy == 0:
			next := to(liveAppend)
			next.rowBy = me
			step(next)
		}
	case liveAppend:
		step(ended(liveAck, func(s *model) { s.put(m) }))
	case liveEffect:
		switch {
		case s.delays[m] > 0 && e.overtaken:
			step(ended(liveAck, func(s *model) { s.delays[m]-- }))
		case s.delays[m] > 0:
			next := ended(parkClaim, func(s *model) { s.delays[m]-- })
			next.actors[i].delays = true
			step(next)
		case e.poison[m] && !s.fixed:
			step(ended(liveDeadLetter, nil))
		default:
			step(to(liveCommit))
		}
	case liveCommit:
		step(ended(liveAck, func(s *model) {
			s.claimed[m] = true
			e.effect(s, m)
		}))
	case liveDeadLetter:
		next := to(parkClaim)
		next.letters[m] = true
		step(next)
	case parkOpen:
		switch {
		case s.key && (s.rowBy == 0 || e.noLock):
			next := to(parkCommit)
			if !e.noLock {
				next.rowBy = me
			}
			step(next)
		case !s.key && s.insertBy == 0:
			next := to(parkCommit)
			next.insertBy = me
			next.actors[i].inserted = true
			step(next)
		}
	case parkCommit:
		step(ended(liveAck, func(s *model) {
			if a.inserted {
				s.key, s.released, s.nextSeq = true, a.delays, 1
			}
			s.put(m)
		}))
	case liveAck:
		step(ended(idle, func(s *model) {
			if int(s.owner) == i { // the ack of one that was taken away has no effect
				s.acked[m] = true
			}
		}))
	case drainLock:
		switch {
		case !s.key:
			step(ended(idle, nil))
		case e.noLock:
			step(to(drainCheck))
		case s.rowBy == 0 && !s.released:
			step(ended(idle, nil))
		case s.rowBy == 0:
			next := to(drainCheck)
			next.rowBy = me
			step(next)
		}
	case drainCheck:
		if s.parked[m] == 0 {
			step(ended(idle, nil))
			return
		}
		next := to(drainEffect)
		if !e.sameSnapshot {
			next.actors[i].last = s.count() == 1
		}
		step(next)
	case drainEffect:
		switch {
		case s.delays[m] > 0: // its record changes, and nothing else
			step(ended(idle, func(s *model) { s.delays[m]-- }))
		case e.poison[m] && !s.fixed:
			step(ended(drainFail, nil))
		default:
			step(to(drainCommit))
		}
	case drainCommit:
		step(ended(idle, func(s *model) {
			if s.parked[m] == 0 { // another one has deleted it, and so this one is rolled back
				return
			}
			s.parked[m] = 0
			if a.last {
				s.key, s.released, s.nextSeq = false, false, 0
			}
			e.effect(s, m)
		}))
	case drainFail:
		if s.rowBy == 0 {
			step(ended(idle, func(s *model) {
				if s.key && s.parked[m] != 0 {
					s.released = false
				}
			}))
		}
	}
}

// put parks m as the last, with its claim.
func (s *model) put(m int) {
	s.nextSeq = max(s.nextSeq, 1) // without the lock the row can be gone
	s.claimed[m] = true
	s.parked[m] = s.nextSeq
	s.nextSeq++
}

func (e *explorer) effect(s *model, m int) {
	if int(s.effects) != m-1 {
		e.violation(*s, "message %d takes effect after %d messages", m, s.effects)
	}
	s.effects = int8(m)
}

func (s *model) count() (n int) {
	for _, place := range s.parked {
		if place != 0 {
			n++
		}
	}
	return n
}

// first is the message with the lowest place.
func (s *model) first() (first int) {
	for m, place := range s.parked {
		if place != 0 && (first == 0 || place < s.parked[first]) {
			first = m
		}
	}
	return first
}

func (e *explorer) check(s model, stepped bool) {
	if s.key != (s.count() > 0) {
		e.violation(s, "the key has a row: %t, and %d messages", s.key, s.count())
	}
	for m := 1; m <= modelMessages; m++ {
		if done := int(s.effects) >= m; s.claimed[m] != (done || s.parked[m] != 0) || done && s.parked[m] != 0 {
			e.violation(s, "message %d is claimed: %t, has taken effect: %t, is parked: %t", m, s.claimed[m], done, s.parked[m] != 0)
		}
	}
	if int(s.effects) == modelMessages {
		e.drained++
	}
	if stepped {
		return
	}
	for i, a := range s.actors {
		if a.pc != idle {
			e.violation(s, "actor %d waits for ever at step %d", i, a.pc)
		}
	}
	for m := 1; m <= modelMessages; m++ {
		if !s.acked[m] {
			e.violation(s, "message %d is never done", m)
		}
	}
	if s.released {
		e.violation(s, "a released key is not drained")
	}
}

func run(v variant, poison ...int) *explorer {
	e := &explorer{variant: v}
	for _, m := range poison {
		e.poison[m] = true
	}
	e.explore(model{moves: 1, crashes: 1, releases: 2, delays: v.delays})
	return e
}

func TestModelKeepsOrderAndLosesNothing(t *testing.T) {
	for _, tc := range []struct {
		poison []int
		delays [modelMessages + 1]int8
	}{
		{poison: []int{1}},
		{poison: []int{2}},
		{poison: []int{1, 3}},
		{delays: [...]int8{1: 1, 2: 0, 3: 0}},
		{delays: [...]int8{1: 2, 2: 1, 3: 0}},
		{poison: []int{1}, delays: [...]int8{1: 1, 2: 0, 3: 0}},
		{poison: []int{1}, delays: [...]int8{1: 0, 2: 1, 3: 0}},
	} {
		e := run(variant{delays: tc.delays}, tc.poison...)
		if e.wrong != "" {
			t.Errorf("poison %v, delays %v: %s", tc.poison, tc.delays, e.wrong)
		}
		if e.drained == 0 {
			t.Errorf("poison %v, delays %v: of %d states none has everything done: the model does not do what it should", tc.poison, tc.delays, len(e.seen))
		}
		t.Logf("poison %v, delays %v: %d states", tc.poison, tc.delays, len(e.seen))
	}
}

// The row lock is not for speed. Without it a live message reads that its key is parked, the drainer takes the last
// message and deletes the row, and the live message is appended to a key that is gone.
func TestModelWithoutTheRowLockFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		variant
		want string
	}{
		{"no lock", variant{noLock: true}, "the key has a row"},
		{"decides by what it read before it had the lock", variant{sameSnapshot: true}, "the key has a row"},
		{"park without a claim", variant{noClaim: true}, "message 1"},
		{"a delay without parking", variant{overtaken: true, delays: [...]int8{1: 1, 2: 0, 3: 0}}, "message 2 takes effect after 0"},
	} {
		e := run(tc.variant, 1)
		if !strings.Contains(e.wrong, tc.want) {
			t.Errorf("%s: violation %q after %d states; want one with %q", tc.name, e.wrong, len(e.seen), tc.want)
		}
	}
}

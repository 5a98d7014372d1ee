package ledger_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/internal/ledgerbook"
	"github.com/headrace-go/headrace/ledger"
)

// The model walks every interleaving of a few messages in one or two processes that may die at any step. The ledger
// is the real state machine; what a process does is written down here step by step, as attempt.go and books.go do it.

// phase is how far a message is.
type phase int

const (
	resting   phase = iota // delivered or to be delivered, no attempt
	entered                // inside the gate, nothing written
	written                // its start is committed, or none is due
	running                // the handler runs
	returned               // the handler has succeeded; not acked
	wanting                // a suspect; waits for its turn alone
	closing                // it has closed the gate and waits for those inside
	inside                 // alone; its start is not counted
	counted                // its start is committed as alone
	runsAlone              // the handler runs
	finishing              // the handler has succeeded; its suspicion is not cleared
	convicted              // the attempt was refused; the dead letter is not stored
	stored                 // the dead letter is stored; suspicion not removed
	forgotten              // removed; not acked
	acked
)

type modelMessage struct {
	phase   phase
	process int
	owed    bool // its start is to be removed, by the process that ran it
	starts  int
	dead    int // dead letters
	// unlucky counts the kills from outside while its start was counted as alone.
	unlucky int
}

type modelProcess struct {
	life      int
	recording bool
	heard     int64
	stopping  bool
	down      bool // it has ended and was not started again
}

type world struct {
	book      *ledgerbook.Book
	messages  []modelMessage
	processes []modelProcess
	kills     int // from outside, that are left
	deploys   int // clean stops that are left
	failures  int // errors of a handler that are left
}

// scenario is a world to begin with and what must hold in every state.
type scenario struct {
	name                     string
	messages, processes      int
	killers                  []int
	kills, deploys, failures int
	mostStarts               int // of a killer
	large                    bool
}

var modelTerms = ledger.Terms{TTL: time.Hour, Retention: time.Hour, MaxSuspects: 100}

func (w *world) clone() *world {
	c := *w
	c.book = w.book.Clone()
	c.messages, c.processes = slices.Clone(w.messages), slices.Clone(w.processes)
	return &c
}

// key is the state without what makes no difference: the names of runs that have died, and which of the messages
// that are alike is which.
func (w *world) key(killers []int) string {
	rows := make([][]byte, len(w.messages))
	w.book.Each("s", func(k ledger.Key, instance string, alone, died bool) {
		i := int(k.ID[0] - '0')
		owner := byte('A')
		if !died {
			owner = instance[len(instance)-1]
		}
		rows[i] = append(rows[i], owner+byte(b2i(alone))*20)
	})
	list := make([]string, len(w.messages))
	for i, m := range w.messages {
		if m.phase == resting || m.phase == acked {
			m.process *= b2i(m.owed)
		}
		slices.Sort(rows[i])
		one := []byte{
			byte(b2i(slices.Contains(killers, i))), byte(m.phase), byte(m.process), byte(b2i(m.owed)),
			byte(m.starts), byte(m.dead), byte(m.unlucky), '|',
		}
		list[i] = string(append(one, rows[i]...))
	}
	slices.Sort(list)
	b := []byte(strings.Join(list, "/"))
	alarms := w.book.Alarms("s")
	for _, p := range w.processes {
		b = append(b, byte('0'+b2i(p.recording)+2*b2i(p.stopping)+4*b2i(p.down)+8*b2i(p.heard < alarms)))
	}
	return string(append(b, byte(min(alarms, 1)), byte(w.kills), byte(w.deploys), byte(w.failures)))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (w *world) run(p int) ledger.Run {
	return ledger.Run{Service: "s", ID: fmt.Sprintf("%d.%d", p, w.processes[p].life), Instance: fmt.Sprint("host", p)}
}

var modelNow = time.Unix(1e9, 0)

// start starts process p.
func (w *world) start(p int) {
	pr := &w.processes[p]
	*pr = modelProcess{life: pr.life + 1}
	standing := w.book.Begin(modelNow, w.run(p), modelTerms)
	pr.heard, pr.recording = standing.Alarms, standing.Alarms > 0
}

// die ends process p uncleanly; what it held comes again.
func (w *world) die(p int, fromOutside bool) {
	for i := range w.messages {
		m := &w.messages[i]
		if m.process != p {
			continue
		}
		if fromOutside && (m.phase == counted || m.phase == runsAlone || m.phase == finishing) {
			m.unlucky++
		}
		m.owed = false
		if m.phase != acked {
			m.phase = resting
		}
	}
	w.processes[p].down = true
}

func modelKey(i int) ledger.Key { return ledger.Key{Consumer: "c", ID: fmt.Sprint(i)} }

// holds tells whether message m has entered its process's gate among others.
func (m modelMessage) shares() bool {
	return m.phase == entered || m.phase == written || m.phase == running
}

// closes tells whether m has closed its process's gate.
func (m modelMessage) closes() bool { return m.phase >= closing && m.phase <= finishing }

// next returns every state that is one step away.
func (w *world) next(killers []int) []*world {
	var list []*world
	step := func(f func(*world)) {
		c := w.clone()
		f(c)
		list = append(list, c)
	}
	for p := range w.processes {
		pr := w.processes[p]
		if pr.down {
			step(func(c *world) { c.start(p) })
			continue
		}
		if w.kills > 0 {
			step(func(c *world) { c.kills--; c.die(p, true) })
		}
		if w.deploys > 0 && !pr.stopping {
			step(func(c *world) {
				c.deploys--
				c.processes[p].stopping = true
				c.book.Stopping(c.run(p))
			})
		}
		if alarms := w.book.Alarms("s"); alarms > pr.heard {
			step(func(c *world) { c.processes[p].heard, c.processes[p].recording = alarms, true })
		}
		if pr.stopping && !w.busy(p) {
			step(func(c *world) {
				c.book.End(c.run(p))
				for i := range c.messages { // what was owed went with the run
					if c.messages[i].process == p {
						c.messages[i].owed = false
					}
				}
				c.processes[p].down = true
			})
		}
	}
	for i := range w.messages {
		w.advance(i, slices.Contains(killers, i), step)
	}
	return list
}

func (w *world) isSuspect(i int) bool {
	return slices.Contains(w.book.Suspects(modelNow, "s", modelTerms.Retention, 100), modelKey(i))
}

func (w *world) busy(p int) bool {
	return slices.ContainsFunc(w.messages, func(m modelMessage) bool { return m.process == p && m.phase != resting && m.phase != acked })
}

func (w *world) gateIsClosed(p int) bool {
	return slices.ContainsFunc(w.messages, func(m modelMessage) bool { return m.process == p && m.closes() })
}

// advance makes each step that message i can make.
func (w *world) advance(i int, killer bool, step func(func(*world))) {
	m, key := w.messages[i], modelKey(i)
	to := func(ph phase) func(*world) { return func(c *world) { c.messages[i].phase = ph } }
	if p := m.process; m.phase == acked && m.dead > 0 && !w.processes[p].down && w.isSuspect(i) { // forgotten, sooner or later
		step(func(c *world) { c.book.Clear(c.run(p), key) })
	}
	if m.owed && !w.processes[m.process].down {
		step(func(c *world) {
			c.messages[i].owed = false
			_, _ = c.book.Record(modelNow, c.run(m.process), []ledger.Key{key}, nil)
		})
	}
	switch m.phase {
	case resting:
		for p := range w.processes {
			// A start that is owed goes before the next one of the same message in the same process.
			if pr := w.processes[p]; pr.down || pr.stopping || w.gateIsClosed(p) || m.owed {
				continue
			}
			step(func(c *world) { c.messages[i].phase, c.messages[i].process = entered, p })
		}
	case entered:
		if !w.processes[m.process].recording {
			step(to(written))
			return
		}
		step(func(c *world) {
			suspects, err := c.book.Record(modelNow, c.run(m.process), nil, []ledger.Key{key})
			switch {
			case err != nil:
				c.messages[i].phase = written // off
			case len(suspects) == 0:
				c.messages[i].phase = written
			case suspects[0].Convicted():
				c.messages[i].phase = convicted
			case suspects[0].Elsewhere:
				c.messages[i].phase = resting
			default:
				c.messages[i].phase = wanting
			}
		})
	case written:
		step(func(c *world) { c.messages[i].phase = running; c.messages[i].starts++ })
	case running:
		if killer {
			step(func(c *world) { c.die(m.process, false) })
			return
		}
		owed := func(ph phase) func(*world) {
			return func(c *world) { c.messages[i].phase, c.messages[i].owed = ph, true }
		}
		step(owed(returned))
		if w.failures > 0 {
			step(func(c *world) { c.failures--; owed(resting)(c) })
		}
	case returned, stored:
		step(to(acked))
	case wanting:
		if w.processes[m.process].stopping { // the wait ends with the drain
			step(to(resting))
		}
		if !w.gateIsClosed(m.process) {
			step(to(closing))
		}
	case closing:
		if !slices.ContainsFunc(w.messages, func(o modelMessage) bool { return o.process == m.process && o.shares() }) {
			step(to(inside))
		}
	case inside:
		step(func(c *world) {
			suspect, _ := c.book.Alone(modelNow, c.run(m.process), key, false)
			switch {
			case suspect.Convicted():
				c.messages[i].phase = convicted
			case suspect.Elsewhere:
				c.messages[i].phase = resting
			default:
				c.messages[i].phase = counted
			}
		})
	case counted:
		step(func(c *world) { c.messages[i].phase = runsAlone; c.messages[i].starts++ })
	case runsAlone:
		if killer {
			step(func(c *world) { c.die(m.process, false) })
			return
		}
		step(to(finishing))
		if w.failures > 0 {
			step(func(c *world) {
				c.failures--
				c.messages[i].phase = resting
				_, _ = c.book.Record(modelNow, c.run(m.process), []ledger.Key{key}, nil)
			})
		}
	case finishing:
		step(func(c *world) { c.book.Clear(c.run(m.process), key); c.messages[i].phase = returned })
	case convicted:
		step(func(c *world) { c.messages[i].phase = stored; c.messages[i].dead = min(c.messages[i].dead+1, 2) })
	}
}

// check returns what is wrong with the state.
func (w *world) check(s scenario) string {
	for i, m := range w.messages {
		if slices.Contains(s.killers, i) {
			if m.starts > s.mostStarts {
				return fmt.Sprintf("killer %d was started %d times, want at most %d", i, m.starts, s.mostStarts)
			}
			if m.phase == returned {
				return fmt.Sprintf("killer %d succeeded: the model is wrong", i)
			}
			continue
		}
		if m.dead > 0 && m.unlucky < ledger.DeathsToConvict {
			return fmt.Sprintf("message %d was dead-lettered though only %d kills from outside hit it while it was alone", i, m.unlucky)
		}
	}
	for p := range w.processes {
		alone := 0
		for _, m := range w.messages {
			if m.process == p && m.phase >= inside && m.phase <= finishing {
				alone++
			}
		}
		if alone > 0 && slices.ContainsFunc(w.messages, func(m modelMessage) bool { return m.process == p && m.shares() }) || alone > 1 {
			return fmt.Sprintf("process %d: a suspect is not alone", p)
		}
	}
	return ""
}

// done tells whether nothing is left to do but to stop and to start.
func (w *world) done() bool {
	return !slices.ContainsFunc(w.messages, func(m modelMessage) bool { return m.phase != acked })
}

// A message that kills its process was delivered again for ever, or the messages beside it were dead-lettered in its
// place (fault R5).
func TestR5ModelConvictsKillersOnly(t *testing.T) {
	for _, s := range []scenario{
		{name: "one killer of three", messages: 3, processes: 1, killers: []int{1}, mostStarts: 4},
		{name: "two killers", messages: 2, processes: 1, killers: []int{0, 1}, mostStarts: 4},
		{name: "a killer and errors", messages: 2, processes: 1, killers: []int{1}, failures: 2, mostStarts: 4},
		{name: "a killer and a kill from outside", messages: 2, processes: 1, killers: []int{1}, kills: 1, mostStarts: 4},
		{name: "a killer and a deploy", messages: 2, processes: 1, killers: []int{1}, deploys: 1, mostStarts: 5},
		{name: "kills from outside alone", messages: 1, processes: 1, kills: 5},
		{name: "kills and deploys", messages: 2, processes: 1, kills: 3, deploys: 2},
		{name: "two replicas", messages: 1, processes: 2, killers: []int{0}, mostStarts: 5},
		{name: "two replicas and a deploy", messages: 1, processes: 2, killers: []int{0}, deploys: 1, mostStarts: 6},
		{name: "two killers of three", messages: 3, processes: 1, killers: []int{0, 2}, mostStarts: 4, large: true},
		{name: "three killers", messages: 3, processes: 1, killers: []int{0, 1, 2}, mostStarts: 4, large: true},
		{name: "a killer of three and a kill from outside", messages: 3, processes: 1, killers: []int{1}, kills: 1, mostStarts: 4, large: true},
		{name: "a killer of three and a deploy", messages: 3, processes: 1, killers: []int{1}, deploys: 1, mostStarts: 5, large: true},
		{name: "two replicas, two killers", messages: 2, processes: 2, killers: []int{0, 1}, mostStarts: 5, large: true},
	} {
		t.Run(s.name, func(t *testing.T) {
			if s.large && (raceEnabled || testing.Short()) {
				t.Skip("some 100,000 states, in one goroutine: without -race and -short only")
			}
			states, most, innocents := s.explore(t)
			t.Logf("%d states; a killer was started at most %d times; innocents could be dead-lettered: %t", states, most, innocents)
			if len(s.killers) > 0 && most < 3 {
				t.Errorf("the most starts of a killer are %d: the model does not run", most)
			}
			if want := s.kills >= 4; innocents != want {
				t.Errorf("%d kills from outside can dead-letter an innocent: got %t, want %t", s.kills, innocents, want)
			}
		})
	}
}

// explore visits every state.
func (s scenario) explore(t *testing.T) (states, mostStarts int, innocents bool) {
	first := &world{
		book: ledgerbook.New(), messages: make([]modelMessage, s.messages), processes: make([]modelProcess, s.processes),
		kills: s.kills, deploys: s.deploys, failures: s.failures,
	}
	for p := range first.processes {
		first.start(p)
	}
	type visit struct {
		*world
		from *visit
	}
	seen := map[string]bool{first.key(s.killers): true}
	queue := []*visit{{world: first}}
	for len(queue) > 0 {
		v := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if wrong := v.check(s); wrong != "" {
			var trail []string
			for at := v; at != nil; at = at.from {
				trail = append(trail, fmt.Sprintf("%q", at.key(s.killers)))
			}
			slices.Reverse(trail)
			t.Fatalf("%s, after\n%s", wrong, strings.Join(trail, "\n"))
		}
		for i, m := range v.messages {
			if slices.Contains(s.killers, i) {
				mostStarts = max(mostStarts, m.starts)
			} else if m.dead > 0 {
				innocents = true
			}
		}
		next := v.next(s.killers)
		if len(next) == 0 && !v.done() {
			t.Fatalf("nothing can go on in %s", v.key(s.killers))
		}
		if v.done() {
			continue
		}
		for _, n := range next {
			if k := n.key(s.killers); !seen[k] {
				seen[k] = true
				queue = append(queue, &visit{world: n, from: v})
			}
		}
	}
	return len(seen), mostStarts, innocents
}

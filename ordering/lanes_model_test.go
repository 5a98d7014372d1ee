package ordering

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// laneModel is what the lanes mean, without any structure: a flat list of deliveries in order of
// arrival, searched from the start for each question.
type laneModel struct {
	t       *rapid.T
	lanes   *lanes
	sources []*subscription
	all     []*modelDelivery
	byReal  map[*delivery]*modelDelivery
	ended   map[*delivery]bool
	back    map[laneKey]bool // of what has run and comes again, since the last check
	clock   int
	paused  bool
	allowed int
}

type modelDelivery struct {
	real    *delivery
	lane    laneKey
	ordered bool
	state   modelState
	// since is when it became ready: the model's clock, or 0.
	since int
	// rests says that it runs and rests, roused is when it was roused: the model's clock, or 0. begun
	// says that it has ever rested.
	rests, begun bool
	roused       int
}

type modelState int

const (
	modelWaiting modelState = iota
	modelRunning
	modelDropped // to be forgotten
	modelGone    // finished or forgotten
)

// eligible says that nothing before d in its lane is waiting or running.
func (m *laneModel) eligible(d *modelDelivery) bool {
	for _, other := range m.all {
		if other == d {
			return true
		}
		if d.ordered && other.ordered && other.lane == d.lane && other.state <= modelRunning {
			return false
		}
	}
	return false
}

// check compares what can be seen of the lanes with the model, and takes over what was dropped.
func (m *laneModel) check() {
	t, l := m.t, m.lanes
	m.clock++
	for d := l.dropped.pop(); d != nil; d = l.dropped.pop() {
		md := m.byReal[d]
		switch {
		case md.state != modelWaiting:
			t.Fatalf("dropped %v, which is in state %d", md.lane, md.state)
		case d.sub.stopped || m.ended[d]:
		case !md.ordered || !m.back[md.lane]:
			t.Fatalf("dropped %v, which is neither stopped nor ended, nor behind one that comes again", md.lane)
		}
		for _, other := range m.all {
			if other == md {
				break
			}
			// An ended one may go before its turn: it is not the broker's to deliver elsewhere.
			if md.ordered && other.ordered && other.lane == md.lane && other.state <= modelRunning && !m.ended[d] {
				t.Fatalf("dropped %v before an earlier delivery of its lane, in state %d", md.lane, other.state)
			}
		}
		md.state = modelDropped
	}
	for _, d := range m.all {
		if d.ordered && m.back[d.lane] && d.state <= modelRunning {
			t.Fatalf("%v was given back, but not a later one, in state %d", d.lane, d.state)
		}
	}
	clear(m.back)
	waiting, ready, running, resting, busy := 0, 0, 0, 0, map[laneKey]bool{}
	held := map[*subscription]int{}
	for _, d := range m.all {
		if d.state != modelGone {
			held[d.real.sub]++
		}
		switch d.state {
		case modelWaiting:
			waiting++
		case modelRunning:
			running++
			if d.rests {
				resting++
			}
		default:
			continue
		}
		if d.ordered {
			busy[d.lane] = true
		}
		if d.state == modelWaiting && d.since == 0 && m.eligible(d) {
			if d.real.sub.stopped {
				t.Fatalf("%v is stopped and first of its lane, and was not dropped", d.lane)
			}
			d.since = m.clock
		}
		if d.state == modelWaiting && d.since > 0 {
			ready++
		}
	}
	if got := l.behind + l.ready.n; got != waiting {
		t.Fatalf("waiting = %d, want %d", got, waiting)
	}
	if l.running.n != running || l.resting != resting {
		t.Fatalf("running = %d, %d of them resting; want %d, %d", l.running.n, l.resting, running, resting)
	}
	if l.idleCount > l.idleLimit || len(l.byKey) != len(busy)+l.idleCount {
		t.Fatalf("%d lanes, %d busy and %d idle, at most %d idle", len(l.byKey), len(busy), l.idleCount, l.idleLimit)
	}
	for i, s := range m.sources {
		if s.held != held[s] {
			t.Fatalf("source %d holds %d, want %d", i, s.held, held[s])
		}
		if got, want := l.room(&s.source), held[s] < s.window && !s.stopped && (!m.paused || m.allowed > ready); got != want {
			t.Fatalf("room of source %d = %v, want %v", i, got, want)
		}
	}
}

// next checks that the one to run is the one that has been roused or else ready for longest.
func (m *laneModel) next() {
	oldest, running := 0, 0
	var roused *modelDelivery
	for _, d := range m.all {
		if d.state == modelRunning && !d.rests {
			running++
		}
		if d.state == modelRunning && d.roused > 0 && (roused == nil || d.roused < roused.roused) {
			roused = d
		}
		if d.state == modelWaiting && d.since > 0 && (oldest == 0 || d.since < oldest) {
			oldest = d.since
		}
	}
	if m.paused && m.allowed == 0 || running >= m.lanes.concurrency {
		oldest = 0
	}
	got := m.lanes.next()
	if roused != nil && running < m.lanes.concurrency {
		if got != roused.real {
			m.t.Fatalf("next() = %p, want %v, roused at %d", got, roused.lane, roused.roused)
		}
		roused.rests, roused.roused = false, 0
		return
	}
	if got == nil {
		if oldest > 0 {
			m.t.Fatalf("next() = nil, but one is ready since %d", oldest)
		}
		return
	}
	if d := m.byReal[got]; d.state != modelWaiting || d.since == 0 || d.since != oldest {
		m.t.Fatalf("next() = %v in state %d, ready since %d; want one ready since %d", d.lane, d.state, d.since, oldest)
	}
	m.byReal[got].state = modelRunning
	if m.paused {
		m.allowed--
	}
}

// one draws a delivery in state s, or returns nil.
func (m *laneModel) one(s modelState) *modelDelivery {
	var in []*modelDelivery
	for _, d := range m.all {
		if d.state == s {
			in = append(in, d)
		}
	}
	if len(in) == 0 {
		return nil
	}
	return in[rapid.IntRange(0, len(in)-1).Draw(m.t, "delivery")]
}

func (m *laneModel) source() *subscription {
	return m.sources[rapid.IntRange(0, len(m.sources)-1).Draw(m.t, "source")]
}

// Fault L3 among others: lanes are emptied and filled again at every moment, and made out of idle ones.
func TestL3LanesAgreeWithNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &laneModel{byReal: map[*delivery]*modelDelivery{}, ended: map[*delivery]bool{}, back: map[laneKey]bool{}}
		m.lanes = newLanes(
			rapid.IntRange(1, 6).Draw(t, "concurrency"),
			rapid.IntRange(0, 4).Draw(t, "idle limit"),
			func(d *delivery) bool { return m.ended[d] },
		)
		for range rapid.IntRange(1, 3).Draw(t, "sources") {
			m.sources = append(m.sources, &subscription{source: source{window: rapid.IntRange(1, 30).Draw(t, "window")}})
		}
		step := func(f func()) func(*rapid.T) {
			return func(t *rapid.T) {
				m.t = t
				f()
				m.check()
			}
		}
		some := func(f func()) func(*rapid.T) {
			return func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "n") {
					step(f)(t)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit": some(func() {
				s := m.source()
				if !m.lanes.room(&s.source) {
					return
				}
				d := &modelDelivery{
					real:    &delivery{sub: s},
					lane:    laneKey{topic: "t", key: fmt.Sprint(rapid.IntRange(0, 4).Draw(m.t, "key"))},
					ordered: rapid.IntRange(0, 9).Draw(m.t, "ordered") > 0,
				}
				m.all = append(m.all, d)
				m.byReal[d.real] = d
				m.lanes.admit(d.real, d.lane, d.ordered)
			}),
			"next": some(m.next),
			"finish": some(func() {
				if d := m.one(modelRunning); d != nil {
					d.state = modelGone
					m.lanes.finish(d.real)
				}
			}),
			"give back": some(func() {
				d := m.one(modelRunning)
				if d == nil {
					return
				}
				d.real.Release()
				d.state = modelGone
				m.back[d.lane] = d.ordered && !m.ended[d.real] && !d.real.sub.stopped
				m.lanes.finish(d.real)
			}),
			"finish and go on": some(func() {
				if d := m.one(modelRunning); d != nil {
					d.state = modelGone
					m.lanes.finish(d.real)
					m.check()
					m.next()
				}
			}),
			"rest": some(func() {
				if d := m.one(modelRunning); d != nil && !d.rests {
					d.rests, d.begun = true, true
					m.lanes.rest(d.real)
				}
			}),
			"rouse": some(func() {
				if d := m.one(modelRunning); d != nil && d.rests && d.roused == 0 {
					m.clock++
					d.roused = m.clock
					m.lanes.rouse(d.real)
				}
			}),
			"forget": some(func() {
				if d := m.one(modelDropped); d != nil {
					d.state = modelGone
					m.lanes.forget(d.real)
				}
			}),
			"pause": step(func() {
				m.paused, m.allowed = !m.paused, 0
				m.lanes.paused, m.lanes.allowed = m.paused, 0
			}),
			"allow": step(func() {
				if m.paused {
					m.allowed = rapid.IntRange(0, 3).Draw(m.t, "allowed")
					m.lanes.allowed = m.allowed
				}
			}),
			"end": some(func() {
				if d := m.one(modelWaiting); d != nil {
					m.ended[d.real] = true
				}
			}),
			"sweep": step(func() {
				m.lanes.drop(func(d *delivery) bool { return m.ended[d] })
				m.check()
				for _, d := range m.all {
					if d.state == modelWaiting && m.ended[d.real] {
						m.t.Fatalf("%v is ended, and was not dropped", d.lane)
					}
				}
			}),
			"stop": step(func() {
				// Rarely: a stopped source stays so.
				if rapid.IntRange(0, 9).Draw(m.t, "really") > 0 {
					return
				}
				s := m.source()
				for _, d := range m.all {
					// The router had not taken it yet.
					if d.state == modelRunning && !d.begun && d.real.sub == s && !s.stopped && rapid.Bool().Draw(m.t, "recall") {
						d.state = modelWaiting
						m.lanes.recall(d.real)
					}
				}
				m.lanes.stop(&s.source)
			}),
			"abandon": step(func() {
				s := m.source()
				if !s.stopped {
					return
				}
				for _, d := range m.all {
					m.ended[d.real] = m.ended[d.real] || d.real.sub == s
				}
				m.lanes.drop(func(d *delivery) bool { return d.sub == s })
			}),
		})
	})
}

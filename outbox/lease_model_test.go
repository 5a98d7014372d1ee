package outbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// The model is the lease of one bucket, two relays, and the way of a key's rows from the table to the broker, in small steps:
// a step is a statement of the database, a row that reaches the broker, or a decision of a relay. What a relay decides by is
// the real tenancy. The explorer visits every state that any order of the steps can reach, while the clocks go on tick by tick.
//
// A relay can die and be started again, be stopped in any place and go on (SIGSTOP), and its clock can lose time against the
// database's, within a lease less than the PublishTimeout. Its machine can also be suspended: then its clock stops too, and it
// cannot know that its lease has run out. What must hold whatever happens:
//
//   - The first publications are in the order of the rows, and no row goes that was not published or given up.
//   - From every state all rows can still be published: nobody waits for ever.
//
// And of a relay whose clock has not stopped:
//
//   - It begins a publish only while its lease is in force, and with rows that are all still there. So after a takeover
//     nothing is published again that the new owner was done with.
//   - What it publishes without being stopped reaches the broker while the lease is in force: two never publish at once.
const (
	leaseTicks   = 4 // RelayConfig.LeaseTTL
	publishTicks = 2 // RelayConfig.PublishTimeout
	modelRows    = 3 // 1 and up
	pageRows     = 2
)

// The key's bucket is the last one, which is given back first. Each relay has another one for itself, of which the model knows
// nothing: with that, it has one above its share when it is told of so many relays that each is to have one.
const (
	keyBucket   = Buckets - 1
	ownBucket   = 0
	manyRelays  = Buckets
	aloneRelays = 1
)

// leaseVariant is what the protocol is without.
type leaseVariant struct {
	noFence          bool // a publish begins without a look at the time
	noPublishTimeout bool // the fence leaves no time for the publish itself
	fromTheAnswer    bool // the lease is counted from the database's answer on
	anyLease         bool // a page may be published under a later lease of its bucket
	sameEpoch        bool // taking a bucket does not raise its epoch
	givesBackInUse   bool // a bucket is given back although a page has it
	deletesAnything  bool // the database deletes rows for one that has lost the lease
	buriesAnything   bool // and gives up rows for it
	deletesFirst     bool // rows are deleted before they are published
}

// A relay has two goroutines: one keeps the lease, the other one publishes.
const (
	leaseIdle      int8 = iota
	leaseTold           // the answer to its Lease is on its way
	leaseReleasing      // the bucket is being given back

	drainIdle  int8 = iota - 3
	drainReady      // it has a page
	drainPublishing
	drainDeleting
	drainBurying
)

type modelRelay struct {
	alive, stopped, suspended, late bool // late: it was stopped, or its clock lost time, in the publish or before it under the same lease

	lease     int8
	asked     int8 // ticks since it asked, by its own clock
	told      bool // it has the bucket
	toldEpoch int8
	many      bool // there are others
	behind    int8 // ticks that its clock has lost since it asked

	held, leave bool // what tenancy knows
	epoch       int8
	left        int8 // ticks that the lease has, by its own clock
	lost        int8 // ticks that its clock has lost since it asked for that

	drain       int8
	grant       bool // has the bucket
	grantEpoch  int8
	first, last int8 // rows of the page
	sent        int8 // of these, reached the broker
	took        int8 // ticks of the publish
}

// leaseWorld is one state. It is comparable, and so its own key.
type leaseWorld struct {
	rows, gone  [modelRows + 1]bool // there; given up
	published   int8                // 1 to this were, or were given up
	owner       int8                // of the bucket; -1: nobody
	epoch, left int8
	relays      [2]modelRelay

	deaths, stops, suspensions, slow, refusals int8 // that may still happen
}

type leaseExplorer struct {
	leaseVariant
	index  map[leaseWorld]int32
	states []leaseWorld
	before [][]int32 // the states that lead to each
	wrong  string
	copies int // rows that were published again
}

// exploreLeases visits everything that can be reached from start, or stops at the first violation.
func exploreLeases(v leaseVariant, start leaseWorld) *leaseExplorer {
	for n := 1; n <= modelRows; n++ {
		start.rows[n] = true
	}
	start.owner = -1
	for p := range start.relays {
		start.relays[p] = modelRelay{alive: true}
	}
	e := &leaseExplorer{leaseVariant: v, index: map[leaseWorld]int32{}}
	e.add(start, -1)
	for i := 0; i < len(e.states) && e.wrong == ""; i++ {
		e.steps(e.states[i], func(next leaseWorld) { e.add(next, int32(i)) })
	}
	if e.wrong == "" {
		e.checkProgress()
	}
	return e
}

func (e *leaseExplorer) add(w leaseWorld, from int32) {
	w.normalise()
	i, known := e.index[w]
	if !known {
		i = int32(len(e.states))
		e.index[w] = i
		e.states = append(e.states, w)
		e.before = append(e.before, nil)
	}
	if from >= 0 {
		e.before[i] = append(e.before[i], from)
	}
}

// normalise makes states equal that differ in nothing that matters: epochs are only compared, and the relays are alike.
func (w *leaseWorld) normalise() {
	epochs := []*int8{&w.epoch}
	for p := range w.relays {
		r := &w.relays[p]
		epochs = append(epochs, &r.toldEpoch, &r.epoch, &r.grantEpoch)
	}
	var seen []int8
	for _, e := range epochs {
		if !slices.Contains(seen, *e) {
			seen = append(seen, *e)
		}
	}
	slices.Sort(seen)
	for _, e := range epochs {
		*e = int8(slices.Index(seen, *e))
	}
	if w.relays[0].code() > w.relays[1].code() {
		w.relays[0], w.relays[1] = w.relays[1], w.relays[0]
		if w.owner >= 0 {
			w.owner = 1 - w.owner
		}
	}
}

// code orders relays.
func (r *modelRelay) code() (c uint64) {
	for _, b := range [...]bool{r.alive, r.stopped, r.suspended, r.late, r.told, r.many, r.held, r.leave, r.grant} {
		c <<= 1
		if b {
			c |= 1
		}
	}
	for _, n := range [...]int8{r.lease, r.asked, r.toldEpoch, r.behind, r.epoch, r.left, r.lost, r.drain, r.grantEpoch, r.first, r.last, r.sent, r.took} {
		c = c<<3 | uint64(n)
	}
	return c
}

func (e *leaseExplorer) violation(w leaseWorld, what string, args ...any) {
	if e.wrong == "" {
		e.wrong = fmt.Sprintf(what, args...) + fmt.Sprintf(" in %+v", w)
	}
}

// checkProgress goes back from the states in which no row is left: every other one must be on a way there.
func (e *leaseExplorer) checkProgress() {
	reaches := make([]bool, len(e.states))
	var todo []int32
	for i, w := range e.states {
		if w.rows == [modelRows + 1]bool{} {
			reaches[i] = true
			todo = append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		last := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, i := range e.before[last] {
			if !reaches[i] {
				reaches[i] = true
				todo = append(todo, i)
			}
		}
	}
	if i := slices.Index(reaches, false); i >= 0 {
		e.violation(e.states[i], "the rows are never published")
	}
}

// modelNow is what a relay's clock shows in every step: the model has differences of times only.
var modelNow = time.Unix(1e9, 0)

func ticks(n int8) time.Duration { return time.Duration(n) * time.Second }

// keyRow is what tenancy sees of a page.
var keyRow = []Row{{Bucket: keyBucket}}

// tenancy is the real thing in the state of r.
func (r *modelRelay) tenancy() *tenancy {
	t := &tenancy{until: modelNow.Add(ticks(r.left)), relays: aloneRelays}
	t.held[ownBucket], t.leases[ownBucket] = true, Lease{Bucket: ownBucket}
	t.held[keyBucket], t.leases[keyBucket] = r.held, Lease{Bucket: keyBucket, Epoch: int64(r.epoch)}
	t.leave[keyBucket] = r.leave
	if r.grant {
		t.inUse[keyBucket], t.inUse[ownBucket] = 1, 1 // the page has rows of both
	}
	return t
}

// know sets the state of r to that of t.
func (r *modelRelay) know(t *tenancy) {
	r.held, r.leave, r.epoch = t.held[keyBucket], false, 0
	if r.held {
		r.leave, r.epoch = t.leave[keyBucket], int8(t.leases[keyBucket].Epoch)
	} else {
		r.left, r.lost = 0, 0
	}
}

// page is the grant of the page.
func (r *modelRelay) page() *grant {
	g := &grant{}
	g.has[keyBucket], g.leases[keyBucket] = r.grant, Lease{Bucket: keyBucket, Epoch: int64(r.grantEpoch)}
	return g
}

func (r *modelRelay) endPage() {
	r.drain, r.grant, r.grantEpoch = drainIdle, false, 0
	r.first, r.last, r.sent, r.took, r.late = 0, 0, 0, 0, false
}

func (r *modelRelay) rowsLeft() bool { return r.sent <= r.last-r.first }

// holds is the condition of Delete and Bury for the page of p.
func (w *leaseWorld) holds(p int) bool {
	return int(w.owner) == p && w.epoch == w.relays[p].grantEpoch
}

func (w *leaseWorld) inForce(p int) bool { return w.left > 0 && w.holds(p) }

// steps calls step with every successor of w.
func (e *leaseExplorer) steps(w leaseWorld, step func(leaseWorld)) {
	for p := range w.relays {
		if r := &w.relays[p]; !r.stopped {
			e.leaseStep(w, p, step)
			e.drainStep(w, p, step)
		}
		e.statementStep(w, p, step)
		e.fateStep(w, p, step)
	}
	e.tick(w, step)
}

// fateStep is what happens to a relay.
func (e *leaseExplorer) fateStep(w leaseWorld, p int, step func(leaseWorld)) {
	if w.relays[p].stopped {
		next := w
		next.relays[p].stopped, next.relays[p].suspended = false, false
		step(next)
		return
	}
	if w.deaths > 0 {
		next := w
		next.deaths--
		next.relays[p] = modelRelay{alive: true}
		if w.owner == int8(p) {
			next.owner = -1 // the one that is started is another owner; the lease runs on
		}
		step(next)
	}
	stop := func(next leaseWorld, suspended bool) {
		r := &next.relays[p]
		r.stopped, r.suspended = true, suspended
		r.late = r.drain == drainPublishing
		step(next)
	}
	if w.stops > 0 {
		next := w
		next.stops--
		stop(next, false)
	}
	if w.suspensions > 0 {
		next := w
		next.suspensions--
		stop(next, true)
	}
}

// tick lets all clocks go on, but for a relay's that is suspended or loses the tick.
func (e *leaseExplorer) tick(w leaseWorld, step func(leaseWorld)) {
	for p := range w.relays {
		if e.busy(w, p) {
			return
		}
	}
	w.left = max(w.left-1, 0)
	for _, first := range e.clock(w, 0) {
		for _, next := range e.clock(first, 1) {
			step(next)
		}
	}
}

// busy tells that p does something before its clock goes on. Only one that is stopped, or waits for an answer, does not.
func (e *leaseExplorer) busy(w leaseWorld, p int) bool {
	r := &w.relays[p]
	switch {
	case r.stopped:
		return false
	case r.lease == leaseReleasing, r.lease == leaseTold && r.asked > 0:
		return true
	case r.drain == drainPublishing && r.rowsLeft():
		return r.took == publishTicks-1 // it ends within its time, well or not
	case r.drain != drainIdle:
		return true
	}
	steps := 0
	e.leaseStep(w, p, func(leaseWorld) { steps++ })
	e.drainStep(w, p, func(leaseWorld) { steps++ })
	return steps > 0 && r.lease == leaseIdle
}

// clock returns what can come of a tick for p.
func (e *leaseExplorer) clock(w leaseWorld, p int) []leaseWorld {
	loses := w
	r := &loses.relays[p]
	if r.held {
		r.lost = min(r.lost+1, publishTicks)
	}
	if r.lease == leaseTold {
		r.behind = min(r.behind+1, publishTicks)
	}
	r.late = r.late || r.drain == drainPublishing
	if r.suspended {
		return []leaseWorld{loses}
	}
	goesOn := w
	r = &goesOn.relays[p]
	r.left = max(r.left-1, 0)
	if r.lease == leaseTold {
		r.asked = min(r.asked+1, leaseTicks)
	}
	if r.drain == drainPublishing && !r.late {
		r.took = min(r.took+1, publishTicks)
	}
	if w.slow == 0 || loses == w {
		return []leaseWorld{goesOn}
	}
	loses.slow--
	return []leaseWorld{goesOn, loses}
}

// leaseStep is a step of the goroutine that keeps the lease, see Relay.lease.
func (e *leaseExplorer) leaseStep(w leaseWorld, p int, step func(leaseWorld)) {
	switch r := &w.relays[p]; r.lease {
	case leaseIdle:
		if r.held && r.left > 1 && !r.leave {
			return // it has time
		}
		e.askLease(w, p, step)
	case leaseTold:
		t := r.tenancy()
		tenure := Tenure{Leases: []Lease{{Bucket: ownBucket}}, Relays: aloneRelays}
		if r.told {
			tenure.Leases = append(tenure.Leases, Lease{Bucket: keyBucket, Epoch: int64(r.toldEpoch)})
		}
		if r.many {
			tenure.Relays = manyRelays
		}
		left := leaseTicks - r.asked
		if e.fromTheAnswer {
			left = leaseTicks
		}
		t.renewed(tenure, modelNow.Add(ticks(left)))
		r.left, r.lost = left, r.behind
		r.lease, r.asked, r.told, r.toldEpoch, r.many, r.behind = leaseIdle, 0, false, 0, false, 0
		r.know(t)
		if e.givesBackInUse {
			t.inUse = [Buckets]int{}
		}
		if leases := t.leaving(); slices.ContainsFunc(leases, func(l Lease) bool { return l.Bucket == keyBucket }) {
			r.lease, r.toldEpoch = leaseReleasing, r.epoch
		}
		r.know(t)
		step(w)
	}
}

// askLease is Source.Lease. That it is done when the relay asks is the worst case: the lease is the shortest then.
func (e *leaseExplorer) askLease(w leaseWorld, p int, step func(leaseWorld)) {
	r := &w.relays[p]
	switch {
	case int(w.owner) == p && w.left > 0:
		w.left = leaseTicks
	case w.left == 0:
		if !e.sameEpoch {
			w.epoch++
		}
		w.owner, w.left = int8(p), leaseTicks
	case !r.held:
		return // an answer that changes nothing
	}
	r.lease = leaseTold
	if int(w.owner) != p {
		step(w)
		return
	}
	// Whether the database takes the other one for alive depends on when that one asked.
	r.told, r.toldEpoch = true, w.epoch
	step(w)
	r.many = true
	step(w)
}

// drainStep is a step of the goroutine that publishes, see flow and drain.
func (e *leaseExplorer) drainStep(w leaseWorld, p int, step func(leaseWorld)) {
	r := &w.relays[p]
	switch r.drain {
	case drainIdle:
		g := r.tenancy().grant(modelNow.Add(ticks(publishTicks)))
		if g == nil || !g.has[keyBucket] {
			return
		}
		r.grant, r.grantEpoch = true, int8(g.leases[keyBucket].Epoch)
		e.fetch(w, p, step)
	case drainReady:
		if !e.mayPublish(r) {
			r.endPage()
			step(w)
			return
		}
		e.checkBegin(w, p)
		r.drain, r.late = drainPublishing, r.lost > 0
		step(w)
	case drainPublishing:
		if !r.rowsLeft() {
			if r.drain = drainDeleting; e.deletesFirst {
				r.endPage()
			}
			step(w)
			return
		}
		failed := w
		failed.relays[p].endPage()
		step(failed)
		if w.refusals > 0 && r.sent == 0 {
			w.refusals--
			r.drain = drainBurying
			step(w)
		}
	}
}

// fetch is Source.Fetch.
func (e *leaseExplorer) fetch(w leaseWorld, p int, step func(leaseWorld)) {
	r := &w.relays[p]
	for n := int8(1); n <= modelRows; n++ {
		if w.rows[n] && (r.first == 0 || n-r.first < pageRows) {
			r.last = n
			if r.first == 0 {
				r.first = n
			}
		}
	}
	if r.first == 0 {
		return // nothing to do
	}
	if r.drain = drainReady; e.deletesFirst {
		r.drain = drainDeleting
	}
	step(w)
}

// mayPublish is drain.may.
func (e *leaseExplorer) mayPublish(r *modelRelay) bool {
	t, g, until := r.tenancy(), r.page(), modelNow.Add(ticks(publishTicks))
	switch {
	case e.noFence:
		until = modelNow.Add(-time.Hour)
	case e.noPublishTimeout:
		until = modelNow
	case e.anyLease:
		g.leases = t.leases
	}
	return t.covers(g, keyRow, until)
}

func (e *leaseExplorer) checkBegin(w leaseWorld, p int) {
	r := &w.relays[p]
	if r.lost >= publishTicks {
		return // its clock has stopped
	}
	if !w.inForce(p) {
		e.violation(w, "relay %d begins to publish and its lease is not in force", p)
	}
	for n := r.first; n <= r.last; n++ {
		if !w.rows[n] && !e.deletesFirst {
			e.violation(w, "relay %d begins to publish row %d, which is gone", p, n)
		}
	}
}

// statementStep is a step of what a relay has begun, which goes on when it is stopped: statements, and rows on their way to the
// broker.
func (e *leaseExplorer) statementStep(w leaseWorld, p int, step func(leaseWorld)) {
	if next := w; w.relays[p].lease == leaseReleasing {
		r := &next.relays[p]
		if int(w.owner) == p && w.epoch == r.toldEpoch {
			next.owner, next.left = -1, 0
		}
		r.lease, r.toldEpoch = leaseIdle, 0
		step(next)
	}
	r := &w.relays[p]
	switch r.drain {
	case drainPublishing:
		if r.rowsLeft() {
			e.arrive(w, p, step)
		}
	case drainDeleting:
		if w.holds(p) || e.deletesAnything {
			for n := r.first; n <= r.last; n++ {
				if w.rows[n] && n > w.published {
					e.violation(w, "row %d is deleted and was not published", n)
				}
				w.rows[n] = false
			}
		} else {
			r.lose()
		}
		if e.deletesFirst {
			r.drain = drainReady
		} else {
			r.endPage()
		}
		step(w)
	case drainBurying:
		if !w.holds(p) && !e.buriesAnything {
			r.lose()
		} else if w.rows[r.first] {
			w.rows[r.first], w.gone[r.first] = false, true
			w.skipGone()
		}
		r.endPage()
		step(w)
	}
}

// lose is the database's answer that the lease of the page is lost.
func (r *modelRelay) lose() {
	t := r.tenancy()
	t.lost([]Lease{{Bucket: keyBucket, Epoch: int64(r.grantEpoch)}})
	r.know(t)
}

// arrive brings the next row of p's page to the broker.
func (e *leaseExplorer) arrive(w leaseWorld, p int, step func(leaseWorld)) {
	r := &w.relays[p]
	if !r.late && !w.inForce(p) {
		e.violation(w, "relay %d publishes and its lease is not in force any more", p)
	}
	n := r.first + r.sent
	r.sent++
	switch {
	case n <= w.published || w.gone[n]:
		e.copies++
	case n > w.published+1:
		e.violation(w, "row %d is published and row %d was not", n, w.published+1)
	default:
		w.published = n
		w.skipGone()
	}
	step(w)
}

// skipGone counts rows that were given up.
func (w *leaseWorld) skipGone() {
	for w.published < modelRows && w.gone[w.published+1] {
		w.published++
	}
}

func TestModelLeasesKeepOrderAndLoseNothing(t *testing.T) {
	for _, tt := range []struct {
		name  string
		start leaseWorld
		large bool
	}{
		{"nothing happens", leaseWorld{}, false},
		{"a stop", leaseWorld{stops: 1}, false},
		{"a stop and a death", leaseWorld{stops: 1, deaths: 1}, true},
		{"a stop and a refusal", leaseWorld{stops: 1, refusals: 1}, true},
		{"a stop and a slow clock", leaseWorld{stops: 1, slow: publishTicks - 1}, true},
		{"a suspension and a refusal", leaseWorld{suspensions: 1, refusals: 1}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.large && (raceEnabled || testing.Short()) {
				t.Skip("some 100,000 states, in one goroutine: without -race and -short only")
			}
			e := exploreLeases(leaseVariant{}, tt.start)
			if e.wrong != "" {
				t.Error(e.wrong)
			}
			if e.copies == 0 && tt.start != (leaseWorld{}) {
				t.Error("no row is ever published again: the model does not do what it should")
			}
			t.Logf("%d states", len(e.states))
		})
	}
}

// Each guard is there for a reason: without it the explorer finds what goes wrong.
func TestModelLeasesWithoutAGuardFail(t *testing.T) {
	for _, tt := range []struct {
		name string
		leaseVariant
		want string
	}{
		{"no fence", leaseVariant{noFence: true}, "begins to publish and its lease is not in force"},
		{"a fence that leaves no time to publish", leaseVariant{noPublishTimeout: true}, "its lease is not in force"},
		{"the lease counted from the answer on", leaseVariant{fromTheAnswer: true}, "its lease is not in force"},
		{"a page published under a later lease", leaseVariant{anyLease: true}, "begins to publish and its lease is not in force"},
		{"a lease taken without another epoch", leaseVariant{sameEpoch: true}, "which is gone"},
		{"a bucket given back in use", leaseVariant{givesBackInUse: true}, "publishes and its lease is not in force any more"},
		{"rows deleted by one that has lost the lease", leaseVariant{deletesAnything: true}, "which is gone"},
		{"rows given up by one that has lost the lease", leaseVariant{buriesAnything: true}, "which is gone"},
		{"rows deleted before they are published", leaseVariant{deletesFirst: true}, "is deleted and was not published"},
	} {
		e := exploreLeases(tt.leaseVariant, leaseWorld{stops: 1, refusals: 1})
		if !strings.Contains(e.wrong, tt.want) {
			t.Errorf("%s: violation %q after %d states; want one with %q", tt.name, e.wrong, len(e.states), tt.want)
		}
	}
}

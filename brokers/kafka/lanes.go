package kafka

import "github.com/twmb/franz-go/pkg/kgo"

// lanes bounds how much of each key of a partition is un-acked. It decides the order in which records go out: that of their
// offsets, but for those that wait for their key.
type lanes struct {
	budget  int
	byKey   map[uint64]*lane
	ready   fifo[entry] // may go, in this order; counted in their lanes already
	waiting int         // records in all lanes that may not go yet
	spare   []*lane
}

// lane is one key. It exists while there is something to remember.
type lane struct {
	key     uint64
	held    int // may go, or gone and not acked
	back    int // of these, given back and not handed over again
	old     int // deliveries of an earlier assignment that are not done
	waiting fifo[entry]
}

type entry struct {
	record *kgo.Record
	lane   *lane
}

func newLanes(budget int) lanes {
	return lanes{budget: budget, byKey: make(map[uint64]*lane)}
}

func (l *lanes) open(ln *lane) bool {
	return ln.old == 0 && ln.back == 0 && (ln.held < l.budget || ln.key == keyless)
}

func (l *lanes) lane(key uint64) *lane {
	ln := l.byKey[key]
	if ln == nil {
		if n := len(l.spare); n > 0 {
			ln, l.spare = l.spare[n-1], l.spare[:n-1]
		} else {
			ln = new(lane)
		}
		ln.key = key
		l.byKey[key] = ln
	}
	return ln
}

// add takes the next record of the partition.
func (l *lanes) add(r *kgo.Record, key uint64) {
	ln := l.lane(key)
	if ln.waiting.len() > 0 || !l.open(ln) {
		// It can wait for long, and would keep all that was fetched with it in memory.
		ln.waiting.push(entry{own(r), ln})
		l.waiting++
		return
	}
	ln.held++
	l.ready.push(entry{r, ln})
}

// next returns the next record that may go.
func (l *lanes) next() (entry, bool) {
	if l.ready.len() == 0 {
		return entry{}, false
	}
	return l.ready.pop(), true
}

// acked tells that a record of ln is done.
func (l *lanes) acked(ln *lane) {
	ln.held--
	l.move(ln)
}

// gaveBack tells that a record of ln will go again; goesAgain that it does.
func (l *lanes) gaveBack(ln *lane) { ln.back++ }

func (l *lanes) goesAgain(ln *lane) {
	ln.back--
	l.move(ln)
}

// addOld tells of a delivery of key from an earlier assignment; oldEnded that it is done.
func (l *lanes) addOld(key uint64) { l.lane(key).old++ }

func (l *lanes) oldEnded(key uint64) {
	ln := l.byKey[key]
	ln.old--
	l.move(ln)
}

// move makes ready what may go now.
func (l *lanes) move(ln *lane) {
	for ln.waiting.len() > 0 && l.open(ln) {
		ln.held++
		l.waiting--
		l.ready.push(ln.waiting.pop())
	}
	if ln.held == 0 && ln.old == 0 && ln.waiting.len() == 0 {
		delete(l.byKey, ln.key)
		if len(l.spare) < maxSpare {
			l.spare = append(l.spare, ln)
		}
	}
}

// blocked returns how many keys have records that may not go yet.
func (l *lanes) blocked() int {
	n := 0
	for _, ln := range l.byKey {
		if ln.waiting.len() > 0 {
			n++
		}
	}
	return n
}

const maxSpare = 256

// hottest returns how much of one key is held or waits, at most.
func (l *lanes) hottest() int {
	most := 0
	for _, ln := range l.byKey {
		most = max(most, ln.held+ln.waiting.len())
	}
	return most
}

// fifo is a queue that does not keep what was taken out.
type fifo[T any] struct {
	items []T
	first int
}

func (q *fifo[T]) len() int { return len(q.items) - q.first }

func (q *fifo[T]) push(v T) {
	if q.first > 32 && q.first > len(q.items)/2 {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

func (q *fifo[T]) pop() T {
	var zero T
	v := q.items[q.first]
	q.items[q.first] = zero
	q.first++
	if q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return v
}

func (q *fifo[T]) front() T { return q.items[q.first] }

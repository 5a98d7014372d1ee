package ordering

// fifo is a queue of deliveries, linked through their next.
type fifo struct {
	first, last *delivery
	n           int
}

func (q *fifo) push(d *delivery) {
	if q.last == nil {
		q.first = d
	} else {
		q.last.next = d
	}
	q.last = d
	q.n++
}

func (q *fifo) pop() *delivery {
	d := q.first
	if d == nil {
		return nil
	}
	q.first = d.next
	if q.first == nil {
		q.last = nil
	}
	d.next = nil
	q.n--
	return d
}

// append puts all of tail, which must not be used any more, behind q.
func (q *fifo) append(tail fifo) {
	switch {
	case tail.n == 0:
		return
	case q.n == 0:
		*q = tail
		return
	}
	q.last.next = tail.first
	q.last = tail.last
	q.n += tail.n
}

// list is a list of running deliveries, oldest first, linked through their prev and next.
type list struct {
	first, last *delivery
	n           int
}

func (l *list) add(d *delivery) {
	d.prev, d.next = l.last, nil
	if l.last == nil {
		l.first = d
	} else {
		l.last.next = d
	}
	l.last = d
	l.n++
}

func (l *list) remove(d *delivery) {
	if d.prev == nil {
		l.first = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next == nil {
		l.last = d.prev
	} else {
		d.next.prev = d.prev
	}
	d.prev, d.next = nil, nil
	l.n--
}

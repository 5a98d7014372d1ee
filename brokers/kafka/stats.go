package kafka

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// PartitionStats is how one partition that a subscription owns stands at one moment.
type PartitionStats struct {
	Consumer  string
	Topic     string
	Partition int32

	// Committed is the committed offset, the next to be read after a restart; -1 if nothing was committed. End is the
	// offset after the partition's last record, as the last fetch told it; -1 before the first.
	Committed, End int64

	// Lag is how many offsets lie between the two: everything that is not committed, whatever is being done about it. Gaps of
	// compaction and transaction markers count. -1: not known.
	Lag int64

	// InFlight deliveries were handed over and are not settled. Returned ones were nacked or released and
	// will come again. Waiting records are read and wait for their key or the window.
	InFlight, Returned, Waiting int

	// HottestKey is how many records of one key are in flight, returned or waiting for it, at most.
	HottestKey int

	// Blocked is how many keys have records that wait for deliveries of their key to be settled, or to come again.
	Blocked int

	// Span is how many offsets lie between the committed one and the highest that was handed over.
	Span int64

	// OldestOffset is the lowest offset that is in flight or returned, and OldestSince when it was handed over for
	// the first time; -1 and the zero time if there is none.
	OldestOffset int64
	OldestSince  time.Time

	// NextReturn is when the next returned delivery comes again; the zero time if there is none.
	NextReturn time.Time

	// Former is how many deliveries of an earlier assignment of the partition are not done. Their keys wait.
	Former int

	// Paused says that the partition is not fetched, since enough of it is waiting.
	Paused bool
}

// Stats returns the state of all partitions that the broker's subscriptions own, sorted by consumer, topic and partition. The
// caller owns the slice.
func (b *Broker) Stats() []PartitionStats {
	var all []PartitionStats
	for _, m := range b.members() {
		all = append(all, m.stats()...)
	}
	slices.SortFunc(all, func(a, b PartitionStats) int {
		return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}

// members returns all subscriptions.
func (b *Broker) members() []*member {
	var all []*member
	for _, s := range b.subs.All() {
		s.mu.Lock()
		all = slices.AppendSeq(all, maps.Keys(s.members))
		s.mu.Unlock()
	}
	return all
}

func (m *member) stats() []PartitionStats {
	var all []PartitionStats
	for _, a := range m.find(nil) {
		answer := make(chan PartitionStats, 1)
		a.ask(answer)
		select {
		case s := <-answer:
			all = append(all, s)
		case <-a.frozen:
		}
	}
	return all
}

// ask makes run send its stats to answer, which has room for them.
func (a *assignment) ask(answer chan<- PartitionStats) {
	a.telling.Lock()
	a.asked = append(a.asked, answer)
	a.telling.Unlock()
	a.ring()
}

func (a *assignment) answer() {
	a.telling.Lock()
	asked := a.asked
	a.asked = nil
	a.telling.Unlock()
	for _, to := range asked {
		to <- a.stats()
	}
}

// stats is called in a turn.
func (a *assignment) stats() PartitionStats {
	queued := a.m.inQueue(a)
	a.mu.Lock()
	defer a.mu.Unlock()
	s := PartitionStats{
		Consumer:     a.m.consumer,
		Topic:        a.topic,
		Partition:    a.partition,
		Committed:    a.position,
		End:          a.high,
		Lag:          -1,
		InFlight:     a.held.n - queued,
		Returned:     len(a.back),
		Waiting:      a.stored + a.lanes.ready.len() + queued,
		HottestKey:   a.lanes.hottest(),
		Blocked:      a.lanes.blocked(),
		OldestOffset: -1,
		NextReturn:   a.backAt,
		Former:       len(a.old),
		Paused:       a.paused,
	}
	if a.next != nil {
		s.Waiting++
	}
	if len(a.back) == 0 {
		s.NextReturn = time.Time{}
	}
	back := a.back
	if a.again != nil {
		back = append(slices.Clip(back), a.again)
		s.Returned++
	}
	from := a.position
	if a.tracker != nil {
		s.Span = a.tracker.Span()
		if from < 0 { // nothing was committed: it began here
			from = a.tracker.Committed()
		}
	}
	if from >= 0 && a.high >= from {
		s.Lag = a.high - from
	}
	for h := a.held.first; h != nil; h = h.next {
		s.oldest(h)
	}
	for _, h := range back {
		s.oldest(h)
	}
	return s
}

func (s *PartitionStats) oldest(h *hold) {
	if s.OldestOffset < 0 || h.delivery.Offset < s.OldestOffset {
		s.OldestOffset, s.OldestSince = h.delivery.Offset, h.since
	}
}

package kafka

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

// lagInterval is how old the end of a partition can be that is not fetched since it is paused, or has nothing new.
const lagInterval = 10 * time.Second

var _ brokers.Lagger = (*Broker)(nil)

// Lag returns the sum of [PartitionStats].Lag over the partitions that this process owns for consumer and topic, which may be a regular
// expression as it was subscribed to. It is known if all of them are; nothing is owned before the group has been joined.
func (b *Broker) Lag(consumer, topic string) (messages int64, known bool) {
	for _, m := range b.members() {
		if m.consumer != consumer || m.topic != topic {
			continue
		}
		for _, s := range m.stats() {
			if s.Lag < 0 {
				return 0, false
			}
			messages += s.Lag
			known = true
		}
	}
	return messages, known
}

var _ brokers.Progresser = (*Broker)(nil)

// Progress is [Broker.Stats] in the form that all brokers share, of one subscription. topic may be a regular expression as it was
// subscribed to.
func (b *Broker) Progress(consumer, topic string) []brokers.Progress {
	var all []brokers.Progress
	for _, m := range b.members() {
		if m.consumer != consumer || m.topic != topic {
			continue
		}
		for _, s := range m.stats() {
			all = append(all, brokers.Progress{
				Topic: s.Topic, Partition: s.Partition, Lag: s.Lag,
				InFlight: s.InFlight, Returned: s.Returned, Waiting: s.Waiting, Blocked: s.Blocked,
				OldestSince: s.OldestSince, NextReturn: s.NextReturn, Paused: s.Paused,
			})
		}
	}
	slices.SortFunc(all, func(a, b brokers.Progress) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}

// lagLoop asks for the ends of the partitions: after an assignment, and from time to time, until stop is closed; and for topics that
// seem to be gone.
func (m *member) lagLoop(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	every := time.NewTicker(lagInterval)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-m.newParts:
		case topic := <-m.unknown:
			m.checkTopic(ctx, topic)
			continue
		case <-stop:
			return
		}
		m.lookUpEnds(ctx)
	}
}

func (m *member) lookUpEnds(ctx context.Context) {
	as := m.find(nil)
	topics := make(map[string]struct{})
	for _, a := range as {
		topics[a.topic] = struct{}{}
	}
	if len(topics) == 0 {
		return
	}
	names := make([]string, 0, len(topics))
	for t := range topics {
		names = append(names, t)
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.DialTimeout)
	defer cancel()
	admin := kadm.NewClient(m.client)
	list := admin.ListCommittedOffsets
	if m.config.ReadUncommitted {
		list = admin.ListEndOffsets
	}
	ends, err := list(ctx, names...)
	if err != nil {
		m.log.Debug("kafka: look up the ends of partitions", "error", err)
		return
	}
	for _, a := range as {
		if end, ok := ends.Lookup(a.topic, a.partition); ok && end.Err == nil {
			a.heardEnd(end.Offset)
		}
	}
}

// heard takes what a fetch tells of the partition.
func (a *assignment) heard(topicID [16]byte, p kgo.FetchPartition) {
	a.nameIncarnation(topicID)
	switch {
	case p.Err != nil:
	case !a.m.config.ReadUncommitted && p.LastStableOffset >= 0:
		a.heardEnd(p.LastStableOffset)
	default:
		a.heardEnd(p.HighWatermark)
	}
}

func (a *assignment) heardEnd(end int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.high = end
}

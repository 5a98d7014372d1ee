package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The causes, as context.Cause gives them, of the end of a delivery's context when its partition was taken away. Neither is a
// failure of the message.
var (
	ErrRevoked = errors.New("kafka: the group gave the partition to another member")
	ErrLost    = errors.New("kafka: the partition was lost: the member was expelled from its group, or the partition was truncated")
)

// assigned makes the assignments. franz-go calls it before it fetches anything of these partitions.
func (m *member) assigned(_ context.Context, _ *kgo.Client, ids map[string][]int32) {
	<-m.ready
	if len(ids) == 0 || m.refused {
		return
	}
	// There are none of these, unless the topic was made anew under us.
	m.giveUp(ids, 0, ErrLost, false)
	// A round of polling may have taken something after lost, and be late with it. The new assignment would begin there, and
	// a commit would hide the gap before it.
	m.awaitPoll()
	// A pause outlives the assignment that it was for (fault R2).
	m.client.ResumeFetchPartitions(ids)
	m.mu.Lock()
	defer m.mu.Unlock()
	for topic, partitions := range ids {
		for _, p := range partitions {
			id := partitionID{topic, p}
			a := newAssignment(m.ctx, m, id, m.broker.takeRunning(m.consumer, id))
			m.parts[id] = a
			go a.run()
		}
	}
}

// offsets reads what the last owner wrote of completed records beyond the committed one.
func (m *member) offsets(_ context.Context, _ *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	<-m.ready
	select {
	case m.newParts <- struct{}{}:
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 || p.Offset < 0 {
					continue
				}
				if a := m.parts[partitionID{t.Topic, p.Partition}]; a != nil {
					m.committed(a, p)
				}
			}
		}
	}
	return nil
}

func (m *member) committed(a *assignment, p kmsg.OffsetFetchResponseGroupTopicPartition) {
	text := ""
	if p.Metadata != nil {
		text = *p.Metadata
	}
	done, err := decodeSparse(text, p.Offset)
	if err != nil && text != "" {
		m.log.Debug("kafka: commit metadata that is not ours", "topic", a.topic, "partition", a.partition, "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.position = p.Offset
	a.skip = done
}

// revoked gives partitions up in peace. franz-go goes on with heartbeats, and we with polling, while it waits.
func (m *member) revoked(_ context.Context, _ *kgo.Client, ids map[string][]int32) {
	wait, cause := m.config.RevokeWait, ErrRevoked
	if m.ending.Load() {
		wait, cause = 0, context.Cause(m.ctx)
	}
	m.giveUp(ids, wait, cause, true)
}

// lost gives partitions up that may have another owner already.
func (m *member) lost(_ context.Context, _ *kgo.Client, ids map[string][]int32) {
	m.giveUp(ids, 0, ErrLost, false)
}

// giveUp ends assignments: nothing more is handed over, handlers get a while to finish, and what is acked by then is
// committed, if commit says so.
func (m *member) giveUp(ids map[string][]int32, wait time.Duration, cause error, commit bool) {
	<-m.ready
	if len(ids) == 0 {
		return // which franz-go says at the end of each session; to find it would be everything
	}
	as := m.find(ids)
	if len(as) == 0 {
		return
	}
	for _, a := range as {
		a.stop()
	}
	if wait > 0 {
		m.awaitQuiet(as, wait)
	}
	// Fetched before the partitions were taken away, and not distributed yet: it must not reach the next assignment of a
	// partition, where it would hide the gap before it.
	m.awaitPoll()
	if !commit {
		// A commit that is under way holds partitions that are not ours any more.
		if abort := m.abortCommit.Load(); abort != nil {
			(*abort)()
		}
	}
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	as = m.take(ids) // not as before if one was restarted meanwhile
	for _, a := range as {
		a.stop()
		m.broker.keepRunning(m.consumer, a.partitionID, a.freeze(cause))
	}
	if commit {
		m.commitLast(as)
	}
}

// awaitQuiet waits until the handlers of as have finished, or for the limit.
func (m *member) awaitQuiet(as []*assignment, limit time.Duration) {
	late := time.NewTimer(limit)
	defer late.Stop()
	for _, a := range as {
		select {
		case <-a.quiet:
		case <-a.frozen:
		case <-m.ctx.Done(): // the subscription ends: nobody waits any longer
			return
		case <-late.C:
			return
		}
	}
}

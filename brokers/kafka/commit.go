package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace-go/headrace/ordering"
)

// commitPause is the least pause between two commits.
const commitPause = 10 * time.Millisecond

// commitLoop commits from time to time, and earlier when a span is used up, until stop is closed.
func (m *member) commitLoop(stop <-chan struct{}) {
	every := time.NewTicker(m.config.CommitInterval)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-m.soon:
		case <-stop:
			return
		}
		m.commitAll()
		pause := time.NewTimer(commitPause)
		select {
		case <-pause.C:
		case <-stop:
			pause.Stop()
			return
		}
	}
}

// commitSoon does not wait for the interval.
func (m *member) commitSoon() {
	select {
	case m.soon <- struct{}{}:
	default:
	}
}

func (m *member) commitAll() {
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m.abortCommit.Store(&cancel)
	defer m.abortCommit.Store(nil)
	m.commit(ctx, m.find(nil))
}

// pending is one partition of a commit.
type pending struct {
	a        *assignment
	position ordering.Position
	metadata string
	err      error
}

var errNoAnswer = errors.New("the broker did not answer")

// commitLast is the commit of assignments that end. What is not stored now runs again elsewhere, so that it is tried
// again for as long as it may still succeed: with KIP-848 the member's epoch can change under a commit. commitMu is held.
func (m *member) commitLast(as []*assignment) {
	ctx := context.WithoutCancel(m.ctx)
	if leaving := m.leaving.Load(); leaving != nil {
		ctx = *leaving
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.CommitTimeout)
	defer cancel()
	for m.commit(ctx, as) && ctx.Err() == nil {
		again := time.NewTimer(5 * commitPause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
	}
}

// commit commits whatever of as there is to commit, and waits for the answer. It reports whether trying again can help. commitMu
// is held.
func (m *member) commit(ctx context.Context, as []*assignment) (again bool) {
	limit := maxMetadata
	if m.noMetadata {
		limit = 0
	}
	offsets := make(map[string]map[int32]kgo.EpochOffset)
	parts := make(map[partitionID]*pending)
	for _, a := range as {
		p, metadata, ok := a.beginCommit(limit)
		if !ok {
			continue
		}
		if offsets[a.topic] == nil {
			offsets[a.topic] = make(map[int32]kgo.EpochOffset)
		}
		offsets[a.topic][a.partition] = kgo.EpochOffset{Epoch: p.Epoch, Offset: p.Offset}
		parts[a.partitionID] = &pending{a: a, position: p, metadata: metadata, err: errNoAnswer}
	}
	if len(parts) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.CommitTimeout)
	defer cancel()
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			t := &req.Topics[i]
			for j := range t.Partitions {
				p := &t.Partitions[j]
				p.Metadata = nil
				if part := parts[partitionID{t.Topic, p.Partition}]; part != nil {
					p.Metadata = &part.metadata
				}
			}
		}
		return nil
	})
	m.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			for _, p := range parts {
				p.err = err
			}
			return
		}
		names := make(map[[16]byte]string)
		for _, t := range req.Topics {
			names[t.TopicID] = t.Topic
		}
		for _, t := range resp.Topics {
			if t.Topic == "" { // from version 10 on the answer has the id only
				t.Topic = names[t.TopicID]
			}
			for _, p := range t.Partitions {
				if part := parts[partitionID{t.Topic, p.Partition}]; part != nil {
					part.err = kerr.ErrorForCode(p.ErrorCode)
				}
			}
		}
	})
	for _, p := range parts {
		p.a.endCommit(p.position, p.err == nil)
		m.commitFailed(p)
		again = again || errors.Is(p.err, kerr.StaleMemberEpoch) || errors.Is(p.err, kerr.RebalanceInProgress) ||
			errors.Is(p.err, kerr.OffsetMetadataTooLarge)
	}
	return again
}

// commitFailed says so. The records may come again; the next commit has them all.
func (m *member) commitFailed(p *pending) {
	level := m.log.Warn
	switch {
	case p.err == nil:
		return
	case errors.Is(p.err, kerr.OffsetMetadataTooLarge):
		m.noMetadata = true
		m.log.Warn("kafka: the cluster takes less commit metadata than 4096 bytes (offset.metadata.max.bytes): completed records beyond the first that is not will run again after a restart")
		m.commitSoon()
		return
	case errors.Is(p.err, kerr.RebalanceInProgress), errors.Is(p.err, kerr.IllegalGeneration),
		errors.Is(p.err, kerr.UnknownMemberID), errors.Is(p.err, kerr.StaleMemberEpoch), errors.Is(p.err, context.Canceled):
		level = m.log.Debug
	}
	level("kafka: commit", "topic", p.a.topic, "partition", p.a.partition, "offset", p.position.Offset, "error", p.err)
}

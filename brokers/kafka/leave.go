package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// besideTimeout bounds each word that is said to the group while a rebalance goes on.
const besideTimeout = time.Second

// leave leaves the group and closes the client. In peace, that gives up the partitions as a revocation does, with a commit; but
// franz-go waits for a rebalance that is under way, which can take as long as the slowest member. It takes at most CloseTimeout and
// two times besideTimeout.
func (m *member) leave() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), m.config.CloseTimeout)
	defer cancel()
	m.leaving.Store(&ctx)
	err := m.client.LeaveGroupContext(ctx)
	if ctx.Err() != nil {
		m.leaveBeside()
		m.abandon()
	} else if err != nil && !errors.Is(err, kerr.UnknownMemberID) { // which has left before us
		m.log.Warn("kafka: the group was not left; its partitions are free when the session has timed out", "error", err)
	}
	m.client.Close()
	m.abandon()
}

// leaveBeside commits what is acked and leaves the group while a rebalance goes on. A group takes the commits of its members until
// the next generation begins.
func (m *member) leaveBeside() {
	id, generation := m.client.GroupMetadata()
	if id == "" {
		return
	}
	if abort := m.abortCommit.Load(); abort != nil {
		(*abort)() // it waits for the rebalance, too
	}
	m.commitMu.Lock()
	defer m.commitMu.Unlock()
	as := m.take(nil)
	for _, a := range as {
		a.stop()
		a.freeze(context.Cause(m.ctx))
	}
	var instance *string
	if v := m.client.OptValues(kgo.InstanceID); len(v) == 2 && v[1] == true {
		name, _ := v[0].(string)
		instance = &name
	}
	if err := m.commitBeside(as, id, instance, generation); err != nil {
		m.log.Warn("kafka: what was acked last is not committed and will come again", "error", err)
	}
	if instance != nil {
		return // it may come back
	}
	ctx, cancel := context.WithTimeout(context.Background(), besideTimeout)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = m.consumer, id
	one := kmsg.NewLeaveGroupRequestMember()
	one.MemberID = id
	req.Members = append(req.Members, one)
	if _, err := req.RequestWith(ctx, m.client); err != nil {
		m.log.Warn("kafka: the group was not left; its partitions are free when the session has timed out", "error", err)
	}
}

func (m *member) commitBeside(as []*assignment, id string, instance *string, generation int32) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.InstanceID, req.Generation = m.consumer, id, instance, generation
	limit := maxMetadata
	if m.noMetadata {
		limit = 0
	}
	byTopic := make(map[string]*kmsg.OffsetCommitRequestTopic)
	for _, a := range as {
		position, metadata, ok := a.beginCommit(limit)
		if !ok {
			continue
		}
		t := byTopic[a.topic]
		if t == nil {
			t = new(kmsg.NewOffsetCommitRequestTopic())
			t.Topic, t.TopicID = a.topic, a.topicID // from version 10 on the request has the id only
			byTopic[a.topic] = t
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch, p.Metadata = a.partition, position.Offset, position.Epoch, &metadata
		t.Partitions = append(t.Partitions, p)
	}
	if len(byTopic) == 0 {
		return nil
	}
	for _, t := range byTopic {
		req.Topics = append(req.Topics, *t)
	}
	ctx, cancel := context.WithTimeout(context.Background(), besideTimeout)
	defer cancel()
	resp, err := req.RequestWith(ctx, m.client)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			errs = append(errs, kerr.ErrorForCode(p.ErrorCode))
		}
	}
	return errors.Join(errs...)
}

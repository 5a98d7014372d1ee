package kafka

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

var _ brokers.Reader = (*Broker)(nil)

// readIdle is how long a read waits for a record before the end until it takes what is missing for gone: compaction and
// aborted transactions leave gaps, also at the end of a partition.
const readIdle = 3 * time.Second

// Read implements [brokers.Reader], with a client of its own and without a group.
func (b *Broker) Read(ctx context.Context, topic string, r brokers.Range, fn func(*message.Message) error) error {
	from, to, incarnation, err := b.bounds(ctx, topic, r)
	if err != nil {
		return fmt.Errorf("kafka: read topic %q: %w", topic, err)
	}
	start := make(map[int32]kgo.Offset, len(from))
	for p, offset := range from {
		if offset < to[p] {
			start[p] = kgo.NewOffset().At(offset)
		}
	}
	if len(start) == 0 {
		return nil
	}
	opts := append(b.config.consumer(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}), kgo.KeepControlRecords())
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return fmt.Errorf("kafka: read topic %q: %w", topic, err)
	}
	defer client.Close()
	left := make(map[int32]struct{}, len(start))
	for p := range start {
		left[p] = struct{}{}
	}
	for len(left) > 0 {
		fetches, err := poll(ctx, client)
		if err != nil {
			return fmt.Errorf("kafka: read topic %q: %w", topic, err)
		}
		if fetches == nil { // nothing for a while: does the cluster answer?
			if _, err := b.Ends(ctx, topic); err != nil {
				return err
			}
			return nil
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			record := iter.Next()
			p := record.Partition
			if _, wanted := left[p]; !wanted {
				continue
			}
			if record.Offset < to[p] && !record.Attrs.IsControl() {
				if err := fn(readMessage(ctx, topic, incarnation, record)); err != nil {
					return err
				}
			}
			if record.Offset >= to[p]-1 {
				delete(left, p)
			}
		}
	}
	return nil
}

// poll returns nil if nothing came within readIdle.
func poll(ctx context.Context, client *kgo.Client) (kgo.Fetches, error) {
	wait, cancel := context.WithTimeout(ctx, readIdle)
	defer cancel()
	fetches := client.PollFetches(wait)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if failed := fetches.Errors(); len(failed) > 0 {
		if errors.Is(failed[0].Err, context.DeadlineExceeded) {
			return nil, nil
		}
		return nil, fmt.Errorf("partition %d: %w", failed[0].Partition, failed[0].Err)
	}
	return fetches, nil
}

// bounds are the first offsets to read and those behind the last, and the topic's incarnation.
func (b *Broker) bounds(ctx context.Context, topic string, r brokers.Range) (from, to map[int32]int64, incarnation string, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.DialTimeout)
	defer cancel()
	// Also the way around kadm's cache, in which a topic that was made a moment ago is missing.
	ctx = kadm.WithAuthorizedOps(ctx)
	details, err := b.admin.ListTopics(ctx, topic)
	if err != nil {
		return nil, nil, "", err
	}
	detail := details[topic]
	if errors.Is(detail.Err, kerr.UnknownTopicOrPartition) {
		return nil, nil, "", brokers.ErrNoTopic
	}
	if detail.Err != nil {
		return nil, nil, "", detail.Err
	}
	if id := [16]byte(detail.ID); id != [16]byte{} {
		incarnation = hex.EncodeToString(id[:])
	}
	starts, err := b.admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, nil, "", err
	}
	begin := starts
	if !r.Since.IsZero() {
		if begin, err = b.admin.ListOffsetsAfterMilli(ctx, r.Since.UnixMilli(), topic); err != nil {
			return nil, nil, "", err
		}
	}
	list := b.admin.ListCommittedOffsets
	if b.config.ReadUncommitted {
		list = b.admin.ListEndOffsets
	}
	ends, err := list(ctx, topic)
	if err != nil {
		return nil, nil, "", err
	}
	from, to = map[int32]int64{}, map[int32]int64{}
	for p, end := range ends[topic] {
		oldest, there := starts.Lookup(topic, p)
		first, ok := begin.Lookup(topic, p)
		for _, e := range []kadm.ListedOffset{end, oldest, first} {
			if e.Err != nil {
				return nil, nil, "", fmt.Errorf("partition %d: %w", p, e.Err)
			}
		}
		if !ok || !there || r.Partitions != nil && !slices.Contains(r.Partitions, p) {
			continue
		}
		from[p], to[p] = first.Offset, end.Offset
		if offset, ok := r.From[p]; ok {
			from[p] = max(offset, oldest.Offset) // what is older is gone
		}
		if offset, ok := r.To[p]; ok {
			to[p] = min(offset, end.Offset)
		}
	}
	return from, to, incarnation, nil
}

// Ends implements [brokers.Reader].
func (b *Broker) Ends(ctx context.Context, topic string) (map[int32]int64, error) {
	_, ends, _, err := b.bounds(ctx, topic, brokers.Range{})
	if err != nil {
		return nil, fmt.Errorf("kafka: ends of topic %q: %w", topic, err)
	}
	return ends, nil
}

// readMessage is r as a subscription would deliver it.
func readMessage(ctx context.Context, topic, incarnation string, r *kgo.Record) *message.Message {
	m := message.NewMessage("", nil)
	key, headers := decode(r, m)
	m.SetContext(brokers.WithDelivery(ctx, &brokers.Delivery{
		Topic:       topic,
		Incarnation: incarnation,
		Partition:   r.Partition,
		Offset:      r.Offset,
		Key:         key,
		Time:        r.Timestamp,
		Headers:     headers,
	}))
	return m
}

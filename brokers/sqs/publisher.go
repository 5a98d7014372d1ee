package sqs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/classify"
)

const (
	// sendTries is how often an entry is sent whose batch was taken without it.
	sendTries = 5
	// The delays between tries while the service does not answer, or not well.
	firstDelay, maxDelay = 50 * time.Millisecond, 2 * time.Second
)

// outgoing is a message as it is sent.
type outgoing struct {
	uuid, body           string
	attributes           []attribute
	size                 int
	group, deduplication string // of FIFO queues
}

// target is where a topic's messages are sent.
type target interface {
	// send sends a batch. It returns an error for each message that was not stored, or one for all.
	send(ctx context.Context, batch []*outgoing) ([]error, error)
}

// publish is what [Broker.Publisher] describes.
func (b *Broker) publish(topic string, messages []*message.Message) error {
	if err := adapter.CheckCall("sqs", topic, messages); err != nil || len(messages) == 0 {
		return err
	}
	all := make([]*outgoing, len(messages))
	for i, m := range messages {
		o, err := b.outgoing(topic, m)
		if err != nil {
			return classify.Permanent(fmt.Errorf("sqs: publish to %s: message %d: %w", topic, i, err))
		}
		all[i] = o
	}
	ctx := messages[0].Context()
	to, known, err := b.target(ctx, topic)
	if err != nil {
		return err
	}
	for _, wave := range waves(all) {
		all := batches(wave, b.config.MaxMessageBytes)
		err := atOnce(len(all), func(i int) error { return send(ctx, to, all[i]) })
		if err == nil {
			continue
		}
		if _, gone := errors.AsType[*types.NotFoundException](err); gone || isNoQueue(err) {
			b.gone(known) // the next call looks for it, or makes it
		}
		return fmt.Errorf("sqs: publish %d messages from %q on to %s: %w", len(messages), messages[0].UUID, topic, err)
	}
	return nil
}

// target returns where a topic's messages go, and under which name the broker remembers it.
func (b *Broker) target(ctx context.Context, topic string) (to target, known string, err error) {
	if b.config.SNS != nil {
		arn, err := b.topicARN(ctx, topic)
		return topicTarget{b.config.SNS.Client, arn}, knownTopic(topic), err
	}
	q, err := b.queue(ctx, topic, b.config.QueueName(topic, ""))
	return queueTarget{b.config.Client, q.url}, q.name, err
}

func (b *Broker) outgoing(topic string, m *message.Message) (*outgoing, error) {
	o := &outgoing{uuid: m.UUID}
	o.body, o.attributes, o.size = encode(m)
	if o.size > b.config.MaxMessageBytes {
		return nil, &TooLargeError{UUID: m.UUID, Size: o.size, Limit: b.config.MaxMessageBytes}
	}
	if !b.config.FIFO {
		return o, nil
	}
	o.group = groupOf(b.config.Key(m))
	if b.config.DeduplicationID != nil {
		o.deduplication = b.config.DeduplicationID(topic, m)
	}
	o.deduplication = cmp.Or(o.deduplication, rand.Text())
	if !isGroup(o.deduplication) {
		o.deduplication = hash(o.deduplication)
	}
	return o, nil
}

// waves splits messages into parts that are sent one after another, so that no message of a group is stored without the
// ones before it: a batch can be taken in part, and what failed is sent again.
func waves(all []*outgoing) (waves [][]*outgoing) {
	next := map[string]int{} // the wave of a group's next message
	for _, o := range all {
		n := 0
		if o.group != "" {
			n = next[o.group]
			next[o.group]++
		}
		if n == len(waves) {
			waves = append(waves, nil)
		}
		waves[n] = append(waves[n], o)
	}
	return waves
}

// batches splits a wave by what one call may hold.
func batches(wave []*outgoing, limit int) (all [][]*outgoing) {
	begin, size := 0, 0
	for i, o := range wave {
		if i-begin == maxEntries || size+o.size > limit {
			all = append(all, wave[begin:i])
			begin, size = i, 0
		}
		size += o.size
	}
	return append(all, wave[begin:])
}

// send sends a batch, and again what of it was not taken.
func send(ctx context.Context, to target, batch []*outgoing) error {
	delay := firstDelay
	for try := 1; ; try++ {
		errs, err := to.send(ctx, batch)
		if err != nil {
			return err // the client has tried more than once
		}
		var again []*outgoing
		for i, failure := range errs {
			switch {
			case failure == nil:
			case isFinal(failure):
				return classify.Permanent(fmt.Errorf("message %q is refused: %w", batch[i].uuid, failure))
			default:
				again, err = append(again, batch[i]), failure
			}
		}
		if len(again) == 0 {
			return nil
		}
		if try == sendTries {
			return fmt.Errorf("message %q, and %d others, in %d tries: %w", again[0].uuid, len(again)-1, try, err)
		}
		batch = again
		if err := sleep(ctx, delay); err != nil {
			return err
		}
		delay = min(2*delay, maxDelay)
	}
}

// queueTarget sends to a queue.
type queueTarget struct {
	client *sqs.Client
	url    string
}

func (t queueTarget) send(ctx context.Context, batch []*outgoing) ([]error, error) {
	entries := make([]sqstypes.SendMessageBatchRequestEntry, len(batch))
	for i, o := range batch {
		attributes := make(map[string]sqstypes.MessageAttributeValue, len(o.attributes))
		for _, a := range o.attributes {
			attributes[a.name] = sqstypes.MessageAttributeValue{DataType: aws.String(typeString), StringValue: &a.value}
		}
		entries[i] = sqstypes.SendMessageBatchRequestEntry{Id: entryID(i), MessageBody: &o.body, MessageAttributes: attributes}
		if o.group != "" {
			entries[i].MessageGroupId, entries[i].MessageDeduplicationId = &o.group, &o.deduplication
		}
	}
	out, err := t.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &t.url, Entries: entries})
	if err != nil {
		return nil, err
	}
	return answered(len(batch), out.Successful, func(e sqstypes.SendMessageBatchResultEntry) *string { return e.Id }, out.Failed), nil
}

// sleep waits for d, or for the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers"
)

// queue is a queue that is there.
type queue struct{ name, url string }

// consumerQueue returns the queue that consumer reads topic from, making it if it may and must.
func (b *Broker) consumerQueue(ctx context.Context, topic, consumer string) (queue, error) {
	if b.config.SNS == nil {
		return b.queue(ctx, topic, b.config.QueueName(topic, ""))
	}
	q, err := b.queue(ctx, topic, b.config.QueueName(topic, consumer))
	if err != nil || b.config.CheckOnly {
		return q, err
	}
	return q, b.subscribeQueue(ctx, topic, q)
}

// queue returns the queue of that name, making it if it may and must.
func (b *Broker) queue(ctx context.Context, topic, name string) (queue, error) {
	if url, ok := b.lookUp(name); ok {
		return queue{name, url}, nil
	}
	url, err := b.findQueue(ctx, topic, name)
	if err != nil {
		return queue{}, err
	}
	b.remember(name, url)
	return queue{name, url}, nil
}

func (b *Broker) findQueue(ctx context.Context, topic, name string) (url string, err error) {
	found, err := b.config.Client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	switch {
	case err == nil:
		return aws.ToString(found.QueueUrl), nil
	case !isNoQueue(err):
		return "", fmt.Errorf("sqs: find queue %q of topic %q: %w", name, topic, err)
	case b.config.CheckOnly:
		return "", fmt.Errorf("sqs: topic %q has no queue %q, and Config.CheckOnly forbids to make one: %w: %w", topic, name, brokers.ErrNoTopic, err)
	}
	create := &sqs.CreateQueueInput{
		QueueName:  &name,
		Attributes: map[string]string{string(types.QueueAttributeNameMessageRetentionPeriod): strconv.Itoa(int(seconds(b.config.Retention)))},
	}
	if b.config.FIFO {
		create.Attributes[string(types.QueueAttributeNameFifoQueue)] = "true"
	}
	if b.config.Declare != nil {
		b.config.Declare(topic, create)
		if got := aws.ToString(create.QueueName); got != name {
			return "", fmt.Errorf("sqs: Config.Declare renamed queue %q of topic %q to %q: use Config.QueueName", name, topic, got)
		}
	}
	made, err := b.config.Client.CreateQueue(ctx, create)
	if err != nil {
		return "", fmt.Errorf("sqs: make queue %q for topic %q: %w", name, topic, err)
	}
	return aws.ToString(made.QueueUrl), nil
}

// isNoQueue tells whether err says that a queue is not there.
func isNoQueue(err error) bool {
	_, ok := errors.AsType[*types.QueueDoesNotExist](err)
	return ok
}

// attributesOf returns the settings of a queue.
func (b *Broker) attributesOf(ctx context.Context, q queue, names ...types.QueueAttributeName) (map[string]string, error) {
	out, err := b.config.Client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &q.url, AttributeNames: names})
	if err != nil {
		return nil, fmt.Errorf("sqs: read the attributes of queue %q: %w", q.name, err)
	}
	return out.Attributes, nil
}

// checkRedrivePolicy refuses a queue that moves messages away which nobody has failed at.
func (b *Broker) checkRedrivePolicy(ctx context.Context, q queue) error {
	if b.config.MinReceives == AnyRedrivePolicy {
		return nil
	}
	attributes, err := b.attributesOf(ctx, q, types.QueueAttributeNameRedrivePolicy)
	if err != nil {
		return err
	}
	text := attributes[string(types.QueueAttributeNameRedrivePolicy)]
	if text == "" {
		return nil
	}
	var policy struct {
		Target      string      `json:"deadLetterTargetArn"`
		MaxReceives json.Number `json:"maxReceiveCount"` // a number, or one in quotes
	}
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		return fmt.Errorf("sqs: queue %q: its RedrivePolicy is %q: %w", q.name, text, err)
	}
	most, err := strconv.Atoi(policy.MaxReceives.String())
	if err != nil {
		return fmt.Errorf("sqs: queue %q: its RedrivePolicy is %q: %w", q.name, text, err)
	}
	if most < b.config.MinReceives {
		return fmt.Errorf("sqs: queue %q: its RedrivePolicy moves a message to %s after %d receives, Config.MinReceives is %d: restarts count too; raise maxReceiveCount, or set AnyRedrivePolicy",
			q.name, policy.Target, most, b.config.MinReceives)
	}
	return nil
}

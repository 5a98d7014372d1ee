package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	snstypes "github.com/aws/aws-sdk-go-v2/service/sns/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SNS says how topics are SNS topics.
type SNS struct {
	// Client is the application's. The broker does not close it.
	Client *sns.Client

	// TopicARN gives the ARN of a topic. It is asked once for each. Default nil: the broker makes an SNS topic, named as the
	// default queue of the topic would be, or finds it.
	TopicARN func(ctx context.Context, topic string) (string, error)
}

// topicARN returns the ARN of a topic, which is there afterwards.
func (b *Broker) topicARN(ctx context.Context, topic string) (string, error) {
	known := knownTopic(topic)
	if arn, ok := b.lookUp(known); ok {
		return arn, nil
	}
	arn, err := b.findTopic(ctx, topic)
	if err != nil {
		return "", err
	}
	b.remember(known, arn)
	return arn, nil
}

// knownTopic is the name under which a topic's ARN is remembered: with spaces, it is no queue's.
func knownTopic(topic string) string { return "arn of " + topic }

func (b *Broker) findTopic(ctx context.Context, topic string) (string, error) {
	if find := b.config.SNS.TopicARN; find != nil {
		arn, err := find(ctx, topic)
		if err != nil {
			return "", fmt.Errorf("sqs: Config.SNS.TopicARN of topic %q: %w", topic, err)
		}
		return arn, nil
	}
	name := queueName(topic, "", b.config.FIFO)
	create := &sns.CreateTopicInput{Name: &name}
	if b.config.FIFO {
		create.Attributes = map[string]string{"FifoTopic": "true"}
	}
	made, err := b.config.SNS.Client.CreateTopic(ctx, create) // returns the one that is there
	if err != nil {
		return "", fmt.Errorf("sqs: make SNS topic %q for topic %q: %w", name, topic, err)
	}
	return aws.ToString(made.TopicArn), nil
}

// subscribeQueue lets the topic's SNS topic send into a queue, and makes it do so. Both can be repeated.
func (b *Broker) subscribeQueue(ctx context.Context, topic string, q queue) error {
	arn, err := b.topicARN(ctx, topic)
	if err != nil {
		return err
	}
	attributes, err := b.attributesOf(ctx, q, types.QueueAttributeNameQueueArn, types.QueueAttributeNamePolicy)
	if err != nil {
		return err
	}
	endpoint := attributes[string(types.QueueAttributeNameQueueArn)]
	policy := attributes[string(types.QueueAttributeNamePolicy)]
	switch {
	case policy == "":
		if policy, err = sendPolicy(arn, endpoint); err != nil {
			return err
		}
		_, err := b.config.Client.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
			QueueUrl: &q.url, Attributes: map[string]string{string(types.QueueAttributeNamePolicy): policy},
		})
		if err != nil {
			return fmt.Errorf("sqs: allow SNS topic %s to send to queue %q: %w", arn, q.name, err)
		}
	case !strings.Contains(policy, arn):
		// It is somebody's own: it may allow it in other words, and is not changed.
		b.config.Logger.WarnContext(ctx, "sqs: the queue's policy does not name the SNS topic, which may not be allowed to send",
			"queue", q.name, "topic_arn", arn)
	}
	if _, err := b.config.SNS.Client.Subscribe(ctx, &sns.SubscribeInput{
		TopicArn: &arn, Protocol: aws.String("sqs"), Endpoint: &endpoint,
		Attributes: map[string]string{"RawMessageDelivery": "true"},
	}); err != nil {
		return fmt.Errorf("sqs: subscribe queue %q to SNS topic %s: %w", q.name, arn, err)
	}
	return nil
}

// sendPolicy is the policy of a queue that one topic may send to.
func sendPolicy(topicARN, queueARN string) (string, error) {
	policy, err := json.Marshal(map[string]any{
		"Version": "2012-10-17",
		"Statement": []any{map[string]any{
			"Effect":    "Allow",
			"Principal": map[string]string{"Service": "sns.amazonaws.com"},
			"Action":    "sqs:SendMessage",
			"Resource":  queueARN,
			"Condition": map[string]any{"ArnEquals": map[string]string{"aws:SourceArn": topicARN}},
		}},
	})
	return string(policy), err
}

// topicTarget sends to an SNS topic.
type topicTarget struct {
	client *sns.Client
	arn    string
}

func (t topicTarget) send(ctx context.Context, batch []*outgoing) ([]error, error) {
	entries := make([]snstypes.PublishBatchRequestEntry, len(batch))
	for i, o := range batch {
		attributes := make(map[string]snstypes.MessageAttributeValue, len(o.attributes))
		for _, a := range o.attributes {
			attributes[a.name] = snstypes.MessageAttributeValue{DataType: aws.String(typeString), StringValue: &a.value}
		}
		entries[i] = snstypes.PublishBatchRequestEntry{Id: entryID(i), Message: &o.body, MessageAttributes: attributes}
		if o.group != "" {
			entries[i].MessageGroupId, entries[i].MessageDeduplicationId = &o.group, &o.deduplication
		}
	}
	out, err := t.client.PublishBatch(ctx, &sns.PublishBatchInput{TopicArn: &t.arn, PublishBatchRequestEntries: entries})
	if err != nil {
		return nil, err
	}
	answer := newAnswers(len(batch))
	for _, s := range out.Successful {
		answer.success(s.Id)
	}
	for _, f := range out.Failed {
		answer.failure(f.Id, f.Code, f.Message, f.SenderFault)
	}
	return answer.errors, nil
}

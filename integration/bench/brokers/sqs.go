package main

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers/sqs"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

const (
	sqsPollers = 4  // the adapter's default
	sqsBatch   = 10 // the most that SQS allows
)

// sqsSystem has no stock adapter: this module does not depend on Watermill's.
var sqsSystem = system{"sqs", "HEADRACE_SQS_URL", 8_000, []subject{
	{raw, "AWS SDK", sqsPollers, onSQS(func(ctx context.Context, l *pace.Load, name string, client *sdk.Client) error {
		queue, err := client.GetQueueUrl(ctx, &sdk.GetQueueUrlInput{QueueName: &name})
		if err != nil {
			return err
		}
		var loops sync.WaitGroup
		errs := make([]error, sqsPollers)
		for i := range errs {
			loops.Go(func() {
				for ctx.Err() == nil && errs[i] == nil {
					errs[i] = rawSQS(ctx, l, client, queue.QueueUrl)
				}
			})
		}
		loops.Wait()
		return errors.Join(errs...)
	})},
	{headrace, "headrace", window, onSQS(func(ctx context.Context, l *pace.Load, name string, client *sdk.Client) error {
		broker, err := sqs.New(sqs.Config{Client: client})
		if err != nil {
			return err
		}
		return errors.Join(onRuntime(ctx, l, name, broker), broker.Close())
	})},
}}

// rawSQS receives, handles and deletes one batch, with what a consumer needs to know of a message.
func rawSQS(ctx context.Context, l *pace.Load, client *sdk.Client, url *string) error {
	got, err := client.ReceiveMessage(ctx, &sdk.ReceiveMessageInput{
		QueueUrl: url, MaxNumberOfMessages: sqsBatch, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount},
	})
	if err != nil || len(got.Messages) == 0 {
		return err
	}
	in := &sdk.DeleteMessageBatchInput{QueueUrl: url}
	for i, m := range got.Messages {
		l.Handle()
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
	}
	deleted, err := client.DeleteMessageBatch(ctx, in)
	if err == nil && len(deleted.Failed) > 0 {
		return errors.New("not deleted: " + aws.ToString(deleted.Failed[0].Message))
	}
	return err
}

// onSQS makes standard queues, and deletes them.
func onSQS(run func(ctx context.Context, l *pace.Load, name string, client *sdk.Client) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		transport := &http.Transport{MaxIdleConnsPerHost: 64}
		client := sdk.New(sdk.Options{
			BaseEndpoint: &address, Region: "elasticmq", HTTPClient: &http.Client{Transport: transport},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "bench", SecretAccessKey: "bench"}, nil
			}),
		})
		name := topicName()
		remove := func() error {
			defer transport.CloseIdleConnections()
			ctx := context.WithoutCancel(ctx)
			queue, err := client.GetQueueUrl(ctx, &sdk.GetQueueUrlInput{QueueName: &name})
			if err == nil {
				_, err = client.DeleteQueue(ctx, &sdk.DeleteQueueInput{QueueUrl: queue.QueueUrl})
			}
			return err
		}
		broker, err := sqs.New(sqs.Config{Client: client})
		if err == nil {
			err = errors.Join(fillBroker(ctx, broker, name, n), broker.Close())
		}
		if err != nil {
			return topic{}, errors.Join(err, remove())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, name, client) },
			remove: remove,
		}, nil
	}
}

package sqs_test

import (
	"crypto/rand"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/sqs"
)

func keyed(i int) *message.Message {
	m := message.NewMessage(strconv.Itoa(i), []byte("256 bytes, or less"))
	m.Metadata["ce_partitionkey"] = strconv.Itoa(i % 1000)
	return m
}

// BenchmarkPublish publishes ten messages, of ten keys, with each call.
func BenchmarkPublish(b *testing.B) {
	for _, mode := range modes {
		b.Run(mode.name, func(b *testing.B) {
			broker := open(b, sqs.Config{FIFO: mode.fifo})
			pub, err := broker.Publisher()
			if err != nil {
				b.Fatal(err)
			}
			topic, batch := rand.Text(), make([]*message.Message, 10)
			for i := range batch {
				batch[i] = keyed(i)
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%10 == 1 {
					if err := pub.Publish(topic, batch...); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

const backlog = 2000 // messages; a benchmark takes them again and again

// BenchmarkConsume receives and acks, with the adapter and in a plain loop of the SDK's that receives ten, deletes ten.
func BenchmarkConsume(b *testing.B) {
	fill := func(b *testing.B, broker *sqs.Broker, topic string) {
		messages := make([]*message.Message, backlog)
		for i := range messages {
			messages[i] = keyed(i)
		}
		adaptertest.Publish(b, broker, topic, messages...)
	}
	b.Run("adapter", func(b *testing.B) {
		broker, topic := open(b, sqs.Config{Visibility: 0}), rand.Text()
		_, in := adaptertest.Subscribe(b, broker, "c", topic, 256)
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if n == 0 {
				b.StopTimer()
				fill(b, broker, topic)
				b.StartTimer()
				n = backlog
			}
			(<-in).Ack()
			n--
		}
	})
	b.Run("SDK", func(b *testing.B) {
		c := client(b)
		broker, topic := open(b, sqs.Config{Client: c}), rand.Text()
		url := queueURL(b, c, topic, false)
		b.ReportAllocs()
		n, got := 0, []types.Message(nil)
		for b.Loop() {
			if n == 0 {
				b.StopTimer()
				fill(b, broker, topic)
				b.StartTimer()
				n = backlog
			}
			for len(got) == 0 {
				out, err := c.ReceiveMessage(b.Context(), &sdk.ReceiveMessageInput{
					QueueUrl: url, MaxNumberOfMessages: 10, VisibilityTimeout: 30, WaitTimeSeconds: 1, MessageAttributeNames: []string{"All"},
				})
				if err != nil {
					b.Fatal(err)
				}
				got = out.Messages
				in := &sdk.DeleteMessageBatchInput{QueueUrl: url}
				for i, m := range got {
					in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
				}
				if len(got) > 0 {
					if _, err := c.DeleteMessageBatch(b.Context(), in); err != nil {
						b.Fatal(err)
					}
				}
			}
			got = got[1:]
			n--
		}
	})
}

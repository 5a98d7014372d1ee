package main

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 8
	eventType  = "order.placed"
)

// topic is one that was filled.
type topic struct {
	name, keys string
	n          int
	busyKeys   float64 // as many handlers can run at once, when the most frequent key is never idle
}

// distribution is how records have their keys.
type distribution struct {
	name string
	key  func(i int) int
}

var distributions = []distribution{
	{"10,000 even", func(i int) int { return i % 10_000 }},
	{"100 hot", func(i int) int { return i % 100 }},
	{"zipf", func() func(int) int {
		z := mathrand.NewZipf(mathrand.New(mathrand.NewPCG(1, 2)), 1.1, 1, 9_999)
		return func(int) int { return int(z.Uint64()) }
	}()},
}

// producer returns a client that makes no topics.
func producer(seeds []string) (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(50))
}

// create makes an empty topic.
func create(ctx context.Context, cl *kgo.Client) (string, error) {
	name := "bench." + rand.Text()
	_, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, -1, nil, name)
	return name, err
}

// remove deletes a topic, which is large.
func remove(seeds []string, topic string) error {
	cl, err := producer(seeds)
	if err != nil {
		return err
	}
	defer cl.Close()
	_, err = kadm.NewClient(cl).DeleteTopic(context.Background(), topic)
	return err
}

// record returns number i of a topic.
func record(topic string, i, key int) *kgo.Record {
	return &kgo.Record{Topic: topic, Value: values[i%len(values)], Key: fmt.Appendf(nil, "key-%d", key), Headers: []kgo.RecordHeader{
		{Key: "ce_id", Value: fmt.Appendf(nil, "%d", i)},
		{Key: "ce_source", Value: []byte("/bench")},
		{Key: "ce_specversion", Value: []byte("1.0")},
		{Key: "ce_type", Value: []byte(eventType)},
	}}
}

// values are bytes that do not compress, so that what is read is what is said.
var values = func() [][]byte {
	random := mathrand.NewChaCha8([32]byte{})
	all := make([][]byte, 1000)
	for i := range all {
		all[i] = make([]byte, 1024)
		_, _ = random.Read(all[i]) // never fails
	}
	return all
}()

// fill makes a topic with n records.
func fill(seeds []string, n int, d distribution) (topic, error) {
	ctx := context.Background()
	cl, err := producer(seeds)
	if err != nil {
		return topic{}, err
	}
	defer cl.Close()
	name, err := create(ctx, cl)
	if err != nil {
		return topic{}, err
	}
	failed := make(chan error, 1)
	count := make(map[int]int)
	most := 0
	for i := range n {
		key := d.key(i)
		count[key]++
		most = max(most, count[key])
		cl.Produce(ctx, record(name, i, key), func(_ *kgo.Record, err error) {
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return topic{}, err
	}
	select {
	case err := <-failed:
		return topic{}, err
	default:
		return topic{name: name, keys: d.name, n: n, busyKeys: float64(n) / float64(most)}, nil
	}
}

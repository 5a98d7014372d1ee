package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// redisIdle is after which time of silence an entry is taken from its member. The adapter has no sign of life, so a handler that
// takes longer runs twice at once; and so long an entry of a dead member waits.
const redisIdle = time.Minute

// stockRedis is Watermill's own adapter for Redis Streams behind the runtime. It delivers one un-acked message of a
// consumer at a time: brokers/redisstream is the one to use. closeBroker closes what the runtime does not own.
func stockRedis(url string, idle time.Duration) (broker brokers.Broker, closeBroker func(*error), err error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	client := redis.NewClient(options)
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, watermill.NopLogger{})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	closeBroker = func(err *error) { *err = errors.Join(*err, pub.Close()) } // which closes the client
	broker, err = runtime.Watermill(runtime.WatermillConfig{
		Publisher: pub,
		Subscriber: func(s brokers.Subscription) (message.Subscriber, error) {
			member := watermill.NewUUID()
			return redisstream.NewSubscriber(redisstream.SubscriberConfig{
				Client:        redis.NewClient(options), // Close closes it, so each has its own
				ConsumerGroup: s.Consumer,
				Consumer:      member,
				Unmarshaller:  redisEntry{},
				MaxIdleTime:   idle,
				ClaimInterval: idle / 4,
				// Without it a member takes its own busy entries from itself, and handles them twice.
				ShouldClaimPendingMessage:     func(p redis.XPendingExt) bool { return p.Consumer != member },
				DisableIndefiniteInitialBlock: true, // else Close waits for the first message
			}, watermill.NopLogger{})
		},
		Capabilities: brokers.Capabilities{
			System: "redis",
			// A member that stops has read ahead; what it held comes to the next one when it was idle for long enough, after
			// later entries.
			Ordering:   brokers.OrderingNone,
			MaxUnacked: 1,
			Patience:   idle,
			FanOut:     true,
			Replays:    true,
		},
	})
	return broker, closeBroker, err
}

// redisEntry is the default unmarshaller, but for entries that it fails on: one of those closes the subscription, and
// every one after it. Here their fields are metadata, and the runtime judges the message.
type redisEntry struct {
	redisstream.DefaultMarshallerUnmarshaller
}

func (u redisEntry) Unmarshal(values map[string]any) (*message.Message, error) {
	if m, err := u.DefaultMarshallerUnmarshaller.Unmarshal(values); err == nil {
		return m, nil
	}
	m := message.NewMessage("", nil)
	for k, v := range values {
		if k == "payload" {
			m.Payload = fmt.Append(nil, v)
			continue
		}
		m.Metadata[k] = fmt.Sprint(v)
	}
	return m, nil
}

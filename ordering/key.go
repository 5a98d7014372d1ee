package ordering

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

// DefaultKey returns the key that msg is ordered by: the broker's own key, else the event's ([event.KeyOf]): the CloudEvents
// partitionkey, else the subject. It is "" when there is none of them: the message then
// shares the lane of its partition, and has no lane where the broker has no partitions.
//
// A broker's key that is present but empty is "" as well, and is not replaced by the other two.
func DefaultKey(msg *message.Message) string {
	return defaultKey(brokers.DeliveryOf(msg.Context()), msg)
}

func defaultKey(d *brokers.Delivery, msg *message.Message) string {
	if d != nil && d.Key != nil {
		return string(d.Key)
	}
	return event.KeyOf(msg)
}

// laneKey names a lane (fault L2: topics may share keys).
type laneKey struct {
	topic     string
	key       string
	partition int32
}

// laneOf tells which lane a delivery belongs to, and whether to any (fault L1).
func laneOf(d *brokers.Delivery, topic, key string) (laneKey, bool) {
	if d.Topic != "" {
		topic = d.Topic
	}
	return laneKey{topic: topic, partition: d.Partition, key: key}, key != "" || d.Partition >= 0
}

// Package brokers is the contract between the runtime and a message system, as database/sql/driver is
// between database/sql and a database. Each sub-package is one adapter and knows no other.
//
// The contract is Watermill's own, message.Subscriber and message.Publisher, and three additions that
// Watermill has no words for: what a broker can do ([Capabilities]), where a message came from
// ([Delivery]), and how to give one back without a verdict ([Delivery.Release]).
package brokers

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Broker opens the subscribers and publishers of one message system.
// Its methods are safe for concurrent use.
//
// Whoever makes a Broker closes it. The runtime closes only the subscribers and publishers that it opened.
type Broker interface {
	// Capabilities tells what the broker can do. It does no I/O and always gives the same answer.
	Capabilities() Capabilities

	// Subscriber opens the subscription of one consumer. It may block for I/O but reads no message
	// before Subscribe is called.
	Subscriber(Subscription) (message.Subscriber, error)

	// Publisher opens a publisher. Its Publish returns nil only when the broker has confirmed that
	// every message is stored; messages of one key keep their order.
	Publisher() (message.Publisher, error)

	// Close closes what the broker itself holds (connections, an embedded server). It is idempotent.
	Close() error
}

// Subscription describes one consumer to a [Broker].
type Subscription struct {
	// Consumer is the stable name of the consumer. It names the group (Kafka), the durable (JetStream),
	// the queue (AMQP): subscriptions with one name share the messages, those with different names
	// each get them all.
	Consumer string

	// Topic is what it reads.
	Topic string

	// Window is how many deliveries the runtime may hold un-acked at once. An adapter does not
	// deliver more than that. Zero leaves it to the adapter.
	Window int

	// OwnKeys says that the lanes are of another key than the broker's: no delivery may overtake another within a unit of order.
	OwnKeys bool
}

// Ordering is the unit within which a broker delivers in order of publication.
type Ordering string

// The units of order, from none to all.
const (
	OrderingNone      Ordering = "none"      // no promise at all
	OrderingKey       Ordering = "key"       // per key or message group
	OrderingPartition Ordering = "partition" // per partition, which holds whole keys
	OrderingTopic     Ordering = "topic"     // the whole topic, stream or queue is one sequence
)

// Capabilities is what a broker can do, as far as the runtime's behaviour depends on it.
// The zero value promises nothing.
type Capabilities struct {
	// System is the value of the messaging.system.name attribute: "kafka", "nats", "memory", ...
	System string

	// Ordering is the unit of order for a subscription that holds many deliveries un-acked.
	Ordering Ordering

	// MaxUnacked is the most deliveries that can be un-acked at once in a subscription; 0 means no limit
	// but the window.
	MaxUnacked int

	// Patience is how long the broker waits for an ack before it delivers again; 0 means for ever.
	// With ExtendsPatience the adapter prolongs it by heartbeat while the delivery is held,
	// at most up to PatienceLimit in all (0: without limit).
	Patience        time.Duration
	ExtendsPatience bool
	PatienceLimit   time.Duration

	// CountsDeliveries says that Delivery.Count is set.
	CountsDeliveries bool

	// Releases says that a delivery can be given back without a verdict, see Delivery.Release.
	Releases bool

	// Delays says that the broker can delay one message, see Delivery.Delay.
	Delays bool

	// DeliveryLimit is the fewest deliveries after which the broker may take a message away by itself: to a
	// dead-letter queue of its own, or for good. Each arrival counts, also after a release, a delay or a crash.
	// 0: it never does. The runtime warns of a limit that the attempts of a message can reach.
	DeliveryLimit int

	// FanOut says that consumers of different names each get every message of a topic.
	FanOut bool

	// Replays says that messages stay readable after they were acked.
	Replays bool

	// Retention is how long a message can be delivered after it was published, as far as it is known;
	// 0 means unknown or for ever. The runtime compares the inbox's retention with it.
	Retention time.Duration

	// MaxHeaderBytes bounds all metadata of one message (keys and values); one value may take it all. 0 means no
	// limit of note. What an adapter takes beyond it arrives; what it does not take is a permanent error of Publish.
	MaxHeaderBytes int
}

package amqp

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/event"
)

// Topology is what the broker does about exchanges and queues.
type Topology int

const (
	// Declare makes what is missing, and fails where something is there that differs; the error tells what.
	Declare Topology = iota

	// Check makes nothing, and fails where an exchange or a queue is missing. How they are set up, and bound, is the
	// operator's choice. There is no Delivery.Delay then, and a queue may have the server's own delivery limit: from RabbitMQ
	// 4.0 on it drops, or dead-letters, after 20 deliveries.
	Check
)

// DefaultCloseTimeout is the default of Config.CloseTimeout.
const DefaultCloseTimeout = 3 * time.Second

// NoTimeout as Config.Patience is for a server whose consumer_timeout is off.
const NoTimeout time.Duration = -1

// Config says how to use a server. URLs is required; a zero field has the default that its comment names.
type Config struct {
	// URLs are those of the nodes of one cluster, amqp:// or amqps://, at most 64. Each connection goes to the first that answers,
	// beginning with a random one.
	URLs []string

	// TLS is for amqps. Default: the system's roots and the URL's host.
	TLS *tls.Config

	// Name is shown by the server for the connections. Default "headrace".
	Name string

	// Topology is Declare or Check. Default Declare.
	Topology Topology

	// QueueName names the queue of a consumer of a topic. Two consumers, or topics, must not have the same. Default:
	// topic/consumer, with %25 and %2F for the characters % and / of either.
	QueueName func(consumer, topic string) string

	// RoutingKey gives the routing key of a message, at most 255 bytes. The fanout exchanges that the broker declares do not look at
	// it; one of the operator's can. Default: the event's key, see event.KeyOf, or its SHA-256 in hexadecimal if it is longer.
	RoutingKey func(topic string, m *message.Message) string

	// CompetingConsumers lets all subscribers of one consumer read at once: there is no order then. By default the queue has a
	// single active consumer, and the others wait to take over. A queue cannot be changed from one to the other.
	CompetingConsumers bool

	// Window is the number of un-acked deliveries of a subscription that names none, and so its prefetch count. Default 256,
	// at most 65,535.
	Window int

	// NackDelay is how long a nacked delivery is held back before it goes back to the queue. It doubles with each
	// delivery, up to MaxNackDelay. A released one is held back for NackDelay. Defaults 100 ms and 30 s.
	NackDelay, MaxNackDelay time.Duration

	// Patience is the server's consumer_timeout: who holds a delivery for longer, even one that waits for its turn, in a pause or behind others, loses
	// its channel. All that was delivered on it then comes again, in order, and the contexts of what runs end. So the window times the time of a handler
	// should be well below it where one key has most of the messages; in a long outage it happens once in that time. It is not sent to the
	// server. Default 30 min, as the server's; NoTimeout if it is off there.
	Patience time.Duration

	// MaxMessageBytes is the largest payload that is published. It must not be above the server's max_message_size. Default
	// 16 MiB.
	MaxMessageBytes int

	// PublishTimeout bounds a Publish, connecting and the wait for confirms included. Default 10 s.
	PublishTimeout time.Duration

	// DialTimeout bounds the making of a connection to one node. Heartbeat is the time within which either side gives a sign of life
	// on it; the server may ask for less. It is lost after one and a half of it without any. Defaults 10 s each, at least 1 s for Heartbeat.
	DialTimeout, Heartbeat time.Duration

	// LagInterval is how often a subscription asks how many messages its queue has, and binds it again. Default 5 s.
	LagInterval time.Duration

	// CloseTimeout bounds the end of a subscription, half of it what is sent on with a delay. A server that has not answered by then
	// loses the connection, and takes back what it knows of no ack. It has to fit into the time that whoever closes the
	// subscription has, 5 s for the runtime. The end of a publisher, and then that of each connection, may take as long again.
	// Default 3 s.
	CloseTimeout time.Duration

	// Logger gets what nobody can be told by an error. Default slog.Default().
	Logger *slog.Logger
}

const (
	maxWindow    = math.MaxUint16 // of basic.qos
	maxURLs      = 64
	minHeartbeat = time.Second
)

func (c Config) withDefaults() (Config, error) {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("amqp: Config.%s is %v: want %s", field, value, want)
	}
	if len(c.URLs) == 0 || len(c.URLs) > maxURLs {
		return c, bad("URLs", fmt.Sprintf("a list of %d", len(c.URLs)), fmt.Sprintf("1 to %d", maxURLs))
	}
	c.URLs = slices.Clone(c.URLs)
	for i, u := range c.URLs {
		if err := checkURL(u); err != nil {
			return c, fmt.Errorf("amqp: Config.URLs[%d]: %w", i, err)
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"NackDelay", c.NackDelay},
		{"PublishTimeout", c.PublishTimeout},
		{"DialTimeout", c.DialTimeout},
		{"LagInterval", c.LagInterval},
		{"CloseTimeout", c.CloseTimeout},
	} {
		if d.value < 0 {
			return c, bad(d.field, d.value, "a positive duration")
		}
	}
	switch {
	case c.Topology != Declare && c.Topology != Check:
		return c, bad("Topology", int(c.Topology), "Declare or Check")
	case len(c.Name) > maxName:
		return c, bad("Name", fmt.Sprintf("of %d bytes", len(c.Name)), fmt.Sprintf("at most %d", maxName))
	case c.Window < 0 || c.Window > maxWindow:
		return c, bad("Window", c.Window, fmt.Sprintf("1 to %d", maxWindow))
	case c.MaxNackDelay < 0 || c.MaxNackDelay != 0 && c.MaxNackDelay < c.NackDelay:
		return c, bad("MaxNackDelay", c.MaxNackDelay, fmt.Sprintf("at least NackDelay, %v", c.NackDelay))
	case c.Patience < 0 && c.Patience != NoTimeout:
		return c, bad("Patience", c.Patience, "a positive duration, or NoTimeout")
	case c.MaxMessageBytes < 0:
		return c, bad("MaxMessageBytes", c.MaxMessageBytes, "a positive number")
	case c.Heartbeat != 0 && c.Heartbeat < minHeartbeat:
		return c, bad("Heartbeat", c.Heartbeat, fmt.Sprintf("at least %v", minHeartbeat))
	}
	c.Name = cmp.Or(c.Name, "headrace")
	if c.QueueName == nil {
		c.QueueName = queueName
	}
	if c.RoutingKey == nil {
		c.RoutingKey = func(_ string, m *message.Message) string { return shortKey(event.KeyOf(m)) }
	}
	c.Window = cmp.Or(c.Window, 256)
	c.NackDelay = cmp.Or(c.NackDelay, min(100*time.Millisecond, cmp.Or(c.MaxNackDelay, time.Hour)))
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, max(30*time.Second, c.NackDelay))
	c.Patience = cmp.Or(c.Patience, 30*time.Minute)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 16<<20)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 10*time.Second)
	c.DialTimeout = cmp.Or(c.DialTimeout, 10*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 10*time.Second)
	c.LagInterval = cmp.Or(c.LagInterval, 5*time.Second)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c, nil
}

// checkURL says what is wrong with a URL, without its password.
func checkURL(text string) error {
	_, err := amqp091.ParseURI(text)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("is no URL: %w", wrapped.Err)
	}
	return err
}

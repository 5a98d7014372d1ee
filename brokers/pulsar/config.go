package pulsar

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/event"
)

// DefaultCloseTimeout is the default of Config.CloseTimeout.
const DefaultCloseTimeout = 3 * time.Second

const (
	// maxUnacked is the broker's default of maxUnackedMessagesPerConsumer.
	maxUnacked = 50_000
	// maxProducers bounds what Config.MaxProducers can be: each has a goroutine and a buffer.
	maxProducers = 100_000
	// maxMessageBytes is the default of the broker's maxMessageSize, 5 MiB, without what the client adds, and without the 128 KiB that a
	// batch can have before a large message is added.
	maxMessageBytes = 5<<20 - 256<<10
	minMessageBytes = 1 << 10
)

// Config says how to use a cluster. Client is required; a zero field has the default that its comment names.
type Config struct {
	// Client is the application's: it has the address, the credentials and the connections. The broker does not close it.
	// Its OperationTimeout bounds what the client does about a server that does not answer, and so how long goroutines of the client
	// can outlive a Close of a subscription then; 5 s is a good one, the client's default is 30 s.
	Client pulsarclient.Client

	// Name begins the names of this process's consumers and producers, which the server shows. Default "headrace".
	Name string

	// Window is the number of un-acked deliveries of a subscription that names none. The client fetches as many again ahead.
	// Default 256, at most half of MaxUnacked.
	Window int

	// MaxUnacked is the broker's maxUnackedMessagesPerConsumer: it sends no more to a consumer that has as many. It is not sent to
	// the server. Default 50,000, as the broker's.
	MaxUnacked int

	// NackDelay is the delay before a nacked delivery comes again. It doubles with each delivery, up to
	// MaxNackDelay. Defaults 100 ms and 30 s.
	NackDelay, MaxNackDelay time.Duration

	// Key gives the key of a message, by which it is ordered; "" is none. Default: the event's key, see event.KeyOf.
	Key func(topic string, m *message.Message) string

	// NoDelays goes without Delivery.Delay, and so without the topics of delayed messages.
	NoDelays bool

	// DelayTopic names the topic of a consumer's delayed messages. It must be another for each topic and consumer, and one that
	// the server makes by itself, or that is there. Default: topic-consumer-headrace-delay.
	DelayTopic func(topic, consumer string) string

	// Batched makes one entry of the messages of one key that are published together. That is quicker, but the server knows acks of
	// whole entries only: see the package comment. Default: each message is an entry.
	Batched bool

	// Compression is what entries are compressed with. Default: none.
	Compression pulsarclient.CompressionType

	// Decryption is what encrypted messages are decrypted with. What cannot be decrypted arrives as it is, with a DecodeError,
	// whatever its ConsumerCryptoFailureAction. Default nil: no encrypted message can be.
	Decryption *pulsarclient.MessageDecryptionInfo

	// MaxMessageBytes bounds a message: its payload, and twice its key, id and metadata as they are sent, since batches have them twice. It must be
	// 256 KiB below the server's maxMessageSize. Default 4.75 MiB, at least 1 KiB.
	MaxMessageBytes int

	// MaxProducers bounds the topics that have a producer at one time; those unused for longest are closed. Default 1,000.
	MaxProducers int

	// PublishTimeout bounds a Publish, the wait for a producer and for confirms included. Default 10 s.
	PublishTimeout time.Duration

	// Retention is how long the retention policies of the topics' namespaces keep what was acked, or published while there was no
	// subscription. It is not sent to the server. Default 0: they do not, as the server's default is.
	Retention time.Duration

	// PartitionInterval is how often a subscription looks for new partitions. Default 1 min.
	PartitionInterval time.Duration

	// CloseTimeout bounds the last words to the server. It has to fit into the time that whoever closes the subscription has, 5 s
	// for the runtime. Default 3 s.
	CloseTimeout time.Duration

	// Logger gets what nobody can be told by an error. Default slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Client == nil {
		return c, errors.New("pulsar: Config.Client is nil: want the application's client")
	}
	c.Name = cmp.Or(c.Name, "headrace")
	c.MaxUnacked = cmp.Or(c.MaxUnacked, maxUnacked)
	c.Window = cmp.Or(c.Window, min(256, max(c.MaxUnacked/2, 1)))
	c.NackDelay = cmp.Or(c.NackDelay, min(100*time.Millisecond, cmp.Or(c.MaxNackDelay, time.Hour)))
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, max(30*time.Second, c.NackDelay))
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, maxMessageBytes)
	c.MaxProducers = cmp.Or(c.MaxProducers, 1000)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 10*time.Second)
	c.PartitionInterval = cmp.Or(c.PartitionInterval, time.Minute)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Key == nil {
		c.Key = func(_ string, m *message.Message) string { return event.KeyOf(m) }
	}
	if c.DelayTopic == nil {
		c.DelayTopic = delayTopic
	}
	return c, c.check()
}

// check checks c, which has its defaults.
func (c *Config) check() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("pulsar: Config.%s is %v: want %s", field, value, want)
	}
	for _, f := range []struct {
		field           string
		value, min, max int
	}{
		{"MaxUnacked", c.MaxUnacked, 2, 1 << 30},
		{"Window", c.Window, 1, c.MaxUnacked / 2},
		{"MaxMessageBytes", c.MaxMessageBytes, minMessageBytes, 1 << 30},
		{"MaxProducers", c.MaxProducers, 1, maxProducers},
	} {
		if f.value < f.min || f.value > f.max {
			return bad(f.field, f.value, fmt.Sprintf("%d to %d", f.min, f.max))
		}
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"NackDelay", c.NackDelay},
		{"Retention", c.Retention},
		{"PublishTimeout", c.PublishTimeout},
		{"PartitionInterval", c.PartitionInterval},
		{"CloseTimeout", c.CloseTimeout},
	} {
		if d.value < 0 {
			return bad(d.field, d.value, "a positive duration")
		}
	}
	switch {
	case c.MaxNackDelay < c.NackDelay:
		return bad("MaxNackDelay", c.MaxNackDelay, fmt.Sprintf("at least NackDelay, %v", c.NackDelay))
	case c.Compression < pulsarclient.NoCompression || c.Compression > pulsarclient.SNAPPY:
		return bad("Compression", int(c.Compression), "one of the client's")
	}
	return nil
}

// nackDelay is the delay after count deliveries.
func (c *Config) nackDelay(count int) time.Duration {
	delay := c.NackDelay
	for ; count > 1 && delay < c.MaxNackDelay; count-- {
		delay *= 2
	}
	return min(delay, c.MaxNackDelay)
}

package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// The defaults of [Config].
const (
	DefaultWindow         = 1024
	DefaultMinKeyBudget   = 16
	DefaultMaxSpan        = 8192
	DefaultBufferRecords  = 1024
	DefaultBufferBytes    = 4 << 20
	DefaultCommitInterval = 250 * time.Millisecond
	DefaultCommitTimeout  = 5 * time.Second
	DefaultRevokeWait     = 10 * time.Second
	DefaultCloseTimeout   = 2 * time.Second
	DefaultNackDelay      = 100 * time.Millisecond
	DefaultMaxNackDelay   = 10 * time.Second
	DefaultPublishTimeout = 30 * time.Second
	DefaultDialTimeout    = 10 * time.Second

	// BrokerDefault leaves Config.Partitions or Config.Replicas to the cluster.
	BrokerDefault = -1

	// MaxWindow is the largest Window.
	MaxWindow = 1 << 20

	// NoWait is a RevokeWait of nothing.
	NoWait time.Duration = -1
)

// Config configures a [Broker]. Only Seeds must be set.
type Config struct {
	// Seeds are the addresses (host:port) of some brokers of the cluster.
	Seeds []string

	// TLS encrypts all connections, if it is not nil.
	TLS *tls.Config

	// SASL are the ways to authenticate, the preferred one first: franz-go's sasl/plain, sasl/scram,
	// sasl/oauth (whose function is asked for a token at each connection) and others.
	SASL []sasl.Mechanism

	// Options are franz-go's own, for what this package does not do: kgo.Balancers, kgo.SessionTimeout, kgo.Rack,
	// kgo.ProducerBatchCompression, hooks. They override the defaults here. What safety rests on overrides them: the
	// group, the topics, the callbacks of the group, and commits.
	Options []kgo.Opt

	// CheckOnly makes the broker use topics that are there, and fail with a clear error where one is missing, instead
	// of making any.
	CheckOnly bool

	// Partitions and Replicas are of topics that the broker makes. Default: the cluster's own, BrokerDefault.
	Partitions int32
	Replicas   int16

	// TopicConfigs are configuration entries of topics that the broker makes, such as "cleanup.policy".
	TopicConfigs map[string]string

	// Regex makes the topic of a subscription a regular expression, which matches anywhere in a name. It matches topics that
	// are made later too; the broker makes none. Topics whose names end in .DLT or .REDRIVE are not read by it: a
	// subscription to the name of one takes it literally, and makes it.
	Regex bool

	// StartAtEnd makes a consumer that has committed nothing start at the end of the topic. What was published
	// before its first start, and in partitions that are added later before it sees them, is then lost
	// to it. Default: at the earliest record that the topic has.
	StartAtEnd bool

	// ReadUncommitted delivers the records of transactions that are open or were aborted as well.
	ReadUncommitted bool

	// InstanceID makes members static: a restart within the session timeout causes no rebalance. It must differ between
	// processes and stay the same over restarts. The first subscription of a consumer has this id, further ones have
	// it with "-2", "-3" appended.
	InstanceID string

	// Window is how many deliveries a subscription holds un-acked at once when Subscription.Window is zero.
	// Default 1024, at most MaxWindow.
	Window int

	// KeyBudget is how many deliveries of one key a subscription holds un-acked at once. They run one after another, so
	// it only has to keep a lane busy. Records without a key have no budget of their own, nor have those of a subscription
	// with OwnKeys. Default: an eighth of the window, at least 16; never more than the window.
	KeyBudget int

	// MaxSpan bounds the distance, in offsets of a partition, from the committed one to the highest that was handed
	// over: what a crash may read again. Default 8192, or twice the window if that is more.
	MaxSpan int

	// BufferRecords and BufferBytes bound what is read ahead of the handlers in each partition. A fetch that is on its
	// way comes on top, see kgo.FetchMaxPartitionBytes. Defaults 1024, or the window if that is more, and 4 MiB.
	BufferRecords int
	BufferBytes   int

	// CommitInterval is the pause between commits. Default 250 ms.
	CommitInterval time.Duration

	// CommitTimeout bounds one commit. Default 5 s.
	CommitTimeout time.Duration

	// RevokeWait is how long handlers may finish when the group takes their partition away. With CommitTimeout
	// it must stay below the rebalance timeout (kgo.RebalanceTimeout, 60 s), or the group expels the
	// member. NoWait for none. Default 10 s.
	RevokeWait time.Duration

	// CloseTimeout bounds how long the end of a subscription waits for a rebalance of its group to end, and for its last
	// commit, so that it can leave in peace. Then it does both beside the rebalance, within a second each: these 2 s and
	// CloseTimeout have to fit into the time that whoever closes it has, 5 s for the runtime. Default 2 s.
	CloseTimeout time.Duration

	// NackDelay is the delay before a delivery that was nacked or released comes again; each further time
	// doubles it, up to MaxNackDelay. Defaults 100 ms and 10 s.
	NackDelay, MaxNackDelay time.Duration

	// Key gives the key of a record that is published; nil is no key. It must not change the message. Default: the
	// event's key (event.KeyOf), else none. WithKey comes first.
	Key func(topic string, m *message.Message) []byte

	// PublishTimeout bounds the wait for the confirmation of a message. A record that may have been stored already is
	// waited for beyond it. Default 30 s.
	PublishTimeout time.Duration

	// DialTimeout bounds how long New, and the check of a topic, waits for the cluster. Default 10 s.
	DialTimeout time.Duration

	// Logger gets what no caller can be told: lost connections, commits that failed, partitions that cannot
	// be read. Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns c with defaults for zero fields, or an error that names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	defaultTo(&c.Window, DefaultWindow)
	defaultTo(&c.CommitInterval, DefaultCommitInterval)
	defaultTo(&c.CommitTimeout, DefaultCommitTimeout)
	defaultTo(&c.RevokeWait, DefaultRevokeWait)
	defaultTo(&c.CloseTimeout, DefaultCloseTimeout)
	defaultTo(&c.NackDelay, DefaultNackDelay)
	defaultTo(&c.MaxNackDelay, max(DefaultMaxNackDelay, c.NackDelay))
	defaultTo(&c.PublishTimeout, DefaultPublishTimeout)
	defaultTo(&c.DialTimeout, DefaultDialTimeout)
	defaultTo(&c.BufferBytes, DefaultBufferBytes)
	defaultTo(&c.Partitions, BrokerDefault)
	defaultTo(&c.Replicas, BrokerDefault)
	defaultTo(&c.Logger, slog.Default())
	if c.Key == nil {
		c.Key = func(_ string, m *message.Message) []byte { return adapter.Key(m) }
	}
	if len(c.Seeds) == 0 {
		return c, errors.New("kafka: Config.Seeds is empty: want the address of at least one broker")
	}
	for i, s := range c.Seeds {
		if s == "" {
			return c, fmt.Errorf("kafka: Config.Seeds[%d] is empty", i)
		}
	}
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"Window", c.Window, 1},
		{"KeyBudget", c.KeyBudget, 0},
		{"MaxSpan", c.MaxSpan, 0},
		{"BufferRecords", c.BufferRecords, 0},
		{"BufferBytes", c.BufferBytes, 1},
	} {
		if f.value < f.least {
			return c, fmt.Errorf("kafka: Config.%s is %d, want at least %d", f.name, f.value, f.least)
		}
	}
	if c.Window > MaxWindow {
		return c, fmt.Errorf("kafka: Config.Window is %d, want at most %d", c.Window, MaxWindow)
	}
	if c.Partitions < 1 && c.Partitions != BrokerDefault {
		return c, fmt.Errorf("kafka: Config.Partitions is %d, want at least 1, or BrokerDefault", c.Partitions)
	}
	if c.Replicas < 1 && c.Replicas != BrokerDefault {
		return c, fmt.Errorf("kafka: Config.Replicas is %d, want at least 1, or BrokerDefault", c.Replicas)
	}
	if c.RevokeWait < 0 && c.RevokeWait != NoWait {
		return c, fmt.Errorf("kafka: Config.RevokeWait is %v, want more than 0, or NoWait", c.RevokeWait)
	}
	c.RevokeWait = max(c.RevokeWait, 0)
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"CommitInterval", c.CommitInterval},
		{"CommitTimeout", c.CommitTimeout},
		{"CloseTimeout", c.CloseTimeout},
		{"NackDelay", c.NackDelay},
		{"PublishTimeout", c.PublishTimeout},
		{"DialTimeout", c.DialTimeout},
	} {
		if f.value < 0 {
			return c, fmt.Errorf("kafka: Config.%s is %v, want more than 0", f.name, f.value)
		}
	}
	if c.MaxNackDelay < c.NackDelay {
		return c, fmt.Errorf("kafka: Config.MaxNackDelay is %v, less than NackDelay, %v", c.MaxNackDelay, c.NackDelay)
	}
	return c, nil
}

// limits are the bounds of one subscription.
type limits struct {
	window, key, span, records, bytes int
}

func (c *Config) limits(window int) limits {
	l := limits{window: window, key: c.KeyBudget, span: c.MaxSpan, records: c.BufferRecords, bytes: c.BufferBytes}
	defaultTo(&l.key, max(DefaultMinKeyBudget, window/8))
	l.key = min(l.key, window)
	defaultTo(&l.span, max(DefaultMaxSpan, 2*window))
	defaultTo(&l.records, max(DefaultBufferRecords, window))
	return l
}

// nackDelay is the pause before the delivery after n ones that were given back.
func (c *Config) nackDelay(n int) time.Duration {
	d := c.NackDelay
	for ; n > 1 && d < c.MaxNackDelay; n-- {
		d *= 2
	}
	return min(d, c.MaxNackDelay)
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

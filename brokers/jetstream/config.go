package jetstream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The defaults of [Config].
const (
	DefaultWindow         = 256
	DefaultAckWait        = 30 * time.Second
	DefaultNackDelay      = 100 * time.Millisecond
	DefaultMaxNackDelay   = 10 * time.Second
	DefaultMaxAge         = 7 * 24 * time.Hour
	DefaultPublishTimeout = 10 * time.Second
	DefaultCloseTimeout   = 3 * time.Second

	// MinAckWait is the least AckWait: below it the heartbeats would be a load of their own.
	MinAckWait = 300 * time.Millisecond

	// Forever is a MaxAge without limit.
	Forever time.Duration = -1
)

// Config configures a [Broker]. One of URL, Conn and Server is needed.
type Config struct {
	// URL is the address of a server, or of several with commas between.
	URL string

	// Conn is a connection of the application. The broker does not close it.
	Conn *nats.Conn

	// Server is a server in this process, see the sub-package embedded. The broker does not stop it.
	Server nats.InProcessConnProvider

	// Options are added to the broker's own when it connects to URL or Server. It reconnects for
	// ever unless they say otherwise.
	Options []nats.Option

	// Domain is the JetStream domain. Default: the server's own.
	Domain string

	// CheckOnly makes the broker use streams and durables that are there, and fail with a clear error where one
	// is missing or unfit, instead of making or changing any.
	CheckOnly bool

	// Declare changes the configuration of a stream before the broker makes it: storage, placement,
	// limits. Streams that are there are not changed. It is given what the fields here say.
	Declare func(topic string, stream *jetstream.StreamConfig)

	// Replicas is the number of copies of each stream that the broker makes. Default 1.
	Replicas int

	// MaxAge is how long a stream that the broker makes keeps a message, acked or not. Default 7
	// days; Forever for no limit. Say here also how long streams keep it that others make: Capabilities tells this, and
	// a subscription to a stream with another limit logs a warning.
	MaxAge time.Duration

	// MaxBytes bounds a stream that the broker makes; a Publish beyond it fails, nothing is dropped. Default: no
	// bound but the server's.
	MaxBytes int64

	// Window is how many deliveries a subscription holds un-acked at once when Subscription.Window is zero.
	// Default 256.
	Window int

	// MaxAckPending bounds the un-acked deliveries of one consumer over all its processes. Default: the window of the
	// subscription; set it to the window times the number of processes to let them all work at once.
	MaxAckPending int

	// AckWait is how long the server waits for a sign of life before it delivers again. A delivery that is held gets
	// a heartbeat three times in it, so it bounds how long a dead process's deliveries stay with
	// it, not how long a handler may take. Default 30 s, at least 300 ms.
	AckWait time.Duration

	// DoubleAck waits for the server's confirmation of each ack, and repeats the ack until it comes. The
	// delivery counts in the window until then. Without it an ack that is lost on the way is a redelivery.
	DoubleAck bool

	// NackDelay is the delay before a message that was nacked on its first delivery comes again; each further
	// delivery doubles it, up to MaxNackDelay. Defaults 100 ms and 10 s.
	NackDelay, MaxNackDelay time.Duration

	// MsgID gives the Nats-Msg-Id of a message that is published. Within the stream's duplicate window the
	// server drops all but the first message of one id. Default nil: no id.
	MsgID func(topic string, m *message.Message) string

	// PublishTimeout bounds the wait for the server's confirmation of a message. Default 10 s.
	PublishTimeout time.Duration

	// CloseTimeout bounds how long the end of a subscription waits for the server to take the last acks. It has to fit into the time
	// that whoever closes it has, 5 s for the runtime. Default 3 s.
	CloseTimeout time.Duration

	// Logger gets what no caller can be told: lost connections, acks that could not be sent.
	// Default slog.Default().
	Logger *slog.Logger
}

// withDefaults returns c with defaults for zero fields, or an error that names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	c.Replicas = cmp.Or(c.Replicas, 1)
	c.MaxAge = cmp.Or(c.MaxAge, DefaultMaxAge)
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.AckWait = cmp.Or(c.AckWait, DefaultAckWait)
	c.NackDelay = cmp.Or(c.NackDelay, DefaultNackDelay)
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, max(DefaultMaxNackDelay, c.NackDelay))
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	sources := 0
	for _, given := range []bool{c.URL != "", c.Conn != nil, c.Server != nil} {
		if given {
			sources++
		}
	}
	switch {
	case sources == 0:
		return c, errors.New("jetstream: Config needs one of URL, Conn and Server")
	case sources > 1:
		return c, errors.New("jetstream: Config has more than one of URL, Conn and Server")
	case c.Conn != nil && len(c.Options) > 0:
		return c, errors.New("jetstream: Config.Options have no effect on Config.Conn, which is connected already")
	case c.Replicas < 1 || c.Replicas > 5:
		return c, fmt.Errorf("jetstream: Config.Replicas is %d, want 1 to 5", c.Replicas)
	case c.MaxAge < Forever:
		return c, fmt.Errorf("jetstream: Config.MaxAge is %v, want more than 0, or Forever", c.MaxAge)
	case c.MaxBytes < 0:
		return c, fmt.Errorf("jetstream: Config.MaxBytes is %d, want at least 0", c.MaxBytes)
	case c.Window < 1:
		return c, fmt.Errorf("jetstream: Config.Window is %d, want at least 1", c.Window)
	case c.MaxAckPending < 0:
		return c, fmt.Errorf("jetstream: Config.MaxAckPending is %d, want at least 0", c.MaxAckPending)
	case c.AckWait < MinAckWait:
		return c, fmt.Errorf("jetstream: Config.AckWait is %v, want at least %v", c.AckWait, MinAckWait)
	case c.NackDelay < 0:
		return c, fmt.Errorf("jetstream: Config.NackDelay is %v, want more than 0", c.NackDelay)
	case c.MaxNackDelay < c.NackDelay:
		return c, fmt.Errorf("jetstream: Config.MaxNackDelay is %v, less than NackDelay, %v", c.MaxNackDelay, c.NackDelay)
	case c.PublishTimeout < 0:
		return c, fmt.Errorf("jetstream: Config.PublishTimeout is %v, want more than 0", c.PublishTimeout)
	case c.CloseTimeout < 0:
		return c, fmt.Errorf("jetstream: Config.CloseTimeout is %v, want more than 0", c.CloseTimeout)
	}
	return c, nil
}

package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// The defaults of [Config].
const (
	DefaultWindow         = 256
	DefaultLeaseTTL       = 6 * time.Second
	DefaultPollMin        = 25 * time.Millisecond
	DefaultPollMax        = time.Second
	DefaultNackDelay      = 100 * time.Millisecond
	DefaultMaxNackDelay   = 10 * time.Second
	DefaultMaxBacklog     = 10_000_000
	DefaultPublishTimeout = 10 * time.Second
	DefaultCloseTimeout   = 3 * time.Second

	// MinLeaseTTL is the least [Config.LeaseTTL].
	MinLeaseTTL = 300 * time.Millisecond

	// Unlimited is no [Config.MaxBacklog].
	Unlimited = -1
)

// Config configures a [Broker]. Zero means the default.
type Config struct {
	// Pool is the database. The caller closes it, after the broker. Statements are short and take a connection
	// each; a subscription has at most three at work. Needed.
	Pool *pgxpool.Pool

	// Schema holds the tables; default: the first of the search path. Prefix begins their names; default "headrace_".
	// Both as in stores/schema.
	Schema, Prefix string

	// Key gives the key by which a message is ordered and which consumers see as the delivery's key. nil
	// means no key: such a message keeps no order. It must not change the message, nor afterwards what it returned.
	// Default: the event's key (event.KeyOf), else none.
	Key func(*message.Message) []byte

	// Window is how many deliveries a subscription holds un-acked at once when Subscription.Window is zero.
	// Default 256.
	Window int

	// LeaseTTL is how long the buckets of a subscription that was not heard of stay with it: the time it takes
	// another one to go on after a process died or hangs. It does not bound how long a handler may take, for a live
	// subscription prolongs its leases. Default 6 s, at least 300 ms.
	LeaseTTL time.Duration

	// PollMin and PollMax bound the time between two looks into the table: PollMin after messages were
	// found, doubling while there are none. Defaults 25 ms and 1 s.
	PollMin, PollMax time.Duration

	// NoNotify sends no NOTIFY and does not listen: other processes are found by polling alone. LISTEN takes a
	// connection of its own beside the pool, one for each broker with subscriptions.
	NoNotify bool

	// NackDelay is the delay before a message that was nacked on its first delivery comes again; each further
	// delivery doubles it, up to MaxNackDelay. Defaults 100 ms and 10 s. Later messages of its key wait for it.
	NackDelay, MaxNackDelay time.Duration

	// MaxBacklog bounds the messages that a consumer has not acked, and those that wait for a first consumer: when
	// there are more, Publish to the topic fails. It is looked at every few seconds, so it can be exceeded by what is
	// published meanwhile. Default 10,000,000; Unlimited for none.
	MaxBacklog int

	// PublishTimeout bounds a Publish outside of the caller's transactions. Default 10 s.
	PublishTimeout time.Duration

	// CloseTimeout bounds how long the end of a subscription tries to delete what was acked. It has to fit into the time
	// that whoever closes it has, 5 s for the runtime. Default 3 s.
	CloseTimeout time.Duration

	// Logger gets what no caller can be told: that the database cannot be reached, and is back. Default
	// slog.Default().
	Logger *slog.Logger
}

// withDefaults returns c with defaults for zero fields, or an error that names the field that is wrong.
func (c Config) withDefaults() (Config, error) {
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.LeaseTTL = cmp.Or(c.LeaseTTL, DefaultLeaseTTL)
	c.PollMin = cmp.Or(c.PollMin, DefaultPollMin)
	c.PollMax = cmp.Or(c.PollMax, max(DefaultPollMax, c.PollMin))
	c.NackDelay = cmp.Or(c.NackDelay, DefaultNackDelay)
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, max(DefaultMaxNackDelay, c.NackDelay))
	c.MaxBacklog = cmp.Or(c.MaxBacklog, DefaultMaxBacklog)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Key == nil {
		c.Key = adapter.Key
	}
	switch {
	case c.Pool == nil:
		return c, errors.New("postgres: Config.Pool is nil")
	case c.Window < 1:
		return c, fmt.Errorf("postgres: Config.Window is %d, want at least 1", c.Window)
	case c.LeaseTTL < MinLeaseTTL:
		return c, fmt.Errorf("postgres: Config.LeaseTTL is %v, want at least %v", c.LeaseTTL, MinLeaseTTL)
	case c.PollMin < time.Millisecond:
		return c, fmt.Errorf("postgres: Config.PollMin is %v, want at least 1ms", c.PollMin)
	case c.PollMax < c.PollMin:
		return c, fmt.Errorf("postgres: Config.PollMax is %v, less than PollMin, %v", c.PollMax, c.PollMin)
	case c.NackDelay < 0:
		return c, fmt.Errorf("postgres: Config.NackDelay is %v, want more than 0", c.NackDelay)
	case c.MaxNackDelay < c.NackDelay:
		return c, fmt.Errorf("postgres: Config.MaxNackDelay is %v, less than NackDelay, %v", c.MaxNackDelay, c.NackDelay)
	case c.MaxBacklog < Unlimited:
		return c, fmt.Errorf("postgres: Config.MaxBacklog is %d, want more than 0, or Unlimited", c.MaxBacklog)
	case c.PublishTimeout < 0:
		return c, fmt.Errorf("postgres: Config.PublishTimeout is %v, want more than 0", c.PublishTimeout)
	case c.CloseTimeout < 0:
		return c, fmt.Errorf("postgres: Config.CloseTimeout is %v, want more than 0", c.CloseTimeout)
	}
	return c, nil
}

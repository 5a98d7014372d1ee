package redisstream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// NoTrim as Config.Retention keeps every entry for ever.
const NoTrim time.Duration = -1

// Config says how to use a server. Client is required; a zero field has the default that its comment names.
type Config struct {
	// Client is the application's. The broker does not close it. Its pool needs a connection for each
	// subscription besides those for other calls.
	Client redis.UniversalClient

	// Member names this process within each consumer group. It must be another one in each process that runs
	// at the same time, and may stay the same over restarts: then what an earlier run held comes at once.
	// Default: a new random name.
	Member string

	// Patience is how long a member may be silent before others take over what it holds. Default 15 s, at
	// least 500 ms.
	Patience time.Duration

	// ClaimInterval is how often a member looks for what others have given back or left behind. Default 500 ms.
	ClaimInterval time.Duration

	// Window is the number of un-acked deliveries of a subscription that names none. Default 1,024.
	Window int

	// NackDelay is the delay before a nacked delivery comes again. It doubles with each delivery up to
	// MaxNackDelay. Defaults 100 ms and 30 s.
	NackDelay, MaxNackDelay time.Duration

	// Block is how long one read waits for entries, and so the longest that a Close takes. It has to be less than Client's
	// ReadTimeout, which would end the wait as a failure. Default 250 ms, or half of ReadTimeout if that is less.
	Block time.Duration

	// Retention is how long an entry is kept that all groups have acked, by its id's time. Older ones are
	// trimmed every TrimInterval by each process with a subscription; see the package comment for what is
	// never trimmed. Defaults 7 days and 1 min. NoTrim: never.
	Retention, TrimInterval time.Duration

	// ForgetAfter is how long a dead member without pending entries stays listed in its group. Default 1 h.
	ForgetAfter time.Duration

	// Logger gets what nobody can be told by an error. Default slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("redisstream: Config.%s is %v: want %s", field, value, want)
	}
	limit := readTimeout(c.Client)
	switch {
	case c.Client == nil:
		return c, errors.New("redisstream: Config.Client is nil: want the application's client")
	case strings.ContainsAny(c.Member, "\x00 \t\r\n") || len(c.Member) > 128:
		return c, bad("Member", fmt.Sprintf("%q", c.Member), "at most 128 bytes without spaces")
	case c.Patience != 0 && c.Patience < minPatience:
		return c, bad("Patience", c.Patience, fmt.Sprintf("at least %v", minPatience))
	case c.ClaimInterval < 0:
		return c, bad("ClaimInterval", c.ClaimInterval, "a positive duration")
	case c.Window < 0:
		return c, bad("Window", c.Window, "a positive number")
	case c.NackDelay < 0:
		return c, bad("NackDelay", c.NackDelay, "a positive duration")
	case c.MaxNackDelay < 0 || c.MaxNackDelay != 0 && c.MaxNackDelay < c.NackDelay:
		return c, bad("MaxNackDelay", c.MaxNackDelay, fmt.Sprintf("at least NackDelay, %v", c.NackDelay))
	case c.Block < 0 || c.Block != 0 && c.Block < time.Millisecond:
		return c, bad("Block", c.Block, "at least 1 ms")
	case limit > 0 && c.Block >= limit:
		return c, bad("Block", c.Block, fmt.Sprintf("less than the ReadTimeout of Config.Client, %v", limit))
	case c.Retention < 0 && c.Retention != NoTrim:
		return c, bad("Retention", c.Retention, "a positive duration, or NoTrim")
	case c.TrimInterval < 0:
		return c, bad("TrimInterval", c.TrimInterval, "a positive duration")
	case c.ForgetAfter < 0:
		return c, bad("ForgetAfter", c.ForgetAfter, "a positive duration")
	}
	c.Patience = cmp.Or(c.Patience, 15*time.Second)
	c.ClaimInterval = cmp.Or(c.ClaimInterval, 500*time.Millisecond)
	c.Window = cmp.Or(c.Window, 1024)
	c.NackDelay = cmp.Or(c.NackDelay, min(100*time.Millisecond, cmp.Or(c.MaxNackDelay, time.Hour)))
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, max(30*time.Second, c.NackDelay))
	if c.Block == 0 {
		c.Block = 250 * time.Millisecond
		if limit > 0 {
			c.Block = min(c.Block, limit/2)
		}
	}
	c.Retention = cmp.Or(c.Retention, 7*24*time.Hour)
	c.TrimInterval = cmp.Or(c.TrimInterval, time.Minute)
	c.ForgetAfter = cmp.Or(c.ForgetAfter, time.Hour)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c, nil
}

// readTimeout is how long client waits for an answer; 0 or less: for ever, or it does not tell.
func readTimeout(client redis.UniversalClient) time.Duration {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ReadTimeout
	case *redis.ClusterClient:
		return c.Options().ReadTimeout
	case *redis.Ring:
		return c.Options().ReadTimeout
	}
	return 0
}

const minPatience = 500 * time.Millisecond

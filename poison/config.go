package poison

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
)

// NoStack as Config.MaxStackBytes leaves stacks out.
const NoStack = -1

// Suffix is what Config.Topic adds to a topic's name by default.
const Suffix = ".DLT"

// minHeaderBytes is room for what no dead letter can do without.
const minHeaderBytes = 1 << 10

// Config says where dead letters go. Consumer and Publisher are required.
type Config struct {
	// Consumer is the stable name of the consumer whose messages these are. A redrive goes to it alone.
	Consumer string

	// Publisher writes the dead letters. Its Publish must return nil only when the message is stored.
	// Poison does not close it. The context of the messages that it gets has a deadline (WriteTimeout).
	Publisher message.Publisher

	// Topic names the dead-letter topic of a topic. It must always give the same answer.
	// Default: the topic and Suffix.
	Topic func(topic string) string

	// Classifier judges errors that no Retry has judged; nil is the default one.
	Classifier *classify.Classifier

	// MaxMessageBytes bounds the error's text, default 1 KiB. MaxStackBytes bounds a panic's stack,
	// default 4 KiB; NoStack leaves it out.
	MaxMessageBytes, MaxStackBytes int

	// MaxHeaderBytes bounds all metadata of a dead letter, keys and values: what the broker can take.
	// Default 32 KiB, at least 1 KiB.
	MaxHeaderBytes int

	// Refer allows a dead letter without the original. It is written if the publisher refuses every form
	// with it for good, as too large, and the delivery tells its offset. Set it only if the broker keeps
	// messages after they were acked. Without it such a delivery is held.
	Refer bool

	// WriteTimeout is the time for one try to write, default 10 s. A publisher that does not obey its
	// message's context is waited for.
	WriteTimeout time.Duration

	// WriteDelay is the delay after the first failed try, default 100 ms; it doubles, with jitter, up to
	// MaxWriteDelay, default 30 s. Tries go on for as long as the message's context does.
	WriteDelay, MaxWriteDelay time.Duration

	// Park, if set, is told of each dead letter that was stored, before the delivery may be acked: parking.Parker's
	// Park keeps the order of its key. While it returns an error the delivery is held, and Park called again,
	// as if the dead letter could not be written.
	Park func(context.Context, Record) error

	// OnStored is told of each dead letter that was stored, OnWriteError of each try that failed. They
	// run in the message's goroutine, concurrently for different messages, and must not panic.
	OnStored     func(context.Context, Record)
	OnWriteError func(context.Context, error)

	// Logger is told of tries that failed. Default slog.Default().
	Logger *slog.Logger

	// ReadOnly says that nothing within writes to the message, see middleware.RetryConfig.
	ReadOnly bool
}

func (c Config) validate() error {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("poison.Config.%s is %v: want %s", field, value, want)
	}
	switch {
	case c.Consumer == "":
		return errors.New(`poison.Config.Consumer is "": want the consumer's stable name`)
	case !isClean(c.Consumer):
		return bad("Consumer", fmt.Sprintf("%q", c.Consumer), "at most 255 bytes of printable text")
	case c.Publisher == nil:
		return errors.New("poison.Config.Publisher is nil: want the publisher that writes the dead letters")
	case c.MaxMessageBytes < 0:
		return bad("MaxMessageBytes", c.MaxMessageBytes, "a positive number, or 0 for the default")
	case c.MaxStackBytes < 0 && c.MaxStackBytes != NoStack:
		return bad("MaxStackBytes", c.MaxStackBytes, "a positive number, 0 for the default, or NoStack")
	case c.MaxHeaderBytes != 0 && c.MaxHeaderBytes < minHeaderBytes:
		return bad("MaxHeaderBytes", c.MaxHeaderBytes, fmt.Sprintf("at least %d, or 0 for the default", minHeaderBytes))
	case c.WriteTimeout < 0:
		return bad("WriteTimeout", c.WriteTimeout, "a positive duration, or 0 for the default")
	case c.WriteDelay < 0:
		return bad("WriteDelay", c.WriteDelay, "a positive duration, or 0 for the default")
	case c.MaxWriteDelay < 0:
		return bad("MaxWriteDelay", c.MaxWriteDelay, "a positive duration, or 0 for the default")
	case c.MaxWriteDelay != 0 && c.MaxWriteDelay < c.WriteDelay:
		return bad("MaxWriteDelay", c.MaxWriteDelay, fmt.Sprintf("at least WriteDelay, %v", c.WriteDelay))
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.MaxMessageBytes = or(c.MaxMessageBytes, 1<<10)
	c.MaxStackBytes = max(or(c.MaxStackBytes, 4<<10), 0)
	c.MaxHeaderBytes = or(c.MaxHeaderBytes, 32<<10)
	c.WriteTimeout = or(c.WriteTimeout, 10*time.Second)
	c.WriteDelay = or(c.WriteDelay, min(100*time.Millisecond, or(c.MaxWriteDelay, time.Hour)))
	c.MaxWriteDelay = or(c.MaxWriteDelay, max(30*time.Second, c.WriteDelay))
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// or returns v, or what it defaults to when it is zero.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

package ordering

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The defaults of [Config]. The two times together stay below the CloseTimeout of a Watermill router,
// 30 s by default, so that Router.Close waits for handlers that obey their context.
const (
	DefaultWindow       = 1024
	DefaultConcurrency  = 64
	DefaultDrainTimeout = 20 * time.Second
	DefaultCancelGrace  = 5 * time.Second

	// MaxWindow is the largest Window.
	MaxWindow = 1 << 20
)

// Config describes an [Intake]. Only Consumer must be set.
type Config struct {
	// Consumer is the stable name of the consumer: the scope of its inbox.
	Consumer string

	// Window is the most deliveries that a subscription holds un-acked, running and waiting together.
	// No more are read from the broker until some are settled. Default 1024, at most MaxWindow.
	Window int

	// Concurrency is the most handlers that run at once, over all subscriptions of the intake. One that
	// waits to be tried again does not count. At most Window. Default 64, or Window if that is less.
	Concurrency int

	// Key tells what a message is ordered by; see DefaultKey, the default, for what "" means. It gets
	// the broker's message and must not change it. It runs in the goroutine that reads from the
	// broker, so it must be quick. If it panics, that is logged, and DefaultKey decides.
	Key func(*message.Message) string

	// Successors lets the goroutine that a router started for one delivery go on with the next that may run, if the first
	// ended without an error and without messages to publish: a new goroutine for each costs as much as all the rest. A
	// router sees only the first of them, and what it logs or counts is of that one.
	Successors bool

	// DrainTimeout is how long running handlers get to finish when the router is closed or the context
	// of its Run ends without a call of Drain. Their contexts are cancelled then. Default 20 s.
	DrainTimeout time.Duration

	// CancelGrace is how long to wait for handlers to return after their contexts were cancelled, and
	// for the broker's subscriber to close its channel. Default 5 s.
	CancelGrace time.Duration

	// Logger gets the errors that nobody is there to take: a panic of Key, and a drain that failed
	// after it began because the context of Router.Run ended. Default slog.Default.
	Logger *slog.Logger
}

// withDefaults checks c and fills in its zero fields.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Consumer == "":
		return c, errors.New("ordering: Config.Consumer is empty: the consumer needs a stable name")
	case c.Window < 0 || c.Window > MaxWindow:
		return c, fmt.Errorf("ordering: Config.Window is %d: want 1 to %d, or 0 for the default", c.Window, MaxWindow)
	case c.Concurrency < 0:
		return c, fmt.Errorf("ordering: Config.Concurrency is %d: want 1 or more, or 0 for the default", c.Concurrency)
	case c.DrainTimeout < 0:
		return c, fmt.Errorf("ordering: Config.DrainTimeout is %v: want a positive duration, or 0 for the default", c.DrainTimeout)
	case c.CancelGrace < 0:
		return c, fmt.Errorf("ordering: Config.CancelGrace is %v: want a positive duration, or 0 for the default", c.CancelGrace)
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Concurrency == 0 {
		c.Concurrency = min(DefaultConcurrency, c.Window)
	}
	if c.Concurrency > c.Window {
		return c, fmt.Errorf("ordering: Config.Concurrency is %d and Config.Window is %d: the window must not be the smaller", c.Concurrency, c.Window)
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.CancelGrace == 0 {
		c.CancelGrace = DefaultCancelGrace
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

package runtime

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/middleware"
)

// Off is the value of a duration that switches its limit off, where the field's comment allows it.
const Off time.Duration = -1

// Config is what a runtime needs. Service and Broker are required; every other zero value is its default.
type Config struct {
	// Service names the program: the CloudEvents source of the events it publishes ("/billing") and
	// the start of its logs. Letters, digits, '.', '_' and '-'.
	Service string

	// Broker carries the messages. The caller made it and closes it, after Run has returned.
	Broker brokers.Broker

	// Policy holds the settings of all consumers; a consumer's own settings come first.
	Policy

	// DrainTimeout is how long Run waits for handlers after its context has ended; then it cancels
	// their contexts and returns an error. Relays have a limit of their own after that, RelayConfig.DrainLimit. Default 30 s.
	DrainTimeout time.Duration

	// StallAfter is the age of the oldest delivery in work from which health reports that the program
	// is alive but makes no progress. Default 5 min; Off: never.
	StallAfter time.Duration

	// InboxRetention is how long the inbox remembers a message. It must cover the oldest redelivery:
	// what the broker keeps, the longest retry, a replay of dead letters. Default 30 days; Off: for ever.
	InboxRetention time.Duration

	// DeadLetterRetention is how long after its failure a dead letter may be replayed. It only goes into
	// the check of InboxRetention. Default 7 days.
	DeadLetterRetention time.Duration

	// DeadLetterTopic names the topic for the dead letters of a topic. It must be pure.
	// Default: the topic + ".DLT".
	DeadLetterTopic func(topic string) string

	// Ledger finds out which message kills the process, and dead-letters it: see package ledger. It needs a
	// Store (store.Ledger(), or ledger/file); its Service and Logger are the runtime's by default. Default: none,
	// and such a message is delivered again for ever.
	Ledger ledger.Config

	// Logger gets the runtime's and the router's logs. Default slog.Default(). Nothing is logged at
	// Info for each message.
	Logger *slog.Logger

	// The OpenTelemetry providers and the propagator. Default: otel's globals when New is called, and
	// W3C trace context and baggage where no propagator is set.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
}

// Policy is how the messages of a consumer are treated.
type Policy struct {
	// Retry bounds the attempts; a consumer's own replaces the runtime's as a whole. Its zero value is
	// middleware's default: 5 runs within about 2 s.
	Retry middleware.RetryConfig

	// Breaker tells an outage from messages that cannot be handled, for each consumer by itself: in an outage
	// intake pauses and nothing is dead-lettered. Breaker.Off switches it off. A consumer's own replaces
	// the runtime's as a whole. Its zero value is middleware's default.
	Breaker middleware.BreakerConfig

	// MaxHold is the longest delay that an error may ask for (classify.RetryAfter) and that is waited for with
	// the key held. A longer one, up to Retry.MaxRetryAfter, is kept
	//
	//   - where the consumer parks (ConsumerConfig.Park), by its key, which is parked until then: order is kept;
	//   - else by the broker, if it can delay a single message (brokers.Delivery.Delay);
	//   - else by the outbox of the first relay of this runtime (Runtime.Relay) whose source takes messages by
	//     themselves, as those of stores/* do: the message comes back by the consumer's redrive topic;
	//   - else, or with Redrive off, nowhere: the key is held, as far as Retry and the broker's patience allow.
	//
	// Kept by the broker or the outbox, it is overtaken by later messages of its key; after
	// classify.RetryAfterInOrder the key is held instead. Attempts count over all of it, see Retry.MaxAttempts. Default
	// 1 min; Off: the key is always held.
	MaxHold time.Duration

	// Timeout limits one run of a handler; with HandleTx it starts after BEGIN. Its context ends then;
	// a handler that goes on keeps its key. Default 30 s; Off: no limit.
	Timeout time.Duration

	// Window is how many deliveries are held un-acked at once, running or waiting for their key.
	// Default 1,024, or what the broker allows.
	Window int

	// Concurrency is how many handlers run at once. Default 64, at most Window and, with HandleTx,
	// what the store's pool allows. A number above the pool's is refused.
	Concurrency int

	// Classifier judges errors. Default: classify's own rules.
	Classifier *classify.Classifier

	// Decoder turns messages into Go values: codecs and upcasters. Default: JSON, no upcasters.
	Decoder *event.Decoder

	// Middleware is the slot for the user's own Watermill middleware, first outermost. It runs in each
	// attempt, around the time limit and the handler. One that returns nil without having called the
	// handler fails the message: see classify.Drop for a way to skip one.
	Middleware []message.HandlerMiddleware

	// Unknown says what becomes of a message whose type no handler was registered for.
	// Default Ignore: acked and counted.
	Unknown Unknown

	// Redrive says whether the consumer also reads its redrive topic (poison.RedriveTopic), which brings
	// dead letters and replays to it alone. Default RedriveOn. A consumer of dead letters never does.
	Redrive Redrive
}

// Redrive is whether a consumer takes redriven messages.
type Redrive string

// The values of Policy.Redrive.
const (
	RedriveOn  Redrive = "on"
	RedriveOff Redrive = "off"
)

// Unknown is a policy for messages that no handler was registered for.
type Unknown string

// The policies for unknown types.
const (
	Ignore     Unknown = "ignore"     // ack and count
	DeadLetter Unknown = "deadletter" // a permanent failure
)

// The defaults that the fields' comments name.
const (
	defaultDrainTimeout        = 30 * time.Second
	defaultStallAfter          = 5 * time.Minute
	defaultDeadLetterRetention = 7 * 24 * time.Hour
	defaultTimeout             = 30 * time.Second
	defaultMaxHold             = time.Minute
	defaultWindow              = 1024
	defaultConcurrency         = 64
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// withDefaults returns c with every zero field set, or an error that names each bad field and its value.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("runtime.Config.%s is %v: %s", field, value, want))
	}
	if !namePattern.MatchString(c.Service) {
		bad("Service", fmt.Sprintf("%q", c.Service), "want 1 to 128 letters, digits, '.', '_' or '-'")
	}
	if isNil(c.Broker) {
		bad("Broker", "nil", "a broker is required")
	}
	for _, d := range []struct {
		field  string
		value  *time.Duration
		def    time.Duration
		offToo bool
	}{
		{"DrainTimeout", &c.DrainTimeout, defaultDrainTimeout, false},
		{"StallAfter", &c.StallAfter, defaultStallAfter, true},
		{"InboxRetention", &c.InboxRetention, inbox.DefaultRetention, true},
		{"DeadLetterRetention", &c.DeadLetterRetention, defaultDeadLetterRetention, false},
	} {
		switch {
		case *d.value == 0:
			*d.value = d.def
		case *d.value == Off && d.offToo, *d.value > 0:
		default:
			bad(d.field, *d.value, "want a duration above zero")
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if err := c.Policy.validate("runtime.Config"); err != nil {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// validate checks what can be wrong whatever the defaults are.
func (p Policy) validate(owner string) error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s.%s is %v: %s", owner, field, value, want))
	}
	if p.Timeout < 0 && p.Timeout != Off {
		bad("Timeout", p.Timeout, "want a duration above zero, or Off")
	}
	if p.MaxHold < 0 && p.MaxHold != Off {
		bad("MaxHold", p.MaxHold, "want a duration above zero, or Off")
	}
	if p.Window < 0 {
		bad("Window", p.Window, "want a number above zero")
	}
	if p.Concurrency < 0 {
		bad("Concurrency", p.Concurrency, "want a number above zero")
	}
	if p.Window > 0 && p.Concurrency > p.Window {
		bad("Concurrency", p.Concurrency, fmt.Sprintf("it is above Window, %d", p.Window))
	}
	switch p.Unknown {
	case "", Ignore, DeadLetter:
	default:
		bad("Unknown", fmt.Sprintf("%q", p.Unknown), `want "ignore" or "deadletter"`)
	}
	switch p.Redrive {
	case "", RedriveOn, RedriveOff:
	default:
		bad("Redrive", fmt.Sprintf("%q", p.Redrive), `want "on" or "off"`)
	}
	for i, m := range p.Middleware {
		if m == nil {
			bad(fmt.Sprintf("Middleware[%d]", i), "nil", "want a middleware")
		}
	}
	if err := p.Retry.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("%s.Retry: %w", owner, err))
	}
	if p.Retry.Breaker != nil {
		bad("Retry.Breaker", "set", "want nil: each consumer has its own, see Breaker")
	}
	if err := p.Breaker.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("%s.Breaker: %w", owner, err))
	}
	return errors.Join(errs...)
}

// over returns p with the fields it leaves zero taken from base. A consumer's middleware runs inside
// the runtime's.
func (p Policy) over(base Policy) Policy {
	if reflect.ValueOf(p.Retry).IsZero() {
		p.Retry = base.Retry
	}
	p.Breaker = first(p.Breaker, base.Breaker)
	p.MaxHold = first(p.MaxHold, base.MaxHold, defaultMaxHold)
	p.Timeout = first(p.Timeout, base.Timeout, defaultTimeout)
	p.Window = first(p.Window, base.Window)
	p.Concurrency = first(p.Concurrency, base.Concurrency)
	p.Unknown = first(p.Unknown, base.Unknown, Ignore)
	p.Redrive = first(p.Redrive, base.Redrive, RedriveOn)
	if p.Classifier == nil {
		p.Classifier = base.Classifier
	}
	if p.Decoder == nil {
		p.Decoder = base.Decoder
	}
	p.Middleware = append(append([]message.HandlerMiddleware(nil), base.Middleware...), p.Middleware...)
	return p
}

// isNil tells whether v is nil or holds a nil pointer.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// first returns the first value that is not zero.
func first[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

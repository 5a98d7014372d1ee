package sqs

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// AnyRedrivePolicy as Config.MinReceives accepts whatever redrive policy a queue has.
const AnyRedrivePolicy = -1

// The defaults of Config that add up when a subscription ends.
const (
	DefaultWaitTime     = 2 * time.Second
	DefaultCloseTimeout = 2 * time.Second
)

// What SQS itself sets.
const (
	maxVisibility = 12 * time.Hour      // from the receive on, however often it is prolonged
	maxWaitTime   = 20 * time.Second    // of one long poll
	maxRetention  = 14 * 24 * time.Hour // of a message in a queue
	minRetention  = time.Minute         // likewise
	maxEntries    = 10                  // of one batch, and messages of one receive
	maxAttributes = 10                  // of one message
	maxBytes      = 1 << 20             // of one message, and of one batch
	minBytes      = 1 << 10             // below it nothing of use fits
	maxPollers    = 64                  // ours: each is a connection
)

// Envelope says what the body of a message can be that has no message attributes.
type Envelope string

const (
	// EnvelopeAuto unwraps what is a complete SNS notification, and takes everything else as it is.
	EnvelopeAuto Envelope = "auto"
	// EnvelopeRaw takes everything as it is.
	EnvelopeRaw Envelope = "raw"
	// EnvelopeWrapped wants an SNS notification: anything else has a DecodeError.
	EnvelopeWrapped Envelope = "wrapped"
)

// Config says how to use queues. Client is required; a zero field has the default that its comment names.
type Config struct {
	// Client is the application's: it has the region, the endpoint and the credentials. The broker does not close it.
	// An HTTP client with a timeout of its own needs one that is longer than WaitTime.
	Client *sqs.Client

	// FIFO makes every queue, and every SNS topic, a FIFO one: messages of one key come in order. Default: standard
	// queues, without any order. A program that uses both has two brokers.
	FIFO bool

	// SNS makes each topic an SNS topic and gives each consumer a queue of its own. Default nil: a topic is one queue,
	// and has one consumer.
	SNS *SNS

	// QueueName gives the name of a queue. consumer is "" unless SNS is set. Different arguments must give different
	// names, FIFO ones must end in ".fifo". Default: see the package comment.
	QueueName func(topic, consumer string) string

	// CheckOnly makes the broker use queues and subscriptions that are there, and fail with the queue's name where one
	// is missing, instead of making any.
	CheckOnly bool

	// Declare changes what a queue is made with: encryption, tags, a redrive policy. Queues that are there are not
	// changed. It is given what the fields here say.
	Declare func(topic string, queue *sqs.CreateQueueInput)

	// MinReceives is the least maxReceiveCount of a queue's redrive policy. SQS counts every receive: those of a
	// restart, a release or a crash too. A policy that allows fewer moves messages away that nobody
	// has failed at, so Subscribe refuses it. Default 10. AnyRedrivePolicy: take what there is.
	MinReceives int

	// Retention is how long a queue that the broker makes keeps a message: whole seconds, 1 min to 14 days. Default 14 days.
	Retention time.Duration

	// Visibility is how long the deliveries of a process that died stay with it: the visibility timeout of a receive, which a
	// heartbeat prolongs while a delivery is held, to at most 12 h in all. It is no bound of a handler's
	// time. Whole seconds, 1 s to 12 h. Default 30 s. The queue's own setting has no effect.
	Visibility time.Duration

	// Window is the number of un-acked deliveries of a subscription that names none. Default 256.
	Window int

	// Pollers is the most receives of a subscription that are under way at once. A second one begins when the first
	// has brought a full batch of 10. At most 64. Default 4.
	Pollers int

	// WaitTime is how long a receive waits for messages: whole seconds, 1 s to 20 s. A subscription that ends waits for the
	// receives under way, since one that is broken off can take messages with it for the time of Visibility. So
	// it is the longest that a Close takes of an idle subscription. Default 2 s.
	WaitTime time.Duration

	// NackDelay is the delay before a message comes again that was nacked on its first delivery; each further delivery
	// doubles it up to MaxNackDelay. SQS counts in seconds: whole seconds, 1 s to 12 h. Defaults 1 s and 5 min.
	NackDelay, MaxNackDelay time.Duration

	// Envelope says what to do with SNS notifications. Default EnvelopeAuto.
	Envelope Envelope

	// Key gives the key of a message, by which FIFO queues order, or nil: then no other message is ordered with it. It
	// is asked when a message is published and again when it arrives, must not change the message, and must not panic. Default: the
	// event's key (event.KeyOf), else none.
	Key func(*message.Message) []byte

	// DeduplicationID gives the MessageDeduplicationId of a message for a FIFO queue; "" is none. For five minutes SQS drops
	// whatever else has the same one, and says that it was stored: see the package comment. Default nil: only
	// the repeats of one call of Publish are dropped.
	DeduplicationID func(topic string, m *message.Message) string

	// MaxMessageBytes bounds a message with its attributes: what the queues allow. 1 KiB to 1 MiB. Default 256 KiB.
	MaxMessageBytes int

	// CloseTimeout bounds how long a subscription waits for some acks or returns to be taken, and how long beyond WaitTime a receive
	// may take. All of its end takes no longer than WaitTime and CloseTimeout together, which has to fit into the time that
	// whoever closes it has, 5 s for the runtime. What could not be given back by then comes again when its Visibility ends.
	// Default 2 s.
	CloseTimeout time.Duration

	// Logger gets what nobody can be told by an error. Default slog.Default().
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if c.Client == nil {
		return c, errors.New("sqs: Config.Client is nil: want the application's client")
	}
	c.MinReceives = cmp.Or(c.MinReceives, 10)
	c.Retention = cmp.Or(c.Retention, maxRetention)
	c.Visibility = cmp.Or(c.Visibility, 30*time.Second)
	c.Window = cmp.Or(c.Window, 256)
	c.Pollers = cmp.Or(c.Pollers, 4)
	c.WaitTime = cmp.Or(c.WaitTime, DefaultWaitTime)
	c.NackDelay = cmp.Or(c.NackDelay, time.Second)
	c.MaxNackDelay = cmp.Or(c.MaxNackDelay, max(5*time.Minute, c.NackDelay))
	c.Envelope = cmp.Or(c.Envelope, EnvelopeAuto)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 256<<10)
	c.CloseTimeout = cmp.Or(c.CloseTimeout, DefaultCloseTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.QueueName == nil {
		c.QueueName = func(topic, consumer string) string { return queueName(topic, consumer, c.FIFO) }
	}
	if c.Key == nil {
		c.Key = adapter.Key
	}
	return c, c.check()
}

// check checks c, which has its defaults.
func (c *Config) check() error {
	for _, f := range []struct {
		field           string
		value, min, max time.Duration
	}{
		{"Retention", c.Retention, minRetention, maxRetention},
		{"Visibility", c.Visibility, time.Second, maxVisibility},
		{"WaitTime", c.WaitTime, time.Second, maxWaitTime},
		{"NackDelay", c.NackDelay, time.Second, maxVisibility},
		{"MaxNackDelay", c.MaxNackDelay, c.NackDelay, maxVisibility},
	} {
		if f.value < f.min || f.value > f.max || f.value%time.Second != 0 {
			return fmt.Errorf("sqs: Config.%s is %v: want whole seconds, %v to %v", f.field, f.value, f.min, f.max)
		}
	}
	for _, f := range []struct {
		field           string
		value, min, max int
	}{
		{"Window", c.Window, 1, 1 << 20},
		{"Pollers", c.Pollers, 1, maxPollers},
		{"MaxMessageBytes", c.MaxMessageBytes, minBytes, maxBytes},
	} {
		if f.value < f.min || f.value > f.max {
			return fmt.Errorf("sqs: Config.%s is %d: want %d to %d", f.field, f.value, f.min, f.max)
		}
	}
	switch {
	case c.MinReceives < AnyRedrivePolicy:
		return fmt.Errorf("sqs: Config.MinReceives is %d: want at least 1, or AnyRedrivePolicy", c.MinReceives)
	case c.CloseTimeout < 0:
		return fmt.Errorf("sqs: Config.CloseTimeout is %v: want a positive duration", c.CloseTimeout)
	case c.Envelope != EnvelopeAuto && c.Envelope != EnvelopeRaw && c.Envelope != EnvelopeWrapped:
		return fmt.Errorf("sqs: Config.Envelope is %q: want %q, %q or %q", c.Envelope, EnvelopeAuto, EnvelopeRaw, EnvelopeWrapped)
	case c.SNS == nil:
		return nil
	case c.SNS.Client == nil:
		return errors.New("sqs: Config.SNS.Client is nil: want the application's client")
	case c.SNS.TopicARN == nil && c.CheckOnly:
		return errors.New("sqs: Config.SNS.TopicARN is nil: with CheckOnly the topics' ARNs have to be given")
	}
	return nil
}

// seconds is d as SQS takes it, rounded up.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

package poison

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v4"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// ErrDeadLetterTopic says that a consumer reads the topic that its own dead letters go to, or one that
// holds nothing but dead letters: one that fails there would be dead-lettered for ever.
var ErrDeadLetterTopic = errors.New("the topic is a dead-letter topic")

// Poison dead-letters the messages of one consumer. It is safe for concurrent use.
type Poison struct {
	config Config
	topic  func(string) string
	books  books
}

// New returns a Poison. Its error names the first field of c that makes no sense, and its value.
func New(c Config) (*Poison, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	p := &Poison{config: c.withDefaults(), topic: c.Topic}
	if p.topic == nil {
		p.topic = func(topic string) string { return topic + Suffix }
	}
	return p, nil
}

// Check tells whether the dead letters of topic have a place to go. The error wraps [ErrDeadLetterTopic]
// if topic is itself a dead-letter topic: by its name under the default Config.Topic, or because
// Config.Topic gives the topic itself. Call it when the consumer is wired.
func (p *Poison) Check(topic string) error {
	dead := p.topic(topic)
	switch {
	case topic == "":
		return fmt.Errorf(`poison: consumer %s: the topic is "": nothing to name its dead-letter topic by`, p.config.Consumer)
	case dead == "":
		return fmt.Errorf(`poison: consumer %s: Config.Topic gave "" for %q`, p.config.Consumer, topic)
	case dead == topic, p.config.Topic == nil && strings.HasSuffix(topic, Suffix):
		return fmt.Errorf("poison: consumer %s cannot dead-letter the messages of %q: %w; redrive its messages, or set Config.Topic",
			p.config.Consumer, topic, ErrDeadLetterTopic)
	}
	return nil
}

// Middleware is a Watermill message.HandlerMiddleware. Put it outside Retry; it then reads what Retry gave up
// on, and else judges errors itself, which dead-letters those whose verdict is Poison and returns the
// others.
//
// When it has stored a dead letter it returns no messages and no error: the original may be acked, and what
// the failed handler meant to publish is dropped. While it cannot store it, it blocks, and holds the
// message's lane. When the message's context ends it returns the error, marked by classify.Stop: the
// message is not to be acked, and is no dead letter.
//
// A message that comes from a dead-letter topic is not dead-lettered again: its error is returned, wrapped
// with [ErrDeadLetterTopic].
func (p *Poison) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		f := flight.Ensure(msg)
		ctx := msg.Context()
		kept := !p.config.ReadOnly && f.Keep(msg)
		out, err := h(msg)
		if err != nil {
			f.Restore(msg)
			msg.SetContext(ctx)
			out, err = nil, p.failed(ctx, f, msg, err)
		}
		// Not deferred, see middleware.Retry.
		if kept {
			f.Forget()
		}
		return out, err
	}
}

// failed does what is to be done about err. It returns nil if the dead letter was stored.
func (p *Poison) failed(ctx context.Context, f *flight.Flight, msg *message.Message, err error) error {
	if ctx.Err() != nil {
		return classify.Stop(err)
	}
	fail, ok := p.verdict(f, err)
	if !ok {
		return err
	}
	topic := topicOf(ctx, f.Topic)
	if own := topicOf(ctx, f.Delivery.Topic); p.Check(topic) == nil && own != "" {
		topic = own // the subscription's may be a pattern
	}
	if why := p.Check(topic); why != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	// Config.Topic may send the dead letters of many topics to one, which Check cannot see from its name.
	if from := msg.Metadata[MetaTopic]; from != "" && p.topic(from) == topic {
		return fmt.Errorf("poison: consumer %s: message of %q was dead-lettered from %q before: %w: %w",
			p.config.Consumer, topic, from, ErrDeadLetterTopic, err)
	}
	r := p.record(ctx, f, msg, fail)
	if why := p.store(ctx, f, &r); why != nil {
		return classify.Stop(fmt.Errorf("%w; it was dead-lettered for: %w", why, err))
	}
	if why := p.park(ctx, f, r); why != nil {
		return classify.Stop(fmt.Errorf("%w; it was dead-lettered for: %w", why, err))
	}
	flight.Give(ctx, flight.DeadLettered)
	p.books.stored()
	if p.config.OnStored != nil {
		p.config.OnStored(ctx, r)
	}
	return nil
}

// verdict tells whether err is a reason to dead-letter, and what is known of the failure.
func (p *Poison) verdict(f *flight.Flight, err error) (*middleware.GaveUpError, bool) {
	if fail, ok := errors.AsType[*middleware.GaveUpError](err); ok {
		return fail, fail.Verdict != classify.VerdictDrop && fail.Verdict != classify.VerdictStop
	}
	if _, ok := errors.AsType[*middleware.DelayedError](err); ok {
		return nil, false // it was judged, maybe by another classifier
	}
	result := p.config.Classifier.Classify(err)
	now := time.Now()
	return &middleware.GaveUpError{
		Verdict: result.Verdict, ErrorType: result.ErrorType,
		Attempts: max(f.Attempt, 1), FirstFailure: now, LastFailure: now, Err: err,
	}, result.Verdict == classify.VerdictPoison
}

// slimFrom is the try from which on a smaller dead letter is written when the whole one is refused: it may be
// its size, which no publisher's error tells in a common way.
const slimFrom = 3

// store writes r until it is stored. It returns an error only when ctx has ended.
func (p *Poison) store(ctx context.Context, f *flight.Flight, r *Record) error {
	topic := p.topic(r.Topic)
	var steps *backoff.ExponentialBackOff
	for try := 1; ; try++ {
		err := p.write(ctx, topic, r)
		if err != nil && try >= slimFrom {
			slim := *r
			slim.Stack, slim.Error = "", cut(r.Error, slimError)
			if err = p.write(ctx, topic, &slim); err != nil && p.mayRefer(r, err) {
				slim.Reference = true
				err = p.write(ctx, topic, &slim)
			}
			if err == nil {
				*r = slim
			}
		}
		if err == nil {
			if steps != nil {
				p.books.release()
			}
			return nil
		}
		err = fmt.Errorf("store dead letter %s of message %q on %s: %w", r.ID, r.UUID, topic, err)
		if steps == nil {
			steps = p.backoff()
		}
		p.books.failed(err, try == 1)
		delay := p.step(steps)
		p.config.Logger.LogAttrs(ctx, slog.LevelError, "dead letter cannot be written: its lane is held",
			slog.String("consumer", r.Consumer), slog.String("topic", topic), slog.String("id", r.ID),
			slog.Int("try", try), slog.Duration("next", delay), slog.Any("error", err))
		if p.config.OnWriteError != nil {
			p.config.OnWriteError(ctx, err)
		}
		if !f.Sleep(ctx, delay) {
			p.books.release()
			return err
		}
	}
}

// mayRefer tells whether r may be written without the original, after err.
func (p *Poison) mayRefer(r *Record, err error) bool {
	return p.config.Refer && r.Offset >= 0 && p.config.Classifier.Classify(err).Verdict == classify.VerdictPoison
}

// write makes one try. The message is a new one each time, since a publisher may change it. Its context
// outlives the original's: a write that was begun is to end with an answer.
func (p *Poison) write(ctx context.Context, topic string, r *Record) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.config.WriteTimeout)
	defer cancel()
	defer func() {
		if value := recover(); value != nil {
			err = &classify.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	msg, err := r.message(p.config.MaxHeaderBytes)
	if err != nil {
		return err
	}
	msg.SetContext(ctx)
	return p.config.Publisher.Publish(topic, msg)
}

func (p *Poison) backoff() *backoff.ExponentialBackOff {
	b := &backoff.ExponentialBackOff{
		InitialInterval:     p.config.WriteDelay,
		MaxInterval:         p.config.MaxWriteDelay,
		Multiplier:          2,
		RandomizationFactor: 0.5,
		MaxElapsedTime:      0, // never ends by itself: the message's context does
		Stop:                backoff.Stop,
		Clock:               backoff.SystemClock,
	}
	b.Reset()
	return b
}

func (p *Poison) step(b *backoff.ExponentialBackOff) time.Duration {
	if d := b.NextBackOff(); d >= 0 && d < p.config.MaxWriteDelay {
		return d
	}
	return p.config.MaxWriteDelay
}

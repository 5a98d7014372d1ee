package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// fetchMaxWait is how long a broker may wait for something to send. A partition that was paused is not asked for again
// before the fetch that is on its way has ended.
const fetchMaxWait = 250 * time.Millisecond

// metadataMinAge is the least pause between two looks at who leads what. franz-go's own, 5 s, is what a new topic or a change of
// leaders can cost.
const metadataMinAge = 500 * time.Millisecond

// common returns the options of every client, without the application's.
func (c *Config) common() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.ClientID("headrace"),
		kgo.WithLogger(logger{c.Logger}),
		kgo.MetadataMinAge(metadataMinAge),
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	return opts
}

// final returns the options of every client that override the application's.
func (c *Config) final() []kgo.Opt {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Seeds...)}
	if len(c.SASL) > 0 {
		opts = append(opts, kgo.SASL(c.SASL...))
	}
	return opts
}

// producer returns the options of the client that publishes.
func (c *Config) producer() []kgo.Opt {
	opts := append(c.common(),
		kgo.ProducerLinger(0), // whoever publishes waits
		kgo.UnknownTopicRetries(10),
		kgo.RecordDeliveryTimeout(c.PublishTimeout),
	)
	for _, o := range c.Options {
		switch o.(type) {
		case kgo.GroupOpt, kgo.ConsumerOpt:
		default:
			opts = append(opts, o)
		}
	}
	return append(append(opts, c.final()...), kgo.RequiredAcks(kgo.AllISRAcks()))
}

// consumer returns the options of the client of a subscription, without those that tie it to the group.
func (c *Config) consumer() []kgo.Opt {
	opts := append(c.common(), kgo.FetchMaxWait(fetchMaxWait))
	for _, o := range c.Options {
		if _, ok := o.(kgo.ProducerOpt); !ok {
			opts = append(opts, o)
		}
	}
	opts = append(opts, c.final()...)
	// A consumer that finds its offset gone reads all that is left: it must lose nothing.
	start := kgo.NewOffset().AtStart()
	if c.StartAtEnd {
		start = kgo.NewOffset().AtEnd()
	}
	opts = append(opts, kgo.ConsumeStartOffset(start), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if !c.ReadUncommitted {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if c.Regex {
		opts = append(opts, kgo.ConsumeRegex())
	}
	return opts
}

// Topics whose names end so have what was read before: to read it with the rest would be a circle.
const keptSuffix = `\.(DLT|REDRIVE)$`

var (
	keptName    = regexp.MustCompile(`^[a-zA-Z0-9._-]+` + keptSuffix)
	keptPattern = regexp.MustCompile(`\.(DLT|REDRIVE)\$?$`)
)

// isPattern tells whether topic is a regular expression.
func (c *Config) isPattern(topic string) bool { return c.Regex && !keptName.MatchString(topic) }

// reads returns the options to read topic.
func (c *Config) reads(topic string) []kgo.Opt {
	switch {
	case c.isPattern(topic):
		return []kgo.Opt{kgo.ConsumeTopics(topic), kgo.ConsumeExcludeTopics(keptSuffix)}
	case c.Regex:
		return []kgo.Opt{kgo.ConsumeTopics("^" + regexp.QuoteMeta(topic) + "$")}
	default:
		return []kgo.Opt{kgo.ConsumeTopics(topic)}
	}
}

// checkTimes refuses times that would get the member expelled.
func (c *Config) checkTimes(cl *kgo.Client) error {
	limit, _ := cl.OptValue(kgo.RebalanceTimeout).(time.Duration)
	if c.RevokeWait+c.CommitTimeout >= limit {
		return fmt.Errorf("kafka: Config.RevokeWait is %v and CommitTimeout is %v: together they must be below the rebalance timeout, %v (kgo.RebalanceTimeout)",
			c.RevokeWait, c.CommitTimeout, limit)
	}
	return nil
}

// logger gives franz-go's log to slog. Its own Info is one of a library: it becomes Debug.
type logger struct{ log *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	switch ctx := context.Background(); {
	case l.log.Enabled(ctx, slog.LevelDebug):
		return kgo.LogLevelInfo
	case l.log.Enabled(ctx, slog.LevelWarn):
		return kgo.LogLevelWarn
	default:
		return kgo.LogLevelError
	}
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	var to slog.Level
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelError
	case kgo.LogLevelWarn:
		to = slog.LevelWarn
	default:
		to = slog.LevelDebug
	}
	l.log.Log(context.Background(), to, "kafka: "+msg, keyvals...)
}

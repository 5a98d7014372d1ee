package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/internal/pgxschema"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/schema"
)

// ErrClosed is what errors wrap after Close.
var ErrClosed = adapter.ErrClosed

// statementTimeout bounds the statements that nobody waits for.
const statementTimeout = 5 * time.Second

// grace is how long statements that run at the end may take before they are cancelled.
const grace = time.Second

// Broker opens subscribers and publishers on one database. It is safe for concurrent use.
type Broker struct {
	config   Config
	pool     *pgxpool.Pool
	names    schema.Names
	sql      statements
	log      *slog.Logger
	keyless  atomic.Uint64 // spreads messages without a key over the buckets
	notifier *notifier
	backlogs *backlogs

	// live ends with Close. ctx, of statements, ends a moment later: to cancel one costs the pool a connection.
	live, ctx context.Context
	end, stop context.CancelFunc

	subs       adapter.Subscribers
	pubs       adapter.Publishers
	background adapter.Calls

	mu     sync.Mutex
	active map[string]map[*subscription]struct{} // by topic
}

var (
	_ brokers.Broker = (*Broker)(nil)
	_ brokers.Lagger = (*Broker)(nil)
)

// New returns a broker, or an error that names the field of config that is wrong. It does no I/O; the tables must be
// there before the first use, see [Broker.Migrate].
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	names, err := schema.NewNames(schema.Postgres, config.Schema, config.Prefix)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	b := &Broker{
		config: config,
		pool:   config.Pool,
		names:  names,
		sql:    newStatements(names),
		log:    config.Logger,
		pubs:   adapter.Publishers{System: "postgres"},
		active: make(map[string]map[*subscription]struct{}),
	}
	b.subs = adapter.Subscribers{System: "postgres", Window: config.Window, Open: b.subscribe}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.live, b.end = context.WithCancel(b.ctx)
	b.notifier = newNotifier(b)
	b.backlogs = newBacklogs(b)
	return b, nil
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		System:           "postgresql",
		Ordering:         brokers.OrderingKey,
		Patience:         b.config.LeaseTTL,
		ExtendsPatience:  true,
		CountsDeliveries: true,
		Releases:         true,
		FanOut:           true,
		MaxHeaderBytes:   MaxMetadataBytes,
	}
}

// Subscriber returns a subscriber for s. If s.Topic is given, its consumer is registered with the topic (see
// [Broker.Register]), which is I/O; an empty one allows it to subscribe to any topic.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	s, err := b.subs.Check(s)
	if err != nil {
		return nil, err
	}
	if s.Topic != "" && !b.subs.Closed() {
		ctx, cancel := context.WithTimeout(b.ctx, b.config.PublishTimeout)
		defer cancel()
		if err := b.Register(ctx, s.Topic, s.Consumer); err != nil {
			return nil, err
		}
	}
	return b.subs.New(s)
}

// Publisher returns a publisher. Its Publish stores all the messages in one transaction of its own, or, with an
// error, most likely none of them: a connection that is lost in the commit leaves it open. It blocks for one round
// trip, at most [Config.PublishTimeout], and ends with the context of the first message. Messages of one
// key keep their order within and between calls. An error that wraps [ErrInvalid] will come again with the same message.
func (b *Broker) Publisher() (message.Publisher, error) {
	return b.pubs.New(b.publish, nil)
}

// Lag returns how many messages consumer has not acked of the buckets of topic that this process owns, as counted
// in the last seconds, at most a million for each subscription.
func (b *Broker) Lag(consumer, topic string) (messages int64, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.active[topic] {
		if s.consumer != consumer {
			continue
		}
		lag := s.lag.Load()
		if lag < 0 {
			return 0, false
		}
		messages += lag
		known = true
	}
	return messages, known
}

// Wake tells the subscriptions of topic, here and in other processes, that something was committed. It does not
// block. It is a hint: messages are found without it, after [Config.PollMax] at the latest.
func (b *Broker) Wake(topic string) {
	b.wakeLocal(topic)
	b.notifier.send(topic, 1)
}

func (b *Broker) wakeLocal(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.active[topic] {
		s.wake()
	}
}

// membersChanged tells the other subscriptions of topic that the buckets may have to be shared anew.
func (b *Broker) membersChanged(topic string) {
	b.shareLocal(topic)
	b.notifier.sendShare(topic)
}

func (b *Broker) shareLocal(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.active[topic] {
		s.keeper.hurry()
	}
}

// Close ends all subscriptions and calls of Publish, and waits for them. The pool stays open. It is idempotent.
func (b *Broker) Close() error {
	err := errors.Join(b.subs.Close(), b.pubs.Close())
	b.notifier.close()
	b.end()
	late := time.AfterFunc(grace, b.stop)
	defer late.Stop()
	b.background.Close()
	b.stop()
	return err
}

// start runs f in a goroutine that Close waits for, unless the broker is closed.
func (b *Broker) start(f func()) bool {
	if b.subs.Closed() || b.background.Begin() != nil {
		return false
	}
	go func() {
		defer b.background.Done()
		f()
	}()
	return true
}

func (b *Broker) enter(s *subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.active[s.topic] == nil {
		b.active[s.topic] = make(map[*subscription]struct{})
	}
	b.active[s.topic][s] = struct{}{}
}

func (b *Broker) exit(s *subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.active[s.topic], s)
	if len(b.active[s.topic]) == 0 {
		delete(b.active, s.topic)
	}
}

// Migrate brings Headrace's tables to this program's version, as the stores do. See stores/schema.
func (b *Broker) Migrate(ctx context.Context) error { return pgxschema.Migrate(ctx, b.pool, b.names) }

// Check reports whether the tables are there in a version that this program can use. It changes nothing.
func (b *Broker) Check(ctx context.Context) error { return pgxschema.Check(ctx, b.pool, b.names) }

// explain adds what is wrong with the schema, if that is the cause of err.
func (b *Broker) explain(ctx context.Context, err error) error {
	return pgxschema.Explain(ctx, b.pool, b.names, err)
}

// buckets is how many there are.
const buckets = outbox.Buckets

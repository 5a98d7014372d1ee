package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/telemetry"
)

// What a message may have at most, in bytes.
const (
	MaxNameBytes     = 255       // of a topic or a consumer
	MaxKeyBytes      = 1024      // of a key
	MaxUUIDBytes     = 1024      // of a UUID
	MaxMetadataBytes = 256 << 10 // of metadata, keys and values together
	MaxPayloadBytes  = 64 << 20
)

// One INSERT has at most so many messages, and no more once their payloads have so many bytes.
const (
	insertRows  = 1_000
	insertBytes = 8 << 20
)

// ErrInvalid is wrapped by the errors about a message that cannot be stored. It will always be refused.
var ErrInvalid = errors.New("invalid message")

type availableAt struct{}

// WithAvailableAt returns a context for a message (message.SetContext) that is not to be delivered before t, by the
// database's clock, and up to a second later. Such a message keeps no order with others, whatever its key.
func WithAvailableAt(ctx context.Context, t time.Time) context.Context {
	return context.WithValue(ctx, availableAt{}, t)
}

// publish is what [Broker.Publisher] describes.
func (b *Broker) publish(topic string, messages []*message.Message) error {
	rows, err := b.rows(topic, messages)
	if err != nil || len(messages) == 0 {
		return err
	}
	if err := b.backlogs.check(topic); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(messages[0].Context(), b.config.PublishTimeout)
	defer cancel()
	if err := b.insertAlone(ctx, topic, rows); err != nil {
		return fmt.Errorf("postgres: publish %d messages to topic %q: %w", len(messages), topic, b.explain(ctx, err))
	}
	b.Wake(topic)
	return nil
}

// insertAlone inserts rows in a transaction of its own.
func (b *Broker) insertAlone(ctx context.Context, topic string, rows []row) error {
	if chunk(rows) == len(rows) {
		// The common case: one statement, which is a transaction.
		n, err := b.insert(ctx, b.pool, topic, rows)
		for range 3 { // a connection of the pool may have died long ago
			if !pgconn.SafeToRetry(err) || ctx.Err() != nil {
				break
			}
			n, err = b.insert(ctx, b.pool, topic, rows)
		}
		if err != nil {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return pgx.BeginFunc(ctx, b.pool, func(tx pgx.Tx) error { return b.insertAll(ctx, tx, topic, rows) })
}

// insertAll inserts all rows in order, and the topic if it is new.
func (b *Broker) insertAll(ctx context.Context, tx execer, topic string, rows []row) error {
	for len(rows) > 0 {
		n, err := b.insert(ctx, tx, topic, rows)
		if err != nil {
			return err
		}
		if n == 0 {
			if _, err := tx.Exec(ctx, b.sql.addTopic, topic); err != nil {
				return err
			}
		}
		rows = rows[n:]
	}
	return nil
}

// chunk is how many of rows go into one statement: they go to one table.
func chunk(rows []row) int {
	n, size, delayed := 0, 0, !rows[0].at.IsZero()
	for n < len(rows) && n < insertRows && size < insertBytes && !rows[n].at.IsZero() == delayed {
		size += len(rows[n].payload)
		n++
	}
	return n
}

type execer interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
}

// insert inserts the first of rows with one statement and returns how many. It is 0 if the topic is not known.
func (b *Broker) insert(ctx context.Context, e execer, topic string, rows []row) (int, error) {
	n, delayed := chunk(rows), !rows[0].at.IsZero()
	rows = rows[:n]
	numbers, keys, payloads := make([]int16, n), make([][]byte, n), make([][]byte, n)
	texts := make([]string, 2*n)
	uuids, metadata := texts[:n:n], texts[n:]
	for i := range rows {
		r := &rows[i]
		numbers[i], keys[i], uuids[i], metadata[i], payloads[i] = r.bucket, r.key, r.uuid, r.metadata, r.payload
	}
	if delayed {
		times := make([]time.Time, n)
		for i := range rows {
			times[i] = rows[i].at
		}
		tag, err := e.Exec(ctx, b.sql.publishDelayed, topic, numbers, keys, uuids, metadata, payloads, times)
		return int(tag.RowsAffected()), err
	}
	tag, err := e.Exec(ctx, b.sql.publish, topic, numbers, keys, uuids, metadata, payloads)
	if err != nil || tag.RowsAffected() == 0 {
		return 0, err
	}
	return n, nil
}

// row is a message as it is inserted. It shares the message's payload.
type row struct {
	bucket         int16
	key            []byte
	uuid, metadata string
	payload        []byte
	at             time.Time
}

func (b *Broker) rows(topic string, messages []*message.Message) ([]row, error) {
	if err := checkTopic(topic); err != nil {
		return nil, fmt.Errorf("postgres: publish to topic %.40q: %w", topic, err)
	}
	rows := make([]row, len(messages))
	for i, m := range messages {
		if err := b.row(&rows[i], m); err != nil {
			id := ""
			if m != nil {
				id = m.UUID
			}
			return nil, classify.Permanent(fmt.Errorf("postgres: publish message %.40q (%d of %d) to topic %q: %w", id, i+1, len(messages), topic, err))
		}
	}
	return rows, nil
}

func (b *Broker) row(r *row, m *message.Message) error {
	if m == nil {
		return fmt.Errorf("%w: it is nil", ErrInvalid)
	}
	r.key = b.config.Key(m)
	size := 0
	for k, v := range m.Metadata {
		size += len(k) + len(v)
	}
	for _, f := range []struct {
		name      string
		size, max int
	}{
		{"key", len(r.key), MaxKeyBytes},
		{"UUID", len(m.UUID), MaxUUIDBytes},
		{"metadata", size, MaxMetadataBytes},
		{"payload", len(m.Payload), MaxPayloadBytes},
	} {
		if f.size > f.max {
			return fmt.Errorf("%w: its %s has %d bytes, at most %d", ErrInvalid, f.name, f.size, f.max)
		}
	}
	if r.key != nil {
		r.bucket = int16(outbox.BucketOf(string(r.key)))
	} else {
		r.bucket = int16(b.keyless.Add(1) % buckets)
	}
	r.uuid, r.metadata = encode(m)
	r.payload = m.Payload
	if at, ok := m.Context().Value(availableAt{}).(time.Time); ok {
		r.at = at
	}
	return nil
}

func checkTopic(topic string) error { return checkName("topic", topic) }

func checkName(field, value string) error {
	switch {
	case value == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalid, field)
	case len(value) > MaxNameBytes:
		return fmt.Errorf("%w: %s %.40q... has %d bytes, at most %d", ErrInvalid, field, value, len(value), MaxNameBytes)
	case !utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("%w: %s %.40q is not text without NUL", ErrInvalid, field, value)
	}
	return nil
}

// TxPublisher publishes within a transaction of the caller. It is for one goroutine, like the transaction.
type TxPublisher struct {
	broker *Broker
	ctx    context.Context //nolint:containedctx // it lives as long as the transaction
	tx     pgx.Tx
	topics map[string]struct{}
}

var _ message.Publisher = (*TxPublisher)(nil)

// PublisherTx returns a publisher whose messages are committed with tx, or not at all: in a handler they are one
// with the effect and the inbox's claim, and no relay is needed. It is a Watermill publisher, so that existing code
// can publish through it.
//
// Transactions that publish with one key must be serialised by the caller, by locking what the key stands for (the
// aggregate's row) before the first Publish; then consumers get the messages in the order of the commits.
//
// The messages get, where absent, the correlation and causation ids and the trace context of ctx, which also bounds
// the statements. The caller's messages are not changed.
func (b *Broker) PublisherTx(ctx context.Context, tx pgx.Tx) *TxPublisher {
	return &TxPublisher{broker: b, ctx: ctx, tx: tx}
}

// Publish inserts the messages with one statement. After an error that does not wrap [ErrInvalid] or [ErrFull] the
// transaction must be rolled back.
func (p *TxPublisher) Publish(topic string, messages ...*message.Message) error {
	stamped := make([]*message.Message, len(messages))
	for i, m := range messages {
		if m != nil {
			c := &message.Message{UUID: m.UUID, Payload: m.Payload, Metadata: make(message.Metadata, len(m.Metadata)+4)}
			c.SetContext(m.Context())
			maps.Copy(c.Metadata, m.Metadata)
			stamp(p.ctx, c.Metadata)
			stamped[i] = c
		}
	}
	rows, err := p.broker.rows(topic, stamped)
	if err != nil || len(rows) == 0 {
		return err
	}
	if err := p.broker.backlogs.check(topic); err != nil {
		return err
	}
	if err := p.broker.insertAll(p.ctx, p.tx, topic, rows); err != nil {
		return fmt.Errorf("postgres: publish %d messages to topic %q: %w", len(messages), topic, err)
	}
	if p.topics == nil {
		p.topics = make(map[string]struct{})
	}
	p.topics[topic] = struct{}{}
	p.broker.notifier.send(topic, hints)
	return nil
}

// Wake tells the consumers of what was published, see [Broker.Wake]. Call it after the commit, if at all: without it they
// are woken a few times in the second after Publish, in the hope that the commit was meanwhile.
func (p *TxPublisher) Wake() {
	for topic := range p.topics {
		p.broker.Wake(topic)
	}
}

// Close does nothing: the transaction is the caller's.
func (p *TxPublisher) Close() error { return nil }

// stamp writes what ctx knows and metadata does not.
func stamp(ctx context.Context, metadata message.Metadata) {
	if metadata[event.MetaCorrelationID] == "" && metadata[event.MetaWatermillCorrelationID] == "" {
		if id := event.CorrelationID(ctx); id != "" {
			metadata[event.MetaCorrelationID] = id
		}
	}
	if metadata[event.MetaCausationID] == "" {
		if id := event.CausationID(ctx); id != "" {
			metadata[event.MetaCausationID] = id
		}
	}
	telemetry.Inject(ctx, metadata)
}

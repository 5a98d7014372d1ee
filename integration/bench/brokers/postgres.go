package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	stocksql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

var postgresSystem = system{"postgres", "HEADRACE_POSTGRES_URL", 60_000, []subject{
	{raw, "pgx", 1, onPostgres(rawTable{}.fill, rawTable{}.run)},
	{stock, "watermill-sql", 1, onPostgres(stockTable{}.fill, stockTable{}.run)},
	{headrace, "headrace", window, onPostgres(
		func(ctx context.Context, site pgSite, n int) error {
			broker, err := site.broker()
			if err != nil {
				return err
			}
			err = broker.Migrate(ctx)
			if err == nil {
				err = fillBroker(ctx, broker, site.topic, n)
			}
			return errors.Join(err, broker.Close())
		},
		func(ctx context.Context, l *pace.Load, site pgSite) error {
			broker, err := site.broker()
			if err != nil {
				return err
			}
			return errors.Join(onRuntime(ctx, l, site.topic, broker), broker.Close())
		})},
}}

// pgSite is where a topic is: its schema has its name.
type pgSite struct {
	pool  *pgxpool.Pool
	topic string
}

func (s pgSite) broker() (*postgres.Broker, error) {
	return postgres.New(postgres.Config{Pool: s.pool, Schema: s.topic})
}

// table is the name of a table of this topic, as it stands in a statement.
func (s pgSite) table(name string) string { return pgx.Identifier{s.topic, name}.Sanitize() }

// onPostgres makes schemas, and drops them.
func onPostgres(fill func(context.Context, pgSite, int) error, run func(context.Context, *pace.Load, pgSite) error) func(context.Context, string, int) (topic, error) {
	return func(ctx context.Context, address string, n int) (topic, error) {
		pool, err := pgxpool.New(ctx, address)
		if err != nil {
			return topic{}, err
		}
		site := pgSite{pool, topicName()}
		remove := func() error {
			defer pool.Close()
			_, err := pool.Exec(context.WithoutCancel(ctx), "DROP SCHEMA IF EXISTS "+pgx.Identifier{site.topic}.Sanitize()+" CASCADE")
			return err
		}
		_, err = pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{site.topic}.Sanitize())
		if err == nil {
			err = fill(ctx, site, n)
		}
		if err != nil {
			return topic{}, errors.Join(err, remove())
		}
		return topic{
			run:    func(ctx context.Context, l *pace.Load) error { return run(ctx, l, site) },
			remove: remove,
		}, nil
	}
}

// rawTable is a topic as somebody would write it by hand: one consumer that reads a table in the order of its ids.
type rawTable struct{}

func (rawTable) fill(ctx context.Context, site pgSite, n int) error {
	messages, offsets := site.table("messages"), site.table("offsets")
	if _, err := site.pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE %[1]s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, uuid text NOT NULL,
		key bytea, metadata jsonb NOT NULL, payload bytea NOT NULL);
		CREATE TABLE %[2]s (consumer text PRIMARY KEY, id bigint NOT NULL); INSERT INTO %[2]s VALUES ('raw', 0)`, messages, offsets)); err != nil {
		return err
	}
	return fill(ctx, rawPublisher{ctx, site}, site.topic, n)
}

// rawPublisher copies messages into the table.
type rawPublisher struct {
	ctx  context.Context //nolint:containedctx // of one call of fill
	site pgSite
}

func (p rawPublisher) Publish(topic string, messages ...*message.Message) error {
	_, err := p.site.pool.CopyFrom(p.ctx, pgx.Identifier{topic, "messages"}, []string{"uuid", "key", "metadata", "payload"},
		pgx.CopyFromSlice(len(messages), func(i int) ([]any, error) {
			m := messages[i]
			metadata, err := json.Marshal(m.Metadata)
			return []any{m.UUID, []byte(m.Metadata[event.MetaPartitionKey]), metadata, []byte(m.Payload)}, err
		}))
	return err
}

func (rawPublisher) Close() error { return nil }

func (rawTable) run(ctx context.Context, l *pace.Load, site pgSite) error {
	for ctx.Err() == nil {
		if err := pgx.BeginFunc(ctx, site.pool, func(tx pgx.Tx) error { return rawBatch(ctx, l, tx, site) }); err != nil {
			return err
		}
	}
	return nil
}

func rawBatch(ctx context.Context, l *pace.Load, tx pgx.Tx, site pgSite) error {
	var last int64
	if err := tx.QueryRow(ctx, "SELECT id FROM "+site.table("offsets")+" WHERE consumer = 'raw' FOR UPDATE").Scan(&last); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, "SELECT id, uuid, key, metadata, payload FROM "+site.table("messages")+" WHERE id > $1 ORDER BY id LIMIT $2", last, window)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			uuid                   string
			key, metadata, payload []byte
		)
		if err := rows.Scan(&last, &uuid, &key, &metadata, &payload); err != nil {
			return err
		}
		l.Handle()
	}
	if err := rows.Err(); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE "+site.table("offsets")+" SET id = $1 WHERE consumer = 'raw'", last)
	return err
}

// stockTable is a topic of watermill-sql's.
type stockTable struct{}

func (stockTable) adapters(site pgSite) (stocksql.DefaultPostgreSQLSchema, stocksql.DefaultPostgreSQLOffsetsAdapter) {
	schema := stocksql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: func(string) string { return site.table("stock") },
		GeneratePayloadType:       func(string) string { return "BYTEA" },
	}
	offsets := stocksql.DefaultPostgreSQLOffsetsAdapter{
		GenerateMessagesOffsetsTableName: func(string) string { return site.table("stock_offsets") },
	}
	return schema, offsets
}

func (s stockTable) fill(ctx context.Context, site pgSite, n int) error {
	schema, _ := s.adapters(site)
	pub, err := stocksql.NewPublisher(stocksql.BeginnerFromPgx(site.pool),
		stocksql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return errors.Join(fill(ctx, pub, site.topic, n), pub.Close())
}

func (s stockTable) run(ctx context.Context, l *pace.Load, site pgSite) error {
	schema, offsets := s.adapters(site)
	sub, err := stocksql.NewSubscriber(stocksql.BeginnerFromPgx(site.pool), stocksql.SubscriberConfig{
		ConsumerGroup: "stock", SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return onRouter(ctx, l, site.topic, sub)
}

package main

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/runtime"
)

// stockSQL is Watermill's own adapter for PostgreSQL behind the runtime, with the settings that lose no message. It
// delivers one un-acked message of a consumer at a time, in a transaction that stays open meanwhile and takes
// a connection of the pool: brokers/postgres is the one to use. closeBroker closes what the runtime does not own.
func stockSQL(ctx context.Context, url string) (broker brokers.Broker, closeBroker func(*error), err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	db := sql.BeginnerFromPgx(pool)
	schema := sql.DefaultPostgreSQLSchema{
		// The default, JSON, refuses other payloads, also those of dead letters.
		GeneratePayloadType: func(string) string { return "BYTEA" },
		// What was acked in a batch and not yet committed comes again after a crash: at most this one.
		SubscribeBatchSize: 1,
	}
	// Offsets, and not the queue schema: its ack takes the un-acked rest of the batch with it.
	offsets := sql.DefaultPostgreSQLOffsetsAdapter{}
	pub, err := sql.NewPublisher(db, sql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	closeBroker = func(err *error) {
		*err = errors.Join(*err, pub.Close())
		pool.Close()
	}
	// By default a message that is not acked in 30 s comes again while its handler still runs.
	noDeadline := time.Duration(0)
	broker, err = runtime.Watermill(runtime.WatermillConfig{
		Publisher: pub,
		Subscriber: func(s brokers.Subscription) (message.Subscriber, error) {
			return sql.NewSubscriber(db, sql.SubscriberConfig{
				ConsumerGroup:    s.Consumer,
				AckDeadline:      &noDeadline,
				PollInterval:     100 * time.Millisecond,
				RetryInterval:    time.Second,
				SchemaAdapter:    schema,
				OffsetsAdapter:   offsets,
				InitializeSchema: true,
			}, watermill.NopLogger{})
		},
		Capabilities: brokers.Capabilities{
			System: "postgresql",
			// By transaction id. That is the order of publication as long as nobody publishes in transactions that have
			// written something before.
			Ordering:   brokers.OrderingTopic,
			MaxUnacked: 1,
			FanOut:     true,
			Replays:    true,
		},
	})
	return broker, closeBroker, err
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/outbox"
)

// discard is a broker that costs nothing.
type discard struct{}

func (discard) Publish(string, ...*message.Message) error { return nil }
func (discard) Close() error                              { return nil }

// mover is one way to bring rows from a database to a publisher, and returns how many it moved per second.
type mover struct {
	name string
	run  func(ctx context.Context, d *database, pub message.Publisher, o relayOptions) (float64, error)
}

var movers = []mover{
	{"hand-written DELETE ... RETURNING 500", handWritten},
	{"outbox.Relay", ourRelay},
	{"watermill-sql forwarder, default", stock("forwarder", wsql.DefaultPostgreSQLSchema{}, wsql.DefaultPostgreSQLOffsetsAdapter{})},
	{"watermill-sql forwarder, batch 1,000", stock("forwarder", wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1_000}, wsql.DefaultPostgreSQLOffsetsAdapter{})},
	{"watermill-sql forwarder, queue, batch 1,000", stock("", wsql.PostgreSQLQueueSchema{SubscribeBatchSize: 1_000}, wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true})},
}

// benchSinks compares the movers into each sink.
func benchSinks(ctx context.Context, url string, o relayOptions) ([]relayResult, error) {
	var results []relayResult
	for _, sink := range []struct {
		name string
		open func() (message.Publisher, func(), error)
	}{
		{"discard", func() (message.Publisher, func(), error) { return discard{}, func() {}, nil }},
		{"kfake", func() (message.Publisher, func(), error) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(8, relayTopic))
			if err != nil {
				return nil, nil, err
			}
			pub, end, err := kafkaSink(cluster.ListenAddrs())
			return pub, func() { end(); cluster.Close() }, err
		}},
		{"kafka", func() (message.Publisher, func(), error) { return kafkaSink(o.Kafka) }},
	} {
		if sink.name == "kafka" && len(o.Kafka) == 0 || o.Sink != "" && sink.name != o.Sink {
			continue
		}
		subjects, samples := make([]string, len(movers)), make([][]float64, len(movers))
		for range o.Rounds {
			for i, m := range movers {
				rate, err := move(ctx, url, m, sink.open, o)
				if err != nil {
					return results, fmt.Errorf("relay into %s: %s: %w", sink.name, m.name, err)
				}
				subjects[i], samples[i] = m.name, append(samples[i], rate)
			}
		}
		results = append(results, ratios("relay", sink.name, subjects, samples)...)
	}
	return results, nil
}

func move(ctx context.Context, url string, m mover, open func() (message.Publisher, func(), error), o relayOptions) (float64, error) {
	d, err := openDatabase(ctx, url)
	if err != nil {
		return 0, err
	}
	pub, end, err := open()
	if err != nil {
		return 0, errors.Join(err, d.close())
	}
	rate, err := m.run(ctx, d, pub, o)
	end()
	return rate, errors.Join(err, d.close())
}

func kafkaSink(seeds []string) (message.Publisher, func(), error) {
	broker, err := kafka.New(kafka.Config{Seeds: seeds})
	if err != nil {
		return nil, func() {}, err
	}
	pub, err := broker.Publisher()
	if err != nil {
		return nil, func() { _ = broker.Close() }, err
	}
	return pub, func() { _ = pub.Close(); _ = broker.Close() }, nil
}

func ourRelay(ctx context.Context, d *database, pub message.Publisher, o relayOptions) (rate float64, err error) {
	if err := d.fill(ctx, o.Rows); err != nil {
		return 0, err
	}
	m := newMeter(pub, o.Rows)
	err = relayed(ctx, d, m, outbox.RelayConfig{}, func(*outbox.Relay) (err error) {
		rate, err = m.wait(o.Limit)
		return err
	})
	return rate, err
}

// handWritten is the loop that one writes without a library, on the same table: one statement takes 500 rows,
// and they are gone with the commit after their publish. It keeps no order when it runs twice.
func handWritten(ctx context.Context, d *database, pub message.Publisher, o relayOptions) (float64, error) {
	if err := d.fill(ctx, o.Rows); err != nil {
		return 0, err
	}
	m := newMeter(pub, o.Rows)
	limit, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	for limit.Err() == nil {
		n, err := handWrittenBatch(ctx, d, m)
		if err != nil {
			return 0, err
		}
		if n == 0 {
			break
		}
	}
	return m.wait(0)
}

func handWrittenBatch(ctx context.Context, d *database, pub message.Publisher) (n int, err error) {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // of no interest after a commit, and the error is returned before
	rows, err := tx.Query(ctx, "DELETE FROM headrace_outbox WHERE (topic, id) IN"+
		" (SELECT topic, id FROM headrace_outbox ORDER BY topic, id LIMIT 500 FOR UPDATE SKIP LOCKED) RETURNING uuid, metadata, payload")
	if err != nil {
		return 0, err
	}
	var msgs []*message.Message
	for rows.Next() {
		var uuid, metadata string
		var payload []byte
		if err := rows.Scan(&uuid, &metadata, &payload); err != nil {
			return 0, err
		}
		msg := message.NewMessage(uuid, payload)
		if err := json.Unmarshal([]byte(metadata), &msg.Metadata); err != nil {
			return 0, err
		}
		msgs = append(msgs, msg)
	}
	if err := rows.Err(); err != nil || len(msgs) == 0 {
		return 0, err
	}
	if err := pub.Publish(relayTopic, msgs...); err != nil {
		return 0, err
	}
	return len(msgs), tx.Commit(ctx)
}

// stock is Watermill's forwarder on watermill-sql.
func stock(group string, schema wsql.SchemaAdapter, offsets wsql.OffsetsAdapter) func(context.Context, *database, message.Publisher, relayOptions) (float64, error) {
	return func(ctx context.Context, d *database, pub message.Publisher, o relayOptions) (float64, error) {
		db := wsql.BeginnerFromPgx(d.pool)
		sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			ConsumerGroup: group, SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true,
		}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		const topic = "events"
		if err := sub.SubscribeInitialize(topic); err != nil {
			return 0, err
		}
		raw, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
		if err != nil {
			return 0, err
		}
		in := forwarder.NewPublisher(raw, forwarder.PublisherConfig{ForwarderTopic: topic})
		for i := 0; i < o.Rows; i += 1_000 {
			msgs := make([]*message.Message, min(1_000, o.Rows-i))
			for j := range msgs {
				msgs[j] = relayMessage(i + j)
			}
			if err := in.Publish(relayTopic, msgs...); err != nil {
				return 0, err
			}
		}
		m := newMeter(pub, o.Rows)
		f, err := forwarder.NewForwarder(sub, m, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: topic})
		if err != nil {
			return 0, err
		}
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		rate, err := m.wait(o.Limit)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		return rate, errors.Join(err, <-ended)
	}
}

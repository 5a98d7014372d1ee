package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/schema"
)

// The brokers here have no [brokers.Reader]: dead letters are worked from the database, into which a service indexes them. Their constructors
// do no I/O, so each is asked for a sign of life.

// answersWithin bounds a question to a server.
const answersWithin = 10 * time.Second

// owner closes a broker and then what it was made on.
type owner struct {
	brokers.Broker
	close func() error
}

// Close closes both.
func (o owner) Close() error { return errors.Join(o.Broker.Close(), o.close()) }

// openAMQP reads amqp://[user:password@]host[:port][/vhost], and several with commas between them.
func (a *app) openAMQP(ctx context.Context) (*broker, error) {
	urls := strings.Split(a.brokerURL, ",")
	if err := checkURLs(urls); err != nil {
		return nil, err
	}
	conn, err := dialAMQP(ctx, urls)
	if err != nil {
		return nil, err
	}
	if err := conn.Close(); err != nil {
		return nil, err
	}
	b, err := amqp.New(amqp.Config{URLs: urls, Topology: amqp.Check, Name: "headrace-cli", Logger: a.log})
	if err != nil {
		return nil, usage("--broker: %w", err)
	}
	return &broker{
		Broker: b, keyed: unkeyed, retention: unknownRetention,
		exists: func(ctx context.Context, topic string) (bool, error) { return hasExchange(ctx, urls, topic) },
	}, nil
}

// dialAMQP connects to the first node that answers. The connection ends with ctx.
func dialAMQP(ctx context.Context, urls []string) (*amqp091.Connection, error) {
	var errs []error
	for _, u := range urls {
		conn, err := amqp091.DialConfig(u, amqp091.Config{Dial: func(network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{Timeout: answersWithin}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() { _ = c.Close() })
			return c, c.SetDeadline(time.Now().Add(answersWithin)) // the client resets it after the handshake
		}})
		if err == nil {
			return conn, nil
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", redacted(u), err))
	}
	return nil, errors.Join(errs...)
}

// hasExchange tells whether there is a topic's exchange.
func hasExchange(ctx context.Context, urls []string, topic string) (there bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dialAMQP(ctx, urls)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ch, err := conn.Channel()
	if err != nil {
		return false, err
	}
	err = ch.ExchangeDeclarePassive(topic, amqp091.ExchangeFanout, true, false, false, false, nil)
	if refused, ok := errors.AsType[*amqp091.Error](err); ok && refused.Code == amqp091.NotFound {
		return false, nil
	}
	return err == nil, err
}

// openRedis reads redis://[user:password@]host[:port][/database].
func (a *app) openRedis(ctx context.Context) (*broker, error) {
	if err := checkURLs([]string{a.brokerURL}); err != nil {
		return nil, err
	}
	opts, err := redis.ParseURL(a.brokerURL)
	if err != nil {
		return nil, usage("--broker: %w", err)
	}
	client := redis.NewClient(opts)
	b, err := redisstream.New(redisstream.Config{Client: client, Retention: redisstream.NoTrim, Logger: a.log})
	if err == nil {
		err = within(ctx, func(ctx context.Context) error { return client.Ping(ctx).Err() })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", redacted(a.brokerURL), err), client.Close())
	}
	return &broker{
		Broker: owner{b, client.Close}, keyed: unkeyed, retention: unknownRetention,
		exists: func(ctx context.Context, topic string) (bool, error) {
			n, err := client.Exists(ctx, topic).Result()
			return n > 0, err
		},
	}, nil
}

// openPostgres opens the broker in the tables that --schema and --table-prefix name.
func (a *app) openPostgres(ctx context.Context) (*broker, error) {
	names, err := schema.NewNames(schema.Postgres, a.schema, a.prefix)
	if err != nil {
		return nil, usage("%w", err)
	}
	if err := checkURLs([]string{a.brokerURL}); err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, a.brokerURL)
	if err != nil {
		return nil, usage("--broker: %w", err)
	}
	b, err := postgres.New(postgres.Config{
		Pool: pool, Schema: a.schema, Prefix: a.prefix, Logger: a.log,
		Key: func(m *message.Message) []byte { key, _ := m.Context().Value(keyOfRow{}).([]byte); return key },
	})
	if err == nil {
		err = within(ctx, pool.Ping)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &broker{
		Broker: owner{b, func() error { pool.Close(); return nil }}, retention: unknownRetention,
		keyed: func(m *message.Message, r poison.Record) {
			m.SetContext(context.WithValue(m.Context(), keyOfRow{}, r.Key))
		},
		exists: func(ctx context.Context, topic string) (there bool, err error) {
			err = pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+names.Table("broker_group")+" WHERE topic = $1)", topic).Scan(&there)
			return there, err
		},
	}, nil
}

func within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	return f(ctx)
}

// keyOfRow is the context key of a row's key, which was made by the service's own function.
type keyOfRow struct{}

func unkeyed(*message.Message, poison.Record) {}

// Publisher publishes to topics that are there: one that a publish would make has no consumer.
func (b *broker) Publisher() (message.Publisher, error) {
	p, err := b.Broker.Publisher()
	if err != nil || b.exists == nil {
		return p, err
	}
	return &careful{Publisher: p, exists: b.exists, known: map[string]bool{}}, nil
}

// careful asks once for each topic. Commands publish from one goroutine.
type careful struct {
	message.Publisher
	exists func(ctx context.Context, topic string) (bool, error)
	known  map[string]bool
}

func (c *careful) Publish(topic string, messages ...*message.Message) error {
	if len(messages) > 0 && !c.known[topic] {
		err := within(messages[0].Context(), func(ctx context.Context) error {
			there, err := c.exists(ctx, topic)
			if err == nil && !there {
				err = errors.New("it is not there; the consumer's service makes it when it starts")
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("topic %q: %w", topic, err)
		}
		c.known[topic] = true
	}
	return c.Publisher.Publish(topic, messages...)
}

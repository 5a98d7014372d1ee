package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
	amqpbroker "github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/jetstream"
	kafkabroker "github.com/headrace-go/headrace/brokers/kafka"
	pgbroker "github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/brokers/redisstream"
)

// The kinds of brokers. Members of one consumer share a Redis stream, or a JetStream durable, without order between them. So there are two kinds
// of each: with several members, of which no order is asked, and with one, whose order must hold through crashes.
const (
	kafka        = "kafka"
	kafkaCluster = "kafka-cluster" // three nodes
	redis        = "redis"
	redisOne     = "redis-one"
	nats         = "nats"
	natsOne      = "nats-one"
	amqp         = "amqp"
	postgres     = "postgres" // the database is the broker
)

var kinds = []string{kafka, redis, redisOne, nats, natsOne, amqp, postgres}

// one tells that there is never more than one consumer process.
func one(broker string) bool { return broker == redisOne || broker == natsOne }

// ordered tells that each key is in order.
func ordered(broker string) bool { return broker != redis && broker != nats }

// nodes of the Kafka cluster.
var nodes = []string{"kafka3a", "kafka3b", "kafka3c"}

// serverOf is the server of a kind of broker, as integration/servers calls it; "": it has none of its own.
func serverOf(broker string) string {
	return map[string]string{kafka: "kafka", kafkaCluster: nodes[0], redis: "redis", redisOne: "redis", nats: "nats", natsOne: "nats", amqp: "rabbitmq"}[broker]
}

// open opens the broker of a pipeline, and returns what closes it. Its settings are the adapter's defaults, but for how soon a process
// that is not heard of loses what it has.
func (s spec) open(pool *pgxpool.Pool) (b brokers.Broker, end func() error, err error) {
	address := s.URL
	if to := s.Dial[hostOf(s.URL)]; to != "" && s.Broker != kafka && s.Broker != kafkaCluster {
		if address, err = via(s.URL, to); err != nil {
			return nil, nil, err
		}
	}
	switch s.Broker {
	case kafka, kafkaCluster:
		b, err = s.openKafka()
	case redis, redisOne:
		options, err := goredis.ParseURL(address)
		if err != nil {
			return nil, nil, err
		}
		client := goredis.NewClient(options)
		config := redisstream.Config{Client: client, Patience: lease}
		if s.Broker == redisOne {
			config.Member = s.Place
		}
		b, err := redisstream.New(config)
		if err != nil {
			return nil, nil, errors.Join(err, client.Close())
		}
		return b, func() error { return errors.Join(b.Close(), client.Close()) }, nil
	case nats, natsOne:
		// The server would tell its own address, around the proxy.
		b, err = jetstream.New(jetstream.Config{URL: address, AckWait: lease, Options: []natsgo.Option{natsgo.IgnoreDiscoveredServers()}})
	case amqp:
		b, err = amqpbroker.New(amqpbroker.Config{URLs: []string{address}, Heartbeat: lease / 2})
	case postgres:
		b, err = pgbroker.New(pgbroker.Config{Pool: pool, Schema: s.schema(), LeaseTTL: lease})
	default:
		err = fmt.Errorf("broker is %q: want one of %v", s.Broker, append(slices.Clone(kinds), kafkaCluster))
	}
	if err != nil {
		return nil, nil, err
	}
	return b, b.Close, nil
}

// openKafka dials where the proxies are: the cluster tells its nodes' own addresses.
func (s spec) openKafka() (brokers.Broker, error) {
	config := kafkabroker.Config{Seeds: strings.Split(s.URL, ","), Partitions: 4, Replicas: 1}
	if s.Broker == kafkaCluster {
		config.Replicas = int16(len(nodes))
	}
	config.Options = []kgo.Opt{
		kgo.SessionTimeout(lease), kgo.HeartbeatInterval(lease / 6),
		kgo.Dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
			if to := s.Dial[address]; to != "" {
				address = to
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}),
	}
	return kafkabroker.New(config)
}

// hostOf is the host and port of a URL, "" if it is none.
func hostOf(address string) string {
	host, err := hostPort(address)
	if err != nil {
		return ""
	}
	return host
}

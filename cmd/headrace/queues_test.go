package main

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// queues are the sites whose topics cannot be read again.
var queues = map[string]func(testing.TB) *site{"amqp": onAMQP, "redis": onRedis, "postgres": onPostgres}

// withSQLite gives s a store of its own.
func (s *site) withSQLite() *site {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "billing.db")
	store, err := sqlite.Open(path, sqlite.WithSynchronous(sqlite.SynchronousNormal))
	if err != nil {
		s.t.Fatal(err)
	}
	closes(s.t, "the store", store)
	if err := store.Migrate(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	s.store, s.dialect, s.env["HEADRACE_DATABASE"] = store, schema.SQLite, "sqlite:"+path
	return s
}

func onAMQP(t testing.TB) *site {
	t.Helper()
	address := testserver.AMQP(t)
	b, err := amqp.New(amqp.Config{URLs: []string{address}})
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	s := &site{t: t, broker: b, prefix: unique() + ".", env: map[string]string{"HEADRACE_BROKER": address, "USER": "ann"}}
	return s.withSQLite()
}

func onRedis(t testing.TB) *site {
	t.Helper()
	address := testserver.Redis(t)
	opts, err := redis.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	closes(t, "the client", client)
	b, err := redisstream.New(redisstream.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	s := &site{t: t, broker: b, prefix: unique() + ".", env: map[string]string{"HEADRACE_BROKER": address, "USER": "ann"}}
	return s.withSQLite()
}

// onPostgres is a schema that has the broker's tables and the service's.
func onPostgres(t testing.TB) *site {
	t.Helper()
	address, name := testserver.Postgres(t), unique()
	pool, err := pgxpool.New(context.Background(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the database", db)
	store := inSchema(t, db, name)
	// The service has a key of its own, which no metadata tell.
	b, err := postgres.New(postgres.Config{Pool: pool, Schema: name, Key: func(m *message.Message) []byte { return []byte("own key") }})
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	return &site{
		t: t, broker: b, store: store, dialect: schema.Postgres, tableOpt: []string{"--schema", name},
		env: map[string]string{"HEADRACE_BROKER": address, "HEADRACE_DATABASE": address, "USER": "ann"},
	}
}

// The same of databases.
func TestUnreachableDatabasesAreToldWithoutTheirPasswords(t *testing.T) {
	for _, address := range []string{
		"postgres://ann:hidden@127.0.0.1:1/x",
		"postgres://ann:hidden/slash@127.0.0.1:1/x",
		"postgres://ann:1?hidden@127.0.0.1:1/x",
		"postgres://127.0.0.1:1/x?password=hidden",
		"postgres://127.0.0.1:1/x?sslpassword=hidden&sslmode=none",
		"postgres://127.0.0.1:one/x?password=hidden",
		"mysql://ann:hidden@127.0.0.1:1/x",
		"mysql://ann:hidden/slash@127.0.0.1:1/x",
		"mysql://ann:1?hidden@127.0.0.1:1/x",
		"mysql://ann:hidden@127.0.0.1:1?x",
		"oracle://127.0.0.1/x?password=hidden",
		"host=127.0.0.1 password=hidden",
		"ann:hidden@tcp(127.0.0.1:1)/x",
	} {
		s := &site{t: t, env: map[string]string{"HEADRACE_DATABASE": address, "USER": "ann"}}
		for _, args := range [][]string{{"dlt", "ls"}, {"doctor"}, {"doctor", "-o", "json"}} {
			r := s.run(args...)
			if r.code == exitDone || strings.Contains(r.out+r.err, "hidden") {
				t.Errorf("%s: %q: exit code %d\n%s%s", address, args, r.code, r.out, r.err)
			}
		}
	}
}

func TestAddressesAreShownWithoutAccountsAndParameters(t *testing.T) {
	for address, want := range map[string]string{
		"nats://token@a:4222":             "nats://a:4222",
		"nats://t@a:1,nats://u:p@b:2":     "nats://a:1,nats://b:2",
		"kafka://u:p@a:1,b:2?tls=true":    "kafka://a:1,b:2",
		"postgres://u:p@a:1/x?password=y": "postgres://a:1/x",
		"postgres://a/x?sslpassword=y#z":  "postgres://a/x",
		"postgres://u:1?2@a/x":            "postgres://...",
		"amqp://u:1/2@a/v":                "amqp://...",
		"redis://a:1/0":                   "redis://a:1/0",
		"sqlite:billing.db":               "sqlite:billing.db",
		"embedded:/var/lib/x":             "embedded:/var/lib/x",
		"u:p@a":                           "...",
		"":                                "...",
	} {
		if got := redacted(address); got != want {
			t.Errorf("%s is shown as %s, want %s", address, got, want)
		}
	}
}

// take subscribes as consumer, and gives the first n messages of a topic to fn.
func (s *site) take(consumer, topic string, n int, fn func(*message.Message)) {
	s.t.Helper()
	sub, err := s.broker.Subscriber(brokers.Subscription{Consumer: consumer, Topic: topic, Window: 16})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := sub.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	in, err := sub.Subscribe(s.t.Context(), topic)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range n {
		select {
		case m := <-in:
			fn(m)
			m.Ack()
		case <-time.After(limit):
			s.t.Fatalf("%d messages of %s came, want %d", i, topic, n)
		}
	}
}

// index is what a service does all the time: it puts dead letters into the database.
func (s *site) index(n int) {
	s.t.Helper()
	s.take(s.name("index"), s.name("orders")+poison.Suffix, n, func(m *message.Message) {
		r, err := poison.Parse(m)
		if err == nil {
			_, err = s.letters().Add(s.t.Context(), r)
		}
		if err != nil {
			s.t.Error(err)
		}
	})
}

// Only Kafka and JetStream could be redriven to.
func TestRedriveOverBrokersThatCannotBeReadAgain(t *testing.T) {
	for name, on := range queues {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			s.disaster()
			s.index(13)
			// The service has never run: nobody would get them, or nobody has them yet.
			r := s.must(exitFailed, "dlt", "redrive", "--all", "--reason", "x", "--yes")
			if !strings.Contains(r.out, "redriven 0 of 13") {
				t.Errorf("without the consumer: %s%s", r.out, r.err)
			}
			s.redriveTopic()
			s.must(exitDone, "dlt", "redrive", "--all", "--reason", "x", "--yes")
			var got []string
			topic := poison.RedriveTopic(s.name("billing.orders"))
			s.take(topic, topic, 13, func(m *message.Message) {
				got = append(got, string(m.Payload))
				if key := brokers.DeliveryOf(m.Context()).Key; name == "postgres" && !strings.HasPrefix(string(key), "order-") {
					t.Errorf("message %q has the key %q, want that of its dead letter", m.UUID, key)
				}
			})
			want := []string{`{"order_id":"13","cents":-1}`}
			for n := 1; n <= 12; n++ {
				want = append(want, fmt.Sprintf(`{"order_id":"%d","cents":4990}`, n))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("redriven %q, want %q", got, want)
			}
			for _, args := range [][]string{
				{"dlt", "index", "--topic", s.name("orders")},
				{"replay", "--topic", s.name("orders"), "--consumer", "x", "--from-start"},
			} {
				if r := s.run(args...); r.code != exitUsage || !strings.Contains(r.err, "read again") {
					t.Errorf("%q: exit code %d, %s; want %d: it cannot be read again", args, r.code, r.err, exitUsage)
				}
			}
		})
	}
}

func TestDoctorLooksForTopicsOfQueues(t *testing.T) {
	for name, on := range queues {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			s.order(1, "{}")
			config := fmt.Sprintf(`{"consumers": [{"name": "billing", "topic": %q}]}`, s.name("orders"))
			r := s.runWith(config, "doctor", "--config", "-")
			for _, want := range []string{s.name("orders"), "it is there", poison.RedriveTopic("billing"), "no such topic yet"} {
				if !strings.Contains(r.out, want) {
					t.Errorf("doctor does not say %q:\n%s%s", want, r.out, r.err)
				}
			}
		})
	}
}

// The address has a password, and nothing listens there, or it cannot be read at all.
func TestUnreachableQueuesAreToldWithoutTheirPasswords(t *testing.T) {
	for i, address := range []string{
		"amqp://ann:hidden@127.0.0.1:1/",
		"amqp://ann:x@127.0.0.1:1/,amqp://ann:hidden@127.0.0.1:2/",
		"redis://ann:hidden@127.0.0.1:1/0",
		"postgres://ann:hidden@127.0.0.1:1/x?connect_timeout=5",
		"nats://ann:x@127.0.0.1:1,nats://ann:hidden@127.0.0.1:2",
		"amqp://ann:hidden@127.0.0.1:one/",
		"amqp://ann:hidden/slash@127.0.0.1/",
		"redis://ann:hidden/slash@127.0.0.1/0",
		"postgres://ann:hidden/slash@127.0.0.1/x",
		"amqp://ann:x,hidden@127.0.0.1:1/",
		"amqp://ann:1,hidden@127.0.0.1:1/",
		"amqp://ann:1#hidden@127.0.0.1/",
		"nats://hidden@127.0.0.1:1", // a token
		"nats://hidden@127.0.0.1:1,hidden@127.0.0.1:2",
		"nats://ann:1?hidden@127.0.0.1:1",
		"redis://:hidden@127.0.0.1:1",
		"redis://127.0.0.1:1/0?password=hidden",
		"kafka://ann:hidden@127.0.0.1:1?sasl=plain",
		"kafka://ann:hid:den?@127.0.0.1:1",
		"kafka://ann:1?hidden@127.0.0.1:1",
		"kafka://ann:hidden%zz@127.0.0.1:1",
		"postgres://127.0.0.1:1/x?connect_timeout=5&password=hidden",
		"postgres://127.0.0.1:1/x?sslpassword=hidden&sslmode=none",
		"host=127.0.0.1 password=hidden",
		"ann:hidden@127.0.0.1",
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s := (&site{t: t, env: map[string]string{"HEADRACE_BROKER": address, "USER": "ann"}}).withSQLite()
			for _, args := range [][]string{{"dlt", "redrive", "--all", "--reason", "x", "--yes"}, {"doctor"}} {
				r := s.run(args...)
				if r.code == exitDone || strings.Contains(r.out+r.err, "hidden") {
					t.Errorf("%s: %q: exit code %d\n%s%s", address, args, r.code, r.out, r.err)
				}
			}
		})
	}
}

package failures_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// site is a broker and a database.
type site struct {
	t       testing.TB
	broker  brokers.Broker
	reader  brokers.Reader
	prefix  string // of topics and consumers: servers are shared
	letters *deadletter.Store
	parking parking.Ledger
	outbox  outbox.Source

	// handle makes a consumer write each order's id into the table of effects, and then fail if check does.
	handle func(c *runtime.Consumer, check func(ctx context.Context, id string) error)
	// index makes a consumer put dead letters into the store.
	index func(c *runtime.Consumer)
	// effects are the ids in that table, in the order of their transactions within each key.
	effects func() []string
	// cut takes the database away, and mend brings it back.
	cut, mend func()
}

// sites are where the tests run.
var sites = []struct {
	name string
	open func(testing.TB) *site
}{
	{"KafkaAndPostgres", onKafka},
	{"JetStreamAndSQLite", onJetStream},
}

// order is what the events carry. Their ids are "key/number in the key".
type order struct{}

const orderPlaced = "order.placed"

func onKafka(t testing.TB) *site {
	t.Helper()
	seeds, address := testserver.Kafka(t), testserver.Postgres(t)
	b, err := kafka.New(kafkaConfig(seeds, logger(t)))
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	schema := ownSchema(t, address)
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	direct := connect(t, config.Copy())
	between := newProxy(t, net.JoinHostPort(config.ConnConfig.Host, fmt.Sprint(config.ConnConfig.Port)))
	at := between.listener.Addr().(*net.TCPAddr)
	config.ConnConfig.Host, config.ConnConfig.Port = at.IP.String(), uint16(at.Port) //nolint:gosec // a port
	config.MaxConns = 16
	store, err := pgxstore.New(connect(t, config), pgxstore.WithSchema(schema))
	if err != nil {
		t.Fatal(err)
	}
	migrate(t, store)
	s := &site{t: t, broker: b, reader: b, prefix: schema + ".", cut: between.cut, mend: between.mend}
	s.outbox = store.Outbox()
	wire(s, store, store.DeadLetters(), func(ctx context.Context, tx pgx.Tx, id string) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+schema+".effects (id) VALUES ($1)", id)
		return err
	})
	s.effects = func() []string {
		rows, err := direct.Query(context.Background(), "SELECT id FROM "+schema+".effects ORDER BY n")
		if err != nil {
			t.Fatal(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	return s
}

// kafkaConfig is patient: a slow machine is no fault.
func kafkaConfig(seeds string, logger *slog.Logger) kafka.Config {
	return kafka.Config{
		Seeds: strings.Split(seeds, ","), Partitions: 4, Replicas: 1, Logger: logger,
		DialTimeout: standstill, PublishTimeout: standstill,
	}
}

// ownSchema makes a schema with the table of effects, which is dropped when the test ends.
func ownSchema(t testing.TB, address string) string {
	t.Helper()
	name := fmt.Sprintf("failures_%d_%d", os.Getpid(), time.Now().UnixNano())
	execute := func(statement string) {
		t.Helper()
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx) //nolint:errcheck // nothing is left to lose
		if _, err := conn.Exec(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	execute("CREATE SCHEMA " + name)
	t.Cleanup(func() { execute("DROP SCHEMA " + name + " CASCADE") })
	execute("CREATE TABLE " + name + ".effects (n bigint GENERATED ALWAYS AS IDENTITY, id text NOT NULL)")
	return name
}

func connect(t testing.TB, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// onJetStream has a database that is away while someone else has the file's lock.
func onJetStream(t testing.TB) *site {
	t.Helper()
	b, err := embedded.New(embedded.Config{Dir: t.TempDir(), Logger: logger(t)}, jetstream.Config{Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	path := filepath.Join(t.TempDir(), "billing.db")
	store, err := sqlite.Open(path, sqlite.WithSynchronous(sqlite.SynchronousNormal), sqlite.WithBusyTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the store", store)
	migrate(t, store)
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the other connection", other)
	other.SetMaxOpenConns(1)
	execute := func(statement string) {
		t.Helper()
		if _, err := other.ExecContext(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	execute("PRAGMA busy_timeout = 60000")
	execute("CREATE TABLE effects (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL)")
	s := &site{
		t: t, broker: b, reader: b,
		cut:  func() { t.Helper(); execute("BEGIN IMMEDIATE") },
		mend: func() { t.Helper(); execute("ROLLBACK") },
	}
	s.outbox = store.Outbox()
	wire(s, store, store.DeadLetters(), func(ctx context.Context, tx *sql.Tx, id string) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES (?)", id)
		return err
	})
	s.effects = func() []string {
		rows, err := other.QueryContext(context.Background(), "SELECT id FROM effects ORDER BY n")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close() // Err tells
		var ids []string
		for rows.Next() {
			var id string
			if err := rows.Scan(&id); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		return ids
	}
	return s
}

// database is a store as the tests need it.
type database[Tx any] interface {
	inbox.Store[Tx]
	deadletter.Writer[Tx]
	Parking() parking.Ledger
}

// wire puts the store's transactions behind the site's functions.
func wire[Tx any](s *site, store database[Tx], table deadletter.Table, insert func(context.Context, Tx, string) error) {
	s.t.Helper()
	letters, err := deadletter.NewStore(table, deadletter.Protection{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.letters, s.parking = letters, store.Parking()
	s.handle = func(c *runtime.Consumer, check func(context.Context, string) error) {
		runtime.HandleTx(c, orderPlaced, inbox.Store[Tx](store), func(ctx context.Context, tx Tx, _ order) error {
			e, _ := event.FromContext(ctx)
			if err := insert(ctx, tx, e.ID); err != nil {
				return err
			}
			return check(ctx, e.ID)
		})
	}
	s.index = func(c *runtime.Consumer) {
		runtime.HandleDeadLettersTx(c, inbox.Store[Tx](store), deadletter.Index(store, deadletter.Protection{}))
	}
}

func migrate(t testing.TB, store inbox.Database) {
	t.Helper()
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func closes(t testing.TB, name string, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
}

// logger passes on errors only: a dead letter is a warning, and there are many here.
func logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}

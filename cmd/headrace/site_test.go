package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

var update = flag.Bool("update", false, "write the golden files")

// commandEnv makes the test binary the command, for scripts.
const commandEnv = "HEADRACE_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	leak.VerifyTestMain(m)
}

// limit bounds every wait.
const limit = 60 * time.Second

// site is a broker and a database that a service and the command share.
type site struct {
	t        testing.TB
	broker   brokers.Broker
	reader   brokers.Reader
	store    *sqlstore.Store
	prefix   string // of topics and consumers: servers are shared
	effects  string // the table of the consumer's effects
	env      map[string]string
	dialect  schema.Dialect
	tableOpt []string // flags that name the tables
}

var serial = time.Now().UnixNano()

func unique() string {
	serial++
	return fmt.Sprintf("t%d_%d", os.Getpid(), serial)
}

func (s *site) name(short string) string { return s.prefix + short }

func closes(t testing.TB, name string, c interface{ Close() error }) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
}

// onJetStream is an embedded server that others can connect to, and a SQLite file.
func onJetStream(t testing.TB) *site {
	t.Helper()
	b, err := embedded.New(embedded.Config{Dir: t.TempDir(), Listen: "127.0.0.1:0"}, jetstream.Config{})
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	s := &site{
		t: t, broker: b, reader: b, effects: "effects", env: map[string]string{"HEADRACE_BROKER": b.Server().URL(), "USER": "ann"},
	}
	return s.withSQLite()
}

// onKafka is a real cluster and a schema of its own on Postgres.
func onKafka(t testing.TB) *site {
	t.Helper()
	seeds, address := testserver.Kafka(t), testserver.Postgres(t)
	b, err := kafka.New(kafka.Config{Seeds: strings.Split(seeds, ","), Partitions: 1, Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the broker", b)
	db, err := sql.Open("pgx", address)
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the database", db)
	db.SetMaxOpenConns(8)
	name := unique()
	store := inSchema(t, db, name)
	return &site{
		t: t, broker: b, reader: b, store: store, prefix: name + ".", effects: name + ".effects", dialect: schema.Postgres, tableOpt: []string{"--schema", name},
		env: map[string]string{"HEADRACE_BROKER": "kafka://" + seeds, "HEADRACE_DATABASE": address, "USER": "ann"},
	}
}

// inSchema is a store in a schema that ends with the test.
func inSchema(t testing.TB, db *sql.DB, name string) *sqlstore.Store {
	t.Helper()
	store, err := sqlstore.New(db, schema.Postgres, sqlstore.WithSchema(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.ExecContext(context.Background(), "DROP SCHEMA IF EXISTS "+name+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return store
}

// onMySQL is an embedded JetStream and tables of their own on MariaDB.
func onMySQL(t testing.TB) *site {
	t.Helper()
	s := onJetStream(t)
	dsn := testserver.MySQL(t)
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	closes(t, "the database", db)
	prefix := unique() + "_"
	store, err := sqlstore.New(db, schema.MySQL, sqlstore.WithTablePrefix(prefix))
	if err != nil {
		t.Fatal(err)
	}
	names, err := schema.NewNames(schema.MySQL, "", prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		tables := []string{"`" + prefix + "effects`"}
		for _, short := range schema.Tables(names) {
			tables = append(tables, names.Table(short))
		}
		if _, err := db.ExecContext(context.Background(), "DROP TABLE IF EXISTS "+strings.Join(tables, ", ")); err != nil {
			t.Error(err)
		}
	})
	if err := store.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "mysql", User: url.UserPassword(c.User, c.Passwd), Host: c.Addr, Path: "/" + c.DBName}
	s.store, s.dialect, s.effects, s.tableOpt = store, schema.MySQL, prefix+"effects", []string{"--table-prefix", prefix}
	s.env["HEADRACE_DATABASE"] = u.String()
	return s
}

// result is what a command did.
type result struct {
	code     int
	out, err string
}

// run runs the command in this process.
func (s *site) run(args ...string) result { return s.runWith("", args...) }

func (s *site) runWith(in string, args ...string) result {
	var out, errs bytes.Buffer
	code := run(s.t.Context(), append(args, s.tableOpt...), func(key string) string { return s.env[key] }, strings.NewReader(in), &out, &errs)
	return result{code, out.String(), errs.String()}
}

// must runs the command and fails the test unless it ends with the code.
func (s *site) must(code int, args ...string) result {
	s.t.Helper()
	r := s.run(args...)
	if r.code != code {
		s.t.Fatalf("headrace %q: exit code %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
	}
	return r
}

// letters is the site's store.
func (s *site) letters() *deadletter.Store {
	s.t.Helper()
	store, err := deadletter.NewStore(s.store.DeadLetters(), deadletter.Protection{})
	if err != nil {
		s.t.Fatal(err)
	}
	return store
}

var failedAt = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// order publishes an event to orders and returns where it is.
func (s *site) order(n int, payload string) *message.Message {
	s.t.Helper()
	pub, err := s.broker.Publisher()
	if err != nil {
		s.t.Fatal(err)
	}
	defer pub.Close()
	m := message.NewMessage(fmt.Sprintf("u-%d", n), []byte(payload))
	m.Metadata = message.Metadata{
		"ce_specversion": "1.0", "ce_id": fmt.Sprintf("e-%d", n), "ce_source": "/shop", "ce_type": "order.placed",
		"ce_subject": fmt.Sprintf("customer-%d", n), "ce_partitionkey": fmt.Sprintf("order-%d", n), "ce_correlationid": "conv-7",
	}
	if err := pub.Publish(s.name("orders"), m.Copy()); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// die makes n-th order, and a dead letter of it as the runtime writes it.
func (s *site) die(n int, payload string, verdict classify.Verdict, errorType, text string) {
	s.t.Helper()
	m := s.order(n, payload)
	pub, err := s.broker.Publisher()
	if err != nil {
		s.t.Fatal(err)
	}
	defer pub.Close()
	dead, err := poison.New(poison.Config{Consumer: s.name("billing.orders"), Publisher: pub})
	if err != nil {
		s.t.Fatal(err)
	}
	m.SetContext(brokers.WithDelivery(context.Background(), &brokers.Delivery{
		Topic: s.name("orders"), Partition: 0, Offset: int64(n), Key: []byte(m.Metadata["ce_partitionkey"]), Time: failedAt.Add(-time.Minute),
	}))
	flight.Ensure(m).Topic = s.name("orders")
	at := failedAt.Add(time.Duration(n) * time.Second)
	_, err = dead.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, &middleware.GaveUpError{
			Verdict: verdict, ErrorType: errorType, Attempts: 5, FirstFailure: at.Add(-2 * time.Second), LastFailure: at, Err: errors.New(text),
		}
	})(m)
	if err != nil {
		s.t.Fatal(err)
	}
}

// disaster is what the tests and the runbook work on: an outage of the warehouse and an order that makes no sense.
func (s *site) disaster() {
	for n := 1; n <= 12; n++ {
		s.die(n, fmt.Sprintf(`{"order_id":"%d","cents":4990}`, n), classify.VerdictRetry, "unavailable", fmt.Sprintf("warehouse: order %d: connection refused", n))
	}
	s.die(13, `{"order_id":"13","cents":-1}`, classify.VerdictPoison, "validation", "order 13: cents is -1: want at least 0")
}

// indexes puts what is on the dead-letter topic into the database.
func (s *site) indexes() {
	s.t.Helper()
	s.must(exitDone, "dlt", "index", "--topic", s.name("orders"))
}

// redriveTopic makes the topic that a running service would have made.
func (s *site) redriveTopic() {
	s.t.Helper()
	topic := poison.RedriveTopic(s.name("billing.orders"))
	sub, err := s.broker.Subscriber(brokers.Subscription{Consumer: topic, Topic: topic, Window: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := sub.Subscribe(ctx, topic); err != nil {
		s.t.Fatal(err)
	}
	cancel()
	if err := sub.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// redriven are the dead letters' ids on the redrive topic, in order.
func (s *site) redriven() []string {
	s.t.Helper()
	var ids []string
	err := s.reader.Read(s.t.Context(), poison.RedriveTopic(s.name("billing.orders")), brokers.Range{}, func(m *message.Message) error {
		ids = append(ids, m.UUID)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return ids
}

// await waits until ok.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick, end := time.NewTicker(5*time.Millisecond), time.After(limit)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

var (
	recentTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anyUUID    = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	deadID     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`)
	spaces     = regexp.MustCompile(`(\S)  +`)
)

// stable is a transcript without what differs from run to run: names of the site, times of now, random ids.
func (s *site) stable(text string) string {
	if s.prefix != "" {
		text = strings.ReplaceAll(text, s.prefix, "")
		text = deadID.ReplaceAllString(text, "<id>") // it is made from the consumer's name
		text = regexp.MustCompile(`\b[0-9a-f]{16}\b`).ReplaceAllString(text, "<fingerprint>")
	}
	text = spaces.ReplaceAllString(text, "$1  ") // columns are as wide as names
	text = recentTime.ReplaceAllStringFunc(text, func(at string) string {
		if strings.HasPrefix(at, "2026-03-01T") {
			return at
		}
		return "<now>"
	})
	text = anyUUID.ReplaceAllStringFunc(text, func(id string) string {
		if deadID.MatchString(id) {
			return id
		}
		return "<uuid>"
	})
	for _, secret := range []string{"HEADRACE_BROKER", "HEADRACE_DATABASE"} {
		text = strings.ReplaceAll(text, redacted(s.env[secret]), "<"+secret+">")
	}
	return text
}

// golden compares a transcript with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, got, want)
	}
}

package main

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/schema"
	"github.com/headrace-go/headrace/stores/sqlite"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// broker is an open broker and what the tool needs beyond the contract.
type broker struct {
	brokers.Broker

	// reader is nil where topics cannot be read again.
	reader brokers.Reader

	// keyed gives a message the broker's own key, which no metadata may tell.
	keyed func(*message.Message, poison.Record)

	// retention tells how long the broker itself keeps a topic's messages, 0 for ever, and whether that is known.
	retention func(ctx context.Context, topic string) (d time.Duration, known bool, err error)

	// exists tells whether there is a topic, where the broker has no reader.
	exists func(ctx context.Context, topic string) (bool, error)
}

// openBroker opens what --broker names. It makes no topics: a redrive to a consumer that is not there must fail.
func (a *app) openBroker(ctx context.Context) (*broker, error) {
	scheme, rest, _ := strings.Cut(a.brokerURL, ":")
	switch scheme {
	case "":
		return nil, usage("no broker: give --broker or HEADRACE_BROKER")
	case "kafka":
		return a.openKafka()
	case "nats", "tls":
		return a.openJetStream()
	case "amqp", "amqps":
		return a.openAMQP(ctx)
	case "redis", "rediss":
		return a.openRedis(ctx)
	case "postgres", "postgresql":
		return a.openPostgres(ctx)
	case "embedded":
		b, err := embedded.New(embedded.Config{Dir: rest, Logger: a.log}, jetstream.Config{CheckOnly: true, Logger: a.log})
		if err != nil {
			return nil, err
		}
		return ofJetStream(b, b.Broker)
	case "memory":
		b, err := memory.New(memory.Config{})
		return &broker{Broker: b, keyed: unkeyed, retention: unknownRetention}, err
	}
	return nil, usage("--broker is %q: want kafka://, nats://, embedded:DIR, amqp://, redis:// or postgres://", redacted(a.brokerURL))
}

func unknownRetention(context.Context, string) (time.Duration, bool, error) { return 0, false, nil }

// redacted is a URL, or several with commas between them, that may be shown: scheme, host and path. A user without a password can be
// a token (NATS), and a query can have a password in it.
func redacted(text string) string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if len(list) > 0 && !strings.Contains(part, "://") { // another host, or a piece of a password
			list[len(list)-1] += "," + part
			continue
		}
		list = append(list, part)
	}
	for i, part := range list {
		list[i] = redactedOne(part)
	}
	return strings.Join(list, ",")
}

func redactedOne(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		if scheme, rest, _ = strings.Cut(text, ":"); scheme == "sqlite" || scheme == "embedded" || scheme == "memory" {
			rest, _, _ = strings.Cut(rest, "?")
			return scheme + ":" + rest
		}
		return "..."
	}
	if strings.ContainsAny(scheme, "@:/?# ") {
		return "..."
	}
	u, err := url.Parse(text)
	if err != nil || strings.Count(rest, "@") > 1 || strings.Contains(rest, "@") && u.User == nil {
		return scheme + "://..." // what cannot be taken apart for sure may have its password anywhere
	}
	return scheme + "://" + u.Host + u.EscapedPath()
}

// garbled tells whether a password with a ? in it can have become a query.
func garbled(query string) bool { return strings.Contains(query, "@") }

// unknownParameter is the error of a query that has another parameter than those that are known.
func unknownParameter(query, key, want string) error {
	if garbled(query) {
		return usage("--broker: there is an @ behind a ?: want %%3F for a ? in a password, %%40 for an @ in a parameter")
	}
	return usage("--broker: parameter %q: want %s", key, want)
}

// checkURLs refuses what is no URL, before a library does so with a piece of the password in its error.
func checkURLs(list []string) error {
	for _, text := range list {
		if _, err := url.Parse(text); err != nil {
			return usage("--broker: %s is no URL: want SCHEME://USER:PASSWORD@HOST:PORT, and %%2F for / in a password", redacted(text))
		}
	}
	return nil
}

func (a *app) openKafka() (*broker, error) {
	config, err := kafkaConfig(a.brokerURL)
	if err != nil {
		return nil, err
	}
	config.CheckOnly, config.Logger = true, a.log
	b, err := kafka.New(config)
	if err != nil {
		return nil, err
	}
	return &broker{
		Broker: b, reader: b,
		keyed: func(m *message.Message, r poison.Record) {
			if r.Key != nil {
				m.SetContext(kafka.WithKey(m.Context(), r.Key))
			}
		},
		retention: func(ctx context.Context, topic string) (time.Duration, bool, error) {
			return kafkaRetention(ctx, config, topic)
		},
	}, nil
}

// kafkaConfig reads kafka://[user:password@]host:port[,host:port][?tls=true&sasl=plain].
func kafkaConfig(text string) (kafka.Config, error) {
	var c kafka.Config
	rest := strings.TrimPrefix(text, "kafka://")
	rest, query, _ := strings.Cut(rest, "?")
	account, hosts, found := cutLast(rest, "@")
	if !found {
		account, hosts = "", rest
	}
	for host := range strings.SplitSeq(strings.TrimSuffix(hosts, "/"), ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			if garbled(query) {
				return c, unknownParameter(query, "", "")
			}
			return c, usage("--broker: the address %q: %w", host, err)
		}
		c.Seeds = append(c.Seeds, host)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return c, usage("--broker: %w", err)
	}
	user, password, _ := strings.Cut(account, ":")
	if user, err = url.PathUnescape(user); err == nil {
		password, err = url.PathUnescape(password)
	}
	if err != nil {
		return c, usage("--broker: the account has a %% that escapes nothing: want %%25 for one in a password")
	}
	for key := range values {
		if key != "tls" && key != "sasl" {
			return c, unknownParameter(query, key, "tls or sasl")
		}
	}
	switch on := values.Get("tls"); on {
	case "", "false":
	case "true":
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	default:
		return c, usage("--broker: tls is %q: want true or false", on)
	}
	mechanisms := map[string]func() sasl.Mechanism{
		"plain":         func() sasl.Mechanism { return plain.Auth{User: user, Pass: password}.AsMechanism() },
		"scram-sha-256": func() sasl.Mechanism { return scram.Auth{User: user, Pass: password}.AsSha256Mechanism() },
		"scram-sha-512": func() sasl.Mechanism { return scram.Auth{User: user, Pass: password}.AsSha512Mechanism() },
	}
	name := values.Get("sasl")
	if name == "" && account != "" {
		name = "plain"
	}
	if name == "" {
		return c, nil
	}
	mechanism := mechanisms[name]
	if mechanism == nil {
		return c, usage("--broker: sasl is %q: want plain, scram-sha-256 or scram-sha-512", name)
	}
	if user == "" {
		return c, usage("--broker: sasl is %q, but there is no user:password@ before the hosts", name)
	}
	c.SASL = []sasl.Mechanism{mechanism()}
	return c, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func kafkaRetention(ctx context.Context, c kafka.Config, topic string) (time.Duration, bool, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(c.Seeds...), kgo.SASL(c.SASL...)}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return 0, false, err
	}
	defer client.Close()
	configs, err := kadm.NewClient(client).DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return 0, false, err
	}
	described, err := configs.On(topic, nil)
	if err != nil {
		return 0, false, err
	}
	if described.Err != nil {
		return 0, false, described.Err
	}
	values := map[string]string{}
	for _, entry := range described.Configs {
		values[entry.Key] = entry.MaybeValue()
	}
	d, known := retentionOf(values["cleanup.policy"], values["retention.ms"])
	return d, known, nil
}

// retentionOf reads a Kafka topic's settings. A topic that is compacted and no more keeps the last message of each key for ever.
func retentionOf(policy, ms string) (d time.Duration, known bool) {
	if policy != "" && !strings.Contains(policy, "delete") {
		return 0, true
	}
	n, err := strconv.ParseInt(ms, 10, 64)
	switch {
	case err != nil:
		return 0, false
	case n < 0:
		return 0, true
	}
	return max(time.Duration(min(n, int64(1<<63-1)/int64(time.Millisecond)))*time.Millisecond, 1), true
}

func (a *app) openJetStream() (*broker, error) {
	text, query, _ := strings.Cut(a.brokerURL, "?")
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, usage("--broker: %w", err)
	}
	config := jetstream.Config{URL: text, CheckOnly: true, Logger: a.log}
	for key, v := range values {
		switch key {
		case "creds":
			config.Options = append(config.Options, nats.UserCredentials(v[0]))
		case "domain":
			config.Domain = v[0]
		default:
			return nil, unknownParameter(query, key, "creds or domain")
		}
	}
	b, err := jetstream.New(config)
	if err != nil {
		return nil, err
	}
	return ofJetStream(b, b)
}

func ofJetStream(owner brokers.Broker, b *jetstream.Broker) (*broker, error) {
	js, err := natsjs.New(b.Conn())
	if err != nil {
		return nil, errors.Join(err, owner.Close())
	}
	return &broker{
		Broker: owner, reader: b, keyed: unkeyed,
		retention: func(ctx context.Context, topic string) (time.Duration, bool, error) {
			name, err := js.StreamNameBySubject(ctx, topic)
			if err != nil {
				return 0, false, err
			}
			stream, err := js.Stream(ctx, name)
			if err != nil {
				return 0, false, err
			}
			return stream.CachedInfo().Config.MaxAge, true, nil // 0: for ever
		},
	}, nil
}

// database is an open database.
type database struct {
	*sqlstore.Store
	names schema.Names
	db    *sql.DB
}

// Close closes it.
func (d *database) Close() error {
	if d == nil {
		return nil
	}
	return d.db.Close()
}

// errNoDatabase says that a command needs one.
func (a *app) needDatabase(what string) error {
	return usage("%s needs the database: give --database or HEADRACE_DATABASE", what)
}

// openDatabase opens what --database names, and checks that its tables are those of this program. nil: none was named.
func (a *app) openDatabase(ctx context.Context) (*database, error) {
	if a.databaseURL == "" {
		return nil, nil
	}
	d, err := a.connect()
	if err != nil {
		return nil, err
	}
	if err := d.Check(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the database: %w", err), d.Close())
	}
	return d, nil
}

func (a *app) connect() (*database, error) {
	dialect, driver, dsn, err := dataSource(a.databaseURL)
	if err != nil {
		return nil, err
	}
	names, err := schema.NewNames(dialect, a.schema, a.prefix)
	if err != nil {
		return nil, usage("%w", err)
	}
	if dialect == schema.SQLite {
		if _, err := os.Stat(dsn); err != nil { // it would be made, empty
			return nil, usage("--database: %w", err)
		}
		var opts []sqlite.Option
		if a.prefix != "" {
			opts = append(opts, sqlite.WithTablePrefix(a.prefix))
		}
		store, err := sqlite.Open(dsn, opts...)
		if err != nil {
			return nil, err
		}
		return &database{store, names, store.DB()}, nil
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	db.SetMaxOpenConns(4)
	var opts []sqlstore.Option
	if a.schema != "" {
		opts = append(opts, sqlstore.WithSchema(a.schema))
	}
	if a.prefix != "" {
		opts = append(opts, sqlstore.WithTablePrefix(a.prefix))
	}
	store, err := sqlstore.New(db, dialect, opts...)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &database{store, names, db}, nil
}

// dataSource reads a database's URL.
func dataSource(text string) (dialect schema.Dialect, driver, dsn string, err error) {
	scheme, rest, _ := strings.Cut(text, ":")
	switch scheme {
	case "postgres", "postgresql":
		return schema.Postgres, "pgx", text, nil
	case "sqlite":
		if path := strings.TrimPrefix(rest, "//"); path != "" {
			return schema.SQLite, "", path, nil
		}
	case "mysql", "mariadb":
		dsn, err := mysqlDSN(text)
		return schema.MySQL, "mysql", dsn, err
	}
	return "", "", "", usage("--database is %q: want postgres://USER@HOST/NAME, mysql://USER@HOST/NAME or sqlite:FILE", redacted(text))
}

func mysqlDSN(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", usage("--database: it cannot be read as a URL")
	}
	name := strings.TrimPrefix(u.Path, "/")
	if u.Host == "" || name == "" {
		return "", usage("--database is %q: want mysql://USER:PASSWORD@HOST:PORT/NAME", redacted(text))
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName = "tcp", u.Host, name
	if u.Port() == "" {
		c.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	dsn := c.FormatDSN()
	if u.RawQuery != "" {
		sep := "?"
		if strings.Contains(dsn, "?") {
			sep = "&"
		}
		dsn += sep + u.RawQuery
	}
	if _, err := mysql.ParseDSN(dsn); err != nil {
		return "", usage("--database: %w", err)
	}
	return dsn, nil
}

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/headrace-go/headrace/brokers/kafka"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// Of so many messages one comes twice, one fails on its first two attempts, one is poison.
const (
	eachTwice  = 50
	eachFails  = 200
	eachPoison = 2_000
)

// The topics and the tables keep less than the run lasts, so that they are steady too.
const retention = 10 * time.Minute

const (
	orderPlaced = "order.placed"
	invoiceMade = "invoice.made"
)

// order is what both events carry.
type order struct {
	Number int64 `json:"number"`
	Key    int   `json:"key"`
	Sent   int64 `json:"sent"` // Unix time in nanoseconds
}

// service is the system under load, and its books.
type service struct {
	seeds  []string
	name   string // of the schema; topics and consumers begin with it
	pool   *pgxpool.Pool
	store  *pgxstore.Store
	broker *kafka.Broker
	rt     *runtime.Runtime
	orders *runtime.Consumer
	reader *metric.ManualReader

	pub     message.Publisher
	made    int64 // messages, without repetitions; the producer's alone
	perKey  []int64
	poison  atomic.Int64
	wanted  atomic.Int64 // messages that must get to the end
	ended   atomic.Int64
	latency latencies
}

func open(ctx context.Context, keys int) (s *service, err error) {
	for _, variable := range []string{"HEADRACE_KAFKA_SEEDS", "HEADRACE_POSTGRES_URL"} {
		if os.Getenv(variable) == "" {
			return nil, fmt.Errorf("%s is not set: run integration/servers start postgres kafka", variable)
		}
	}
	s = &service{
		seeds: strings.Split(os.Getenv("HEADRACE_KAFKA_SEEDS"), ","),
		name:  "soak_" + strings.ToLower(rand.Text()[:8]), perKey: make([]int64, keys), reader: metric.NewManualReader(),
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.pool, err = pgxpool.New(ctx, os.Getenv("HEADRACE_POSTGRES_URL")); err != nil {
		return nil, err
	}
	if s.store, err = pgxstore.New(s.pool, pgxstore.WithSchema(s.name)); err != nil {
		return nil, err
	}
	_, err = s.pool.Exec(ctx, fmt.Sprintf(`CREATE SCHEMA %[1]s; CREATE TABLE %[1]s.accounts (key INT PRIMARY KEY, orders BIGINT NOT NULL);
		INSERT INTO %[1]s.accounts SELECT k, 0 FROM generate_series(0, %[2]d) k`, s.name, keys-1))
	if err = errors.Join(err, s.store.Migrate(ctx)); err != nil {
		return nil, err
	}
	s.broker, err = kafka.New(kafka.Config{
		Seeds: s.seeds, Partitions: 8, Replicas: 1,
		TopicConfigs: map[string]string{"retention.ms": fmt.Sprint(retention.Milliseconds()), "segment.bytes": fmt.Sprint(16 << 20)},
	})
	if err != nil {
		return nil, err
	}
	if s.pub, err = s.broker.Publisher(); err != nil {
		return nil, err
	}
	return s, s.assemble()
}

// assemble puts the runtime together as a service would, with metrics and sampled traces.
func (s *service) assemble() (err error) {
	s.rt, err = runtime.New(runtime.Config{
		Service: "soak", Broker: s.broker, InboxRetention: retention,
		// The inbox forgets before the topics do, so Run warns; nothing is replayed here. Dead letters are logged as warnings.
		Logger:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(s.reader)),
		TracerProvider: trace.NewTracerProvider(trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(0.01)))),
	})
	if err != nil {
		return err
	}
	s.orders = s.rt.Consumer(s.name+".orders", s.topic("orders"))
	runtime.HandleTx(s.orders, orderPlaced, s.store, s.place)
	runtime.Handle(s.rt.Consumer(s.name+".invoices", s.topic("invoices")), invoiceMade, s.end)
	s.rt.Relay(s.store.Outbox(), outbox.RelayConfig{})
	return nil
}

func (s *service) topic(what string) string { return s.name + "." + what }

func (s *service) run(ctx context.Context) error { return s.rt.Run(ctx) }

// place is the first handler: one effect and one event, in one transaction.
func (s *service) place(ctx context.Context, tx pgx.Tx, o order) error {
	if o.Number%eachPoison == 7 {
		return classify.Permanent(errors.New("poison"))
	}
	if o.Number%eachFails == 3 && flight.From(ctx).Attempt < 3 {
		return errors.New("not yet")
	}
	if _, err := tx.Exec(ctx, "UPDATE "+s.name+".accounts SET orders = orders + 1 WHERE key = $1", o.Key); err != nil {
		return err
	}
	m, err := event.New(ctx, invoiceMade, o, event.WithKey(fmt.Sprint(o.Key)))
	if err != nil {
		return err
	}
	return outbox.Add(ctx, s.store, tx, s.topic("invoices"), m)
}

// end is the second handler, where the way of a message ends.
func (s *service) end(_ context.Context, o order) error {
	s.latency.add(time.Since(time.Unix(0, o.Sent)))
	s.ended.Add(1)
	return nil
}

// underway is how many messages were published and have not got to their end.
func (s *service) underway() int64 { return s.wanted.Load() - s.ended.Load() }

// publish publishes the next n messages, some of them twice.
func (s *service) publish(ctx context.Context, n int) error {
	ctx = event.ContextWithSource(ctx, "/soak")
	batch := make([]*message.Message, 0, n+n/eachTwice+1)
	good := 0
	for range n {
		key := int(s.made) % len(s.perKey)
		m, err := event.New(ctx, orderPlaced, order{s.made, key, time.Now().UnixNano()}, event.WithKey(fmt.Sprint(key)))
		if err != nil {
			return err
		}
		batch = append(batch, m)
		if s.made%eachTwice == 1 {
			batch = append(batch, m.Copy())
		}
		if s.made%eachPoison == 7 {
			s.poison.Add(1)
		} else {
			s.perKey[key]++
			good++
		}
		s.made++
	}
	s.wanted.Add(int64(good))
	return s.pub.Publish(s.topic("orders"), batch...)
}

// steps is how many times in a second the producer publishes.
const steps = 50

// produce publishes at a steady rate until ctx ends.
func (s *service) produce(ctx context.Context, rate float64) error {
	tick := time.NewTicker(time.Second / steps)
	defer tick.Stop()
	began, done := time.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		due := int(time.Since(began).Seconds() * rate)
		if err := s.publish(context.WithoutCancel(ctx), due-done); err != nil {
			return err
		}
		done = due
	}
}

// The search for the rate: what goes through with so many messages underway, after a warm-up.
const (
	searchWarm     = 20 * time.Second
	searchMeasured = 40 * time.Second
	searchBacklog  = 1_000
	searchPart     = 0.75
)

// search returns a part of the messages per second that the machine can do.
func (s *service) search(ctx context.Context) (float64, error) {
	began, counted := time.Now(), int64(-1)
	tick := time.NewTicker(time.Second / steps)
	defer tick.Stop()
	for time.Since(began) < searchWarm+searchMeasured {
		if counted < 0 && time.Since(began) >= searchWarm {
			counted = s.ended.Load()
		}
		if room := searchBacklog - s.underway(); room > 0 {
			if err := s.publish(ctx, int(room)); err != nil {
				return 0, err
			}
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
	rate := float64(s.ended.Load()-counted) / searchMeasured.Seconds()
	log.Printf("%.0f messages/s went through with %d underway", rate, searchBacklog)
	return searchPart * rate, s.settle(ctx)
}

// settle waits until everything that was published has got to its end, or nothing has moved for a minute.
func (s *service) settle(ctx context.Context) error {
	tick := time.NewTicker(time.Second / steps)
	defer tick.Stop()
	last, moved := s.underway(), time.Now()
	for {
		settled := s.orders.Stats()
		if now := s.underway(); now <= 0 && settled.DeadLettered >= s.poison.Load() {
			return nil
		} else if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > time.Minute {
			return fmt.Errorf("%d messages did not get to their end: %+v", s.underway(), settled)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// balance compares what was published with what it did, key by key.
func (s *service) balance(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, "SELECT key, orders FROM "+s.name+".accounts")
	if err != nil {
		return err
	}
	var wrong []error
	var key int
	var orders int64
	_, err = pgx.ForEachRow(rows, []any{&key, &orders}, func() error {
		if want := s.perKey[key]; orders != want && len(wrong) < 5 {
			wrong = append(wrong, fmt.Errorf("key %d has %d effects, want %d", key, orders, want))
		}
		return nil
	})
	stats := s.orders.Stats()
	if stats.DeadLettered != s.poison.Load() {
		wrong = append(wrong, fmt.Errorf("%d dead letters, want %d", stats.DeadLettered, s.poison.Load()))
	}
	if s.ended.Load() != s.wanted.Load() {
		wrong = append(wrong, fmt.Errorf("%d invoices arrived, want %d", s.ended.Load(), s.wanted.Load()))
	}
	fmt.Printf("%d published, %d effects, %d duplicates suppressed, %d retries, %d dead letters, %d invoices\n",
		s.made, stats.Effects, stats.Duplicates, stats.Retries, stats.DeadLettered, s.ended.Load())
	return errors.Join(append(wrong, err)...)
}

// tables is the size of the store's tables in MiB.
func (s *service) tables(ctx context.Context) (mib float64, err error) {
	err = s.pool.QueryRow(ctx, `SELECT sum(pg_total_relation_size(c.oid)) / 1048576.0 FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'`, s.name).Scan(&mib)
	return mib, err
}

// collect reads the metrics as an exporter would.
func (s *service) collect(ctx context.Context) {
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(ctx, &all); err != nil && ctx.Err() == nil {
		log.Printf("collect metrics: %v", err)
	}
}

// close deletes what the run has made.
func (s *service) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var ends sync.WaitGroup
	if s.pool != nil {
		ends.Go(func() {
			if _, err := s.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+s.name+" CASCADE"); err != nil {
				log.Print(err)
			}
			s.pool.Close()
		})
	}
	if s.broker != nil {
		ends.Go(func() {
			if err := errors.Join(s.broker.Close(), s.dropTopics(ctx)); err != nil {
				log.Print(err)
			}
		})
	}
	ends.Wait()
}

func (s *service) dropTopics(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.seeds...))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	var ours []string
	for _, name := range topics.Names() {
		if strings.HasPrefix(name, s.name) {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 {
		return nil
	}
	_, err = admin.DeleteTopics(ctx, ours...)
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/stores/pgxstore"
)

// relayOptions sets up the benchmark of the outbox.
type relayOptions struct {
	Rows   int           // published by each subject that is fast; the stock forwarder gets as far as it comes in Limit
	Rounds int           // of each subject, in turns; the median counts
	Limit  time.Duration // the longest that one round takes, and the length of those without an end
	Sink   string        // discard, kfake or kafka; none: all
	Kafka  []string      // a real cluster; none: that sink is left out

	Postmaster int // process id of the server, where it is on this machine; 0: its processor time is not told
}

// relayResult is one line of the output.
type relayResult struct {
	Bench   string  `json:"bench"` // relay, insert or latency
	Sink    string  `json:"sink,omitempty"`
	Subject string  `json:"subject"`
	PerSec  float64 `json:"per_second,omitempty"`
	Ratio   float64 `json:"ratio,omitempty"` // to the first subject of the same bench and sink
	// For a transaction of insert, as with inbox.
	CPUMicros    float64 `json:"cpu_us,omitempty"`
	ServerMicros float64 `json:"server_cpu_us,omitempty"`
	WALBytes     float64 `json:"wal_bytes,omitempty"`

	P50 float64 `json:"p50_ms,omitempty"`
	P99 float64 `json:"p99_ms,omitempty"`
}

// benchRelay runs the benchmark on the Postgres server at url: a relay against what else moves rows to a
// broker, what outbox.Add costs a transaction, and how long after its commit a message is published.
func benchRelay(ctx context.Context, url string, o relayOptions) ([]relayResult, error) {
	var all []relayResult
	for _, part := range []func(context.Context, string, relayOptions) ([]relayResult, error){benchSinks, benchInsert, benchLatency} {
		results, err := part(ctx, url, o)
		all = append(all, results...)
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func writeRelay(w io.Writer, results []relayResult) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "bench\tsink\tsubject\tper second\tratio\tcpu us\tserver us\tWAL bytes\tp50 ms\tp99 ms\t")
	for _, r := range results {
		if r.Bench == "latency" {
			fmt.Fprintf(tw, "%s\t%s\t%s\t\t\t\t\t\t%.2f\t%.2f\t\n", r.Bench, r.Sink, r.Subject, r.P50, r.P99)
			continue
		}
		costs := "\t\t"
		if r.Bench == "insert" {
			costs = fmt.Sprintf("%.1f\t%.1f\t%.0f", r.CPUMicros, r.ServerMicros, r.WALBytes)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%.0f\t%.3f\t%s\t\t\t\n", r.Bench, r.Sink, r.Subject, r.PerSec, r.Ratio, costs)
	}
	return tw.Flush()
}

// database is a schema of its own on a server.
type database struct {
	pool  *pgxpool.Pool
	store *pgxstore.Store
	name  string
}

func openDatabase(ctx context.Context, url string) (*database, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	d := &database{name: fmt.Sprintf("bench_%d", time.Now().UnixNano())}
	cfg.MaxConns = 40
	cfg.ConnConfig.RuntimeParams["search_path"] = d.name
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if d.store, err = pgxstore.New(d.pool, pgxstore.WithSchema(d.name)); err == nil {
		if err = d.store.Migrate(ctx); err == nil {
			return d, nil
		}
	}
	return nil, errors.Join(err, d.close())
}

func (d *database) close() error {
	_, err := d.pool.Exec(context.Background(), "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.name}.Sanitize()+" CASCADE")
	d.pool.Close()
	return err
}

const relayTopic = "orders"

// relayMessage is the i-th message: 256 bytes of JSON, one of 1,000 keys.
func relayMessage(i int) *message.Message {
	payload := make([]byte, 256)
	for j := range payload {
		payload[j] = 'x'
	}
	copy(payload, `{"x":"`)
	copy(payload[254:], `"}`)
	msg := message.NewMessage(fmt.Sprintf("message-%08d", i), payload)
	msg.Metadata = message.Metadata{
		event.MetaPartitionKey: fmt.Sprintf("key-%03d", i%1_000), event.MetaType: "order.placed", event.MetaSource: "billing",
		event.MetaCorrelationID: "0190c6f4-5f3c-7cc0-8b1d-2f6a3b1c9d10",
	}
	return msg
}

// fill adds n messages to the outbox, 1,000 in a transaction.
func (d *database) fill(ctx context.Context, n int) error {
	for i := 0; i < n; i += 1_000 {
		msgs := make([]*message.Message, min(1_000, n-i))
		for j := range msgs {
			msgs[j] = relayMessage(i + j)
		}
		err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return outbox.Add(ctx, d.store, tx, relayTopic, msgs...) })
		if err != nil {
			return err
		}
	}
	return nil
}

// relayed runs a relay until f returns.
func relayed(ctx context.Context, d *database, pub message.Publisher, cfg outbox.RelayConfig, f func(*outbox.Relay) error) error {
	cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := outbox.NewRelay(d.store.Outbox(), pub, cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	err = f(r)
	cancel()
	return errors.Join(err, <-ended)
}

// meter counts what passes on its way to a publisher.
type meter struct {
	message.Publisher
	want  int64
	got   atomic.Int64
	first atomic.Int64
	last  atomic.Int64
	begin time.Time
	done  chan struct{}
}

func newMeter(p message.Publisher, want int) *meter {
	return &meter{Publisher: p, want: int64(want), begin: time.Now(), done: make(chan struct{})}
}

func (m *meter) Publish(topic string, msgs ...*message.Message) error {
	m.first.CompareAndSwap(0, int64(time.Since(m.begin)))
	if err := m.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	n := int64(len(msgs))
	m.last.Store(int64(time.Since(m.begin)))
	if got := m.got.Add(n); got >= m.want && got-n < m.want {
		close(m.done)
	}
	return nil
}

// wait returns messages per second, once all or the time is over.
func (m *meter) wait(limit time.Duration) (float64, error) {
	select {
	case <-m.done:
	case <-time.After(limit):
	}
	got, took := m.got.Load(), time.Duration(m.last.Load()-m.first.Load())
	if got == 0 || took <= 0 {
		return 0, fmt.Errorf("nothing was published within %v", limit)
	}
	return float64(got) / took.Seconds(), nil
}

// arrivals tells when each message was published.
type arrivals struct{ sync.Map }

func (a *arrivals) Publish(_ string, msgs ...*message.Message) error {
	now := time.Now()
	for _, m := range msgs {
		a.Store(m.UUID, now)
	}
	return nil
}

func (*arrivals) Close() error { return nil }

// benchLatency measures the time from the return of COMMIT to the call of Publish: idle, beside a load, and
// when the relay is in another process and learns of the commit by NOTIFY or its poll.
func benchLatency(ctx context.Context, url string, o relayOptions) ([]relayResult, error) {
	var results []relayResult
	for _, s := range []struct {
		name   string
		load   int // transactions per second
		hinted bool
		signal bool
	}{
		{"idle, woken in the process", 0, true, false},
		{"idle, woken by NOTIFY", 0, false, true},
		{"idle, poll only", 0, false, false},
		{"500 tx/s beside it, woken in the process", 500, true, false},
		{"500 tx/s beside it, woken by NOTIFY", 500, false, true},
	} {
		d, err := openDatabase(ctx, url)
		if err != nil {
			return results, err
		}
		times, err := d.latencies(ctx, o, s.load, s.hinted, s.signal)
		if err := errors.Join(err, d.close()); err != nil {
			return results, fmt.Errorf("latency: %s: %w", s.name, err)
		}
		slices.Sort(times)
		results = append(results, relayResult{Bench: "latency", Subject: s.name, P50: ms(times[len(times)/2]), P99: ms(times[len(times)*99/100])})
	}
	return results, nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (d *database) latencies(ctx context.Context, o relayOptions, load int, hinted, signal bool) ([]time.Duration, error) {
	got := &arrivals{}
	var cfg outbox.RelayConfig
	wake := func() {}
	if signal {
		there, here := d.store.OutboxSignal(pgxstore.SignalConfig{}), d.store.OutboxSignal(pgxstore.SignalConfig{})
		cfg.Signal = there
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- here.Run(running, func() {}) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				panic(err) // it runs twice: a mistake of this program
			}
		}()
		wake = here.Wake
	}
	var times []time.Duration
	err := relayed(ctx, d, got, cfg, func(r *outbox.Relay) error {
		if hinted {
			wake = r.Wake
		}
		commit := func(i int) error {
			err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
				return outbox.Add(ctx, d.store, tx, relayTopic, relayMessage(i))
			})
			if err == nil {
				wake()
			}
			return err
		}
		loading, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		for c := range min(load, 10) {
			wg.Go(func() {
				tick := time.NewTicker(time.Second * 10 / time.Duration(load))
				defer tick.Stop()
				for i := 0; loading.Err() == nil; i++ {
					<-tick.C
					_ = commit(1_000_000*(c+1) + i)
				}
			})
		}
		n := max(100, int(o.Limit*time.Duration(o.Rounds)/(20*time.Millisecond)))
		committed := make([]time.Time, n)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for i := -25; i < n; i++ { // the first ones wait for leases
			<-tick.C
			err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
				return outbox.Add(ctx, d.store, tx, relayTopic, relayMessage(100_000+i))
			})
			if err != nil {
				return err
			}
			if i >= 0 {
				committed[i] = time.Now()
			}
			wake()
		}
		for i := range n {
			id := relayMessage(100_000 + i).UUID
			for limit := time.Now().Add(10 * time.Second); ; <-tick.C {
				if at, ok := got.Load(id); ok {
					times = append(times, max(0, at.(time.Time).Sub(committed[i])))
					break
				}
				if time.Now().After(limit) {
					return fmt.Errorf("%s was not published within 10s", id)
				}
			}
		}
		return nil
	})
	return times, err
}

package outbox

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/headrace-go/headrace/classify"
)

// Policy tells what happens to the later rows of a key when one of its rows can never be published.
type Policy string

// The policies. Under both the row itself goes to the dead rows.
const (
	// SkipKey goes on with the key's next row.
	SkipKey Policy = "skip_key"
	// BlockKey holds the key's later rows until someone revives or discards the dead row, see [Graveyard]. They stay in the outbox, and the
	// relay reads past them for each page of the topic: 100,000 take about 0.05 s on Postgres and 0.3 s on MySQL. With so many that a read takes
	// longer than DatabaseTimeout nothing of the topic is published: decide about the dead row before.
	BlockKey Policy = "block_key"
)

// RelayConfig sets up a [Relay]. The zero value of each field means its default.
type RelayConfig struct {
	// Owner names this relay among all of the database; no two that run at once may share it. At most
	// 128 bytes. Default: the host's name, the process id and a random part. Where only one process
	// ever has the database, a fixed name lets a restart go on at once with the leases of one that was killed.
	Owner string

	// OnPoison is used when the publisher's error is classified as Poison or Drop. Default [SkipKey].
	OnPoison Policy

	// Classifier judges the publisher's errors. Default: the default classifier, but a publisher that
	// panics is tried again: the row is not to blame.
	Classifier *classify.Classifier

	// Batch is the most messages given to one Publish. Default 250, at most 10,000.
	Batch int

	// InFlight is how many Publish calls of one topic run at the same moment, with different keys. Default
	// 4, at most 64. With 1 all rows of a topic are published in the order of their ids.
	InFlight int

	// Page is the most rows read at once. A page ends with the row that reaches PageBytes, of payload and metadata: so it
	// holds up to PageBytes and its last row, whatever size that has (at most MaxPayloadBytes and MaxMetadataBytes). Up to
	// three pages of each topic that is published are in memory: 3 times Topics times that, by default 192 MiB and 48 rows.
	// Defaults 1,000 and 4 MiB; at most 10,000 and 1 GiB.
	Page, PageBytes int

	// Topics is how many topics are published at the same moment. A publisher that hangs takes one of
	// them for good. Default 16, at most 1,024.
	Topics int

	// PublishTimeout is the deadline of the contexts of the messages of one Publish. The relay starts no
	// Publish that could outlast its leases by this measure. Default 5 s.
	PublishTimeout time.Duration

	// LeaseTTL is how long buckets stay with a relay that was not heard of: the time it takes another to
	// go on after a death. At least twice PublishTimeout. Default 10 s.
	LeaseTTL time.Duration

	// PollMin and PollMax bound the time between two looks into the table: it starts at PollMin when
	// rows were found or [Relay.Wake] was called and doubles while there are none. Defaults 25 ms and 1 s.
	PollMin, PollMax time.Duration

	// BackoffMin and BackoffMax bound the wait after a failed publish, which grows by half each time,
	// with jitter. Defaults 100 ms and 30 s.
	BackoffMin, BackoffMax time.Duration

	// DatabaseTimeout bounds each call of the source. Default 5 s; less than LeaseTTL.
	DatabaseTimeout time.Duration

	// DrainLimit is how long Run goes on after its context has ended: in the first half it still publishes what was
	// committed, if that is much, and then waits for publishes in flight. Default 10 s.
	DrainLimit time.Duration

	// Signal, if there is one, is run by the relay: it wakes the relay when another process has committed
	// rows, and [Relay.Wake] passes the hint on while other relays hold buckets. Default: none.
	Signal Signal

	// Observe, if there is one, is told of every call of Publish, for metrics. It must not block; it is called
	// from several goroutines.
	Observe func(Published)

	// Logger gets what changes: a topic fails, a topic recovers, a row is given up. Default
	// slog.Default().
	Logger *slog.Logger
}

// withDefaults returns c with its zero fields filled, or an error that names each wrong field.
func (c RelayConfig) withDefaults() (RelayConfig, error) {
	var errs []error
	if c.Owner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		c.Owner = fmt.Sprintf("%.64s-%d-%s", host, os.Getpid(), watermill.NewShortUUID())
	}
	if err := checkName("Owner", c.Owner, 128); err != nil {
		errs = append(errs, err)
	}
	if c.Classifier == nil {
		c.Classifier = classify.New(classify.RetryPanics)
	}
	if c.OnPoison == "" {
		c.OnPoison = SkipKey
	}
	if c.OnPoison != SkipKey && c.OnPoison != BlockKey {
		errs = append(errs, fmt.Errorf("OnPoison %q: want %q or %q", c.OnPoison, SkipKey, BlockKey))
	}
	for _, f := range []struct {
		name       string
		value      *int
		zero, most int
	}{
		{"Batch", &c.Batch, 250, 10_000},
		{"InFlight", &c.InFlight, 4, Buckets},
		{"Page", &c.Page, 1_000, 10_000},
		{"PageBytes", &c.PageBytes, 4 << 20, 1 << 30},
		{"Topics", &c.Topics, 16, 1_024},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < 0 || *f.value > f.most {
			errs = append(errs, fmt.Errorf("%s %d: want 1 to %d", f.name, *f.value, f.most))
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{
		{"PublishTimeout", &c.PublishTimeout, 5 * time.Second},
		{"LeaseTTL", &c.LeaseTTL, 10 * time.Second},
		{"PollMin", &c.PollMin, 25 * time.Millisecond},
		{"PollMax", &c.PollMax, time.Second},
		{"BackoffMin", &c.BackoffMin, 100 * time.Millisecond},
		{"BackoffMax", &c.BackoffMax, 30 * time.Second},
		{"DatabaseTimeout", &c.DatabaseTimeout, 5 * time.Second},
		{"DrainLimit", &c.DrainLimit, 10 * time.Second},
	} {
		if *f.value == 0 {
			*f.value = f.zero
		}
		if *f.value < time.Millisecond || *f.value > 24*time.Hour {
			errs = append(errs, fmt.Errorf("%s %v: want 1ms to 24h", f.name, *f.value))
		}
	}
	for _, f := range []struct {
		bad  bool
		text string
	}{
		{c.LeaseTTL < 2*c.PublishTimeout, fmt.Sprintf("LeaseTTL %v: want at least twice PublishTimeout %v", c.LeaseTTL, c.PublishTimeout)},
		{c.DatabaseTimeout >= c.LeaseTTL, fmt.Sprintf("DatabaseTimeout %v: want less than LeaseTTL %v", c.DatabaseTimeout, c.LeaseTTL)},
		{c.PollMin > c.PollMax, fmt.Sprintf("PollMin %v: want at most PollMax %v", c.PollMin, c.PollMax)},
		{c.BackoffMin > c.BackoffMax, fmt.Sprintf("BackoffMin %v: want at most BackoffMax %v", c.BackoffMin, c.BackoffMax)},
	} {
		if f.bad {
			errs = append(errs, errors.New(f.text))
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if len(errs) > 0 {
		return RelayConfig{}, fmt.Errorf("outbox: relay config: %w", errors.Join(errs...))
	}
	return c, nil
}

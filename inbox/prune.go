package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// The defaults of [PrunerConfig].
const (
	DefaultRetention     = 30 * 24 * time.Hour
	DefaultPruneInterval = 10 * time.Minute
	DefaultPruneBatch    = 1000
)

const (
	pruneTimeout = 30 * time.Second // of one statement
	maxPrunePace = time.Second
)

// PrunerConfig tells what to prune and how often. Zero values are the defaults.
type PrunerConfig struct {
	// Retention is how long a claim is kept: longer than the oldest redelivery, see [Horizon].
	// The default is [DefaultRetention].
	Retention time.Duration
	// Interval is the mean time between two rounds; each wait differs by up to a tenth, so that replicas
	// do not prune in step. The default is [DefaultPruneInterval].
	Interval time.Duration
	// Batch is how many claims one statement deletes at most. The default is [DefaultPruneBatch].
	Batch int
	// Logger gets a warning for a round that failed. The default is [slog.Default].
	Logger *slog.Logger
}

// Pruner deletes the claims that are older than the retention, the oldest first, in small statements. After
// each it rests for as long as that took, so that claims find the database no more than half busy with it. Any
// number of replicas may run one on the same database.
//
// The claims stay in one table. Partitions by time would be cheaper to drop, but a unique index does not reach
// across them: a claim would have to look into every one, and two copies that come at the turn of a partition
// would both be new. Deleting in the order of time touches pages side by side, costs the claim nothing, and the
// freed pages are used again.
type Pruner struct {
	db     Database
	config PrunerConfig
}

// NewPruner checks its arguments.
func NewPruner(db Database, config PrunerConfig) (*Pruner, error) {
	if config.Retention == 0 {
		config.Retention = DefaultRetention
	}
	if config.Interval == 0 {
		config.Interval = DefaultPruneInterval
	}
	if config.Batch == 0 {
		config.Batch = DefaultPruneBatch
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	var errs []error
	if db == nil {
		errs = append(errs, errors.New("inbox: pruner: db is nil"))
	}
	if config.Retention < 0 {
		errs = append(errs, fmt.Errorf("inbox: pruner: Retention %s: want more than 0", config.Retention))
	}
	if config.Interval < time.Millisecond {
		errs = append(errs, fmt.Errorf("inbox: pruner: Interval %s: want at least 1ms", config.Interval))
	}
	if config.Batch < 0 {
		errs = append(errs, fmt.Errorf("inbox: pruner: Batch %d: want at least 1", config.Batch))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Pruner{db: db, config: config}, nil
}

// Run prunes until ctx ends and then returns nil. A round that fails is logged and tried again at the
// next interval: a database that is down is no reason to end the service. The first round is within the
// first tenth of the interval, so that a service that is restarted often prunes too.
func (p *Pruner) Run(ctx context.Context) error {
	timer := time.NewTimer(rand.N(p.config.Interval / 10))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if _, err := p.Prune(ctx); err != nil && ctx.Err() == nil {
			p.config.Logger.WarnContext(ctx, "inbox: claims were not pruned", "error", err)
		}
		timer.Reset(p.wait())
	}
}

// Prune does one round: it deletes batch by batch until none is left that was too old when the round
// began, and returns how many it deleted.
func (p *Pruner) Prune(ctx context.Context) (int, error) {
	before := time.Now().Add(-p.config.Retention)
	total := 0
	for {
		start := time.Now()
		n, err := p.batch(ctx, before)
		total += n
		if err != nil {
			return total, err
		}
		if n < p.config.Batch {
			return total, nil
		}
		rest(ctx, min(time.Since(start), maxPrunePace))
	}
}

func (p *Pruner) batch(ctx context.Context, before time.Time) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	return p.db.Prune(ctx, before, p.config.Batch)
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *Pruner) wait() time.Duration {
	spread := p.config.Interval / 10
	return p.config.Interval - spread + rand.N(2*spread+1)
}

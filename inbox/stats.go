package inbox

import (
	"context"
	"time"
)

// Stats is how an inbox stands at one moment.
type Stats struct {
	// Claims is about how many claims there are. Postgres and MySQL estimate it from their own statistics,
	// which are minutes old, on MySQL 8 up to a day (information_schema_stats_expiry); SQLite counts to 100,000
	// and no further.
	Claims int64

	// Oldest is the age of the oldest claim by the database's clock, 0 without one. While it is below the
	// retention nothing was forgotten yet; well above the retention, pruning does not keep up.
	Oldest time.Duration

	// Duplicates counts the claims that were there already, since this process made the store.
	Duplicates int64
}

// Margin is how far the inbox remembers beyond the oldest redelivery there can be; negative: a redelivery of
// that age takes effect again. Until the first prune nothing was forgotten: the margin is then what the
// retention promises.
func (s Stats) Margin(retention time.Duration, h Horizon) time.Duration {
	return max(s.Oldest, retention) - h.Total()
}

// Observed is a [Database] that tells how it stands. The stores of this module do.
type Observed interface {
	Database

	// Stats asks the database. It costs a few index reads, whatever the size, and needs a connection.
	Stats(ctx context.Context) (Stats, error)
}

// ObservedOf returns what tells of d, also where d was made by [Map], [Grouped] or [NewBatcher]; nil if nothing does.
func ObservedOf(d Database) Observed {
	o, _ := base(d).(Observed)
	return o
}

package postgres

import (
	"context"
	"errors"
	"time"
)

// trouble is a failing database as one goroutine sees it. Its begin and its end are logged, not each failure.
type trouble struct {
	since    time.Time // zero: there is none
	failures int
}

func (t *trouble) report(s *subscription, err error) {
	ctx := context.Background()
	switch {
	case err == nil && t.failures > 0:
		s.broker.log.InfoContext(ctx, "postgres: the database can be reached again",
			"consumer", s.consumer, "topic", s.topic, "after", time.Since(t.since))
		*t = trouble{}
	case err == nil, errors.Is(err, context.Canceled):
	default:
		if t.failures == 0 {
			t.since = time.Now()
			s.broker.log.WarnContext(ctx, "postgres: the database fails; a subscription goes on trying",
				"consumer", s.consumer, "topic", s.topic, "error", err)
		}
		t.failures++
	}
}

// wait is how long to wait before the next try.
func (t *trouble) wait(most time.Duration) time.Duration {
	return min(25*time.Millisecond<<min(t.failures, 6), most)
}

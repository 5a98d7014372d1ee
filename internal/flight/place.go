package flight

import (
	"context"
	"time"
)

// Place is a delivery's place among those that run at once. The intake gives it.
type Place interface {
	// Rest gives the place to another delivery.
	Rest()
	// Rouse waits for a place again; false: ctx ended before that.
	Rouse(ctx context.Context) bool
}

// Sleep waits for d, or until ctx is done; then it reports false. Meanwhile the delivery keeps its lane, but
// not its place: a message that waits to be tried again holds up its own key and nothing else.
func (f *Flight) Sleep(ctx context.Context, d time.Duration) bool {
	if f.Place == nil {
		return sleep(ctx, d)
	}
	f.Place.Rest()
	return sleep(ctx, d) && f.Place.Rouse(ctx)
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

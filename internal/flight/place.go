package flight

import (
	"context"
	"time"
)

// Place is a delivery's place among those that run at once. The intake gives it.
type Place interface {
	// Rest gives the place to another delivery.
	Rest()
	// Rouse waits for a place again; false: ctx ended or a drain began before that.
	Rouse(ctx context.Context) bool
	// Draining is closed when the intake drains: what has not begun another attempt begins none.
	Draining() <-chan struct{}
}

// Sleep waits for d; it reports false if ctx or a drain ended it. Meanwhile the delivery keeps its lane, but
// not its place: a message that waits to be tried again holds up its own key and nothing else. It does not
// hold up a shutdown either: the next process tries it again.
func (f *Flight) Sleep(ctx context.Context, d time.Duration) bool {
	if f.Place == nil {
		return sleep(ctx, nil, d)
	}
	f.Place.Rest()
	return sleep(ctx, f.Place.Draining(), d) && f.Place.Rouse(ctx)
}

// IsDraining tells whether the delivery's intake drains.
func (f *Flight) IsDraining() bool {
	if f.Place == nil {
		return false
	}
	select {
	case <-f.Place.Draining():
		return true
	default:
		return false
	}
}

func sleep(ctx context.Context, drain <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-drain:
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

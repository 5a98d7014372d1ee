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

// NoTimeLimit as the duration of Await waits for the channel alone.
const NoTimeLimit time.Duration = -1

// Sleep waits for d; it reports false if ctx or a drain ended it. Meanwhile the delivery keeps its lane, but
// not its place: a message that waits to be tried again holds up its own key and nothing else. It does not
// hold up a shutdown either: the next process tries it again.
func (f *Flight) Sleep(ctx context.Context, d time.Duration) bool {
	return f.Await(ctx, nil, max(d, 0))
}

// Await is Sleep that also ends, well, when wake is closed.
func (f *Flight) Await(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	if f.Trial != nil && d != NoTimeLimit {
		d = f.Trial.Wait(d)
	}
	if f.Place == nil {
		return await(ctx, nil, wake, d)
	}
	f.Place.Rest()
	return await(ctx, f.Place.Draining(), wake, d) && f.Place.Rouse(ctx)
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

func await(ctx context.Context, drain, wake <-chan struct{}, d time.Duration) bool {
	var passed <-chan time.Time
	if d != NoTimeLimit {
		timer := time.NewTimer(d)
		defer timer.Stop()
		passed = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-drain:
		return false
	case <-wake:
		return ctx.Err() == nil
	case <-passed:
		return ctx.Err() == nil
	}
}

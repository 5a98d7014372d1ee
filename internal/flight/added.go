package flight

import "context"

type addsKey struct{}

// WithAdds returns ctx, which belongs to no delivery, as one whose Added counts for f.
func WithAdds(ctx context.Context, f *Flight) context.Context {
	return context.WithValue(ctx, addsKey{}, f)
}

// Added notes that rows went into an outbox for the delivery that ctx belongs to. It may be called from any goroutine;
// without a flight it does nothing.
func Added(ctx context.Context) {
	f := From(ctx)
	if f == nil {
		f, _ = ctx.Value(addsKey{}).(*Flight)
	}
	if f != nil {
		f.added.Store(true)
	}
}

// HasAdded tells whether rows went into an outbox in any attempt: a handler may have committed a transaction of its own and
// failed afterwards.
func (f *Flight) HasAdded() bool { return f.added.Load() }

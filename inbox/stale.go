package inbox

import (
	"context"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// SkipStale guards fn by the entity's version, for brokers and producers that cannot keep the order: a
// message with a version older than the newest one applied is skipped. It is not an error; its claim is
// committed and it is acked as stale.
//
// versionOf reads the entity's name (1 to [MaxNameBytes] bytes) and version from the event. An equal version
// is applied: the same message again is the claim's to recognise, and different ones of one version are
// common where it is a time of limited resolution. The version is recorded in fn's transaction, per
// consumer, and the entity's row stays locked until it ends: events of one entity do not overlap, in
// whatever processes they are.
//
//	runtime.HandleTx(orders, "order.changed", store, inbox.SkipStale(store, orderVersion, saveOrder))
func SkipStale[Tx, T any](store Store[Tx], versionOf func(T) (entity string, version int64), fn func(context.Context, Tx, T) error) func(context.Context, Tx, T) error {
	if store == nil || versionOf == nil || fn == nil {
		panic("inbox.SkipStale: store, versionOf and fn must not be nil")
	}
	return func(ctx context.Context, tx Tx, event T) error {
		f := flight.From(ctx)
		if f == nil || f.Consumer == "" {
			return classify.Permanent(ErrNoConsumer)
		}
		entity, version := versionOf(event)
		current, err := store.Advance(ctx, tx, f.Consumer, entity, version)
		if err != nil {
			return err
		}
		if !current {
			flight.Give(f, flight.Stale) // for run, which lets it stand once the claim is committed
			return nil
		}
		return fn(ctx, tx, event)
	}
}

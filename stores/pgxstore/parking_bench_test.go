package pgxstore_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/parking"
)

// BenchmarkOnceThatParks is one claim with one upsert for a key that is not parked, with and without the look
// whether it is. The ratio of the two is what parking costs each message. "appended" is what a parked key's cost.
func BenchmarkOnceThatParks(b *testing.B) {
	p := newPlace(b, pgx.QueryExecModeCacheStatement)
	plain := p.migrated(b)
	parks, err := parking.Wrap[pgx.Tx](plain, "billing", parking.Policy{MaxPerKey: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	ctx := func(key, id string) context.Context {
		msg := message.NewMessage(id, []byte("payload"))
		msg.SetContext(brokers.WithDelivery(b.Context(), &brokers.Delivery{Topic: "orders", Partition: -1, Offset: -1, Key: []byte(key)}))
		return flight.Ensure(msg)
	}
	_, err = plain.Once(b.Context(), inbox.Claim{Consumer: "billing", ID: "first"}, func(ctx context.Context, tx pgx.Tx) error {
		return plain.Parking().Open(ctx, tx, parking.Key{Consumer: "billing", Name: "parked"})
	})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for _, subject := range []struct {
		name, key string
		store     inbox.Store[pgx.Tx]
	}{{"without", "live", plain}, {"with", "live", parks}, {"appended", "parked", parks}} {
		b.Run(subject.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n++
				id := strconv.Itoa(n)
				_, err := subject.store.Once(ctx(subject.key, id), inbox.Claim{Consumer: "billing", ID: id}, func(ctx context.Context, tx pgx.Tx) error {
					return p.add(ctx, tx, "x")
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

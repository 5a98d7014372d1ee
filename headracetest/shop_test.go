package headracetest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest"
	"github.com/headrace-go/headrace/headracetest/sqlitetest"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

// Order is the state of an order. Version 1 of its schema had the amount in units instead of cents.
type Order struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
	Cents   int    `json:"cents"`
}

func (o Order) Validate() error {
	if o.Cents == 0 {
		return errors.New("cents is 0: want the price")
	}
	return nil
}

var errNegative = errors.New("cents is negative")

// Billed is what the shop publishes.
type Billed struct {
	ID    string `json:"id"`
	Cents any    `json:"cents"`
}

// shop is a service that does everything right. A test breaks one thing.
type shop struct {
	store *sqlstore.Store
	spec  headracetest.Spec

	config   runtime.ConsumerConfig
	upcaster bool
}

// process is one life of the shop.
type process struct {
	*shop
	rt     *runtime.Runtime
	orders *runtime.Consumer
}

// newShop returns a shop with the handlers of wire, and a spec with everything in it.
func newShop(t testing.TB, wire func(process)) *shop {
	t.Helper()
	s := &shop{
		upcaster: true,
		config:   runtime.ConsumerConfig{Name: "shop.orders", Topic: "orders"},
		store: sqlitetest.Open(t,
			`CREATE TABLE orders (id TEXT PRIMARY KEY, version INTEGER NOT NULL, cents INTEGER NOT NULL, times INTEGER NOT NULL)`,
			`CREATE TABLE seen (id TEXT PRIMARY KEY)`),
	}
	s.spec = headracetest.Spec{
		Service: func(b brokers.Broker) (*runtime.Runtime, error) { return s.service(b, wire) },
		Topic:   "orders",
		Event: func(ctx context.Context, key string, n int) (*message.Message, error) {
			return placed(ctx, key, n, 100*n)
		},
		State:     s.state,
		Publishes: []string{"order.billed"},
		Outbox:    s.store.Outbox(),
		Versioned: true,
		Old:       old,
		Poison:    func(ctx context.Context, key string) (*message.Message, error) { return placed(ctx, key, 1, -1) },
		Schemas: map[string][]byte{
			"order.placed": []byte(`{"type": "object", "required": ["id", "version", "cents"]}`),
			"order.billed": []byte(`{"type": "object", "properties": {"cents": {"type": "integer", "minimum": 1}}}`),
		},
		Strict: true,
	}
	return s
}

func placed(ctx context.Context, id string, version, cents int) (*message.Message, error) {
	return event.New(ctx, "order.placed", Order{ID: id, Version: int64(version), Cents: cents}, event.WithKey(id), event.WithSchemaVersion(2))
}

func old(ctx context.Context, id string) ([]*message.Message, error) {
	m, err := event.New(ctx, "order.placed", map[string]any{"id": id, "version": 1, "units": 1}, event.WithKey(id))
	return []*message.Message{m}, err
}

// upcast makes a version 2 of a version 1.
func upcast(data []byte) ([]byte, error) {
	var v struct {
		ID      string `json:"id"`
		Version int64  `json:"version"`
		Units   int    `json:"units"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	return json.Marshal(Order{ID: v.ID, Version: v.Version, Cents: 100 * v.Units})
}

// quiet keeps the services' logs out of the tests' output.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (s *shop) service(b brokers.Broker, wire func(process)) (*runtime.Runtime, error) {
	rt, err := runtime.New(runtime.Config{Service: "shop", Broker: b, Logger: quiet()})
	if err != nil {
		return nil, err
	}
	config := s.config
	if s.upcaster {
		var up event.Upcasters
		up.Add("order.placed", 1, upcast)
		if config.Decoder, err = event.NewDecoder(event.DecoderConfig{Upcasters: &up}); err != nil {
			return nil, err
		}
	}
	wire(process{shop: s, rt: rt, orders: rt.ConsumerWith(config)})
	return rt, nil
}

// state tells how often an order was written, and what it is now.
func (s *shop) state(ctx context.Context, id string) (string, error) {
	var version, cents, times int
	err := s.store.DB().QueryRowContext(ctx, `SELECT version, cents, times FROM orders WHERE id = ?`, id).Scan(&version, &cents, &times)
	if errors.Is(err, sql.ErrNoRows) {
		return "none", nil
	}
	return fmt.Sprintf("version %d of %s, %d cents, written %d times", version, id, cents, times), err
}

// database is a *sql.DB or a *sql.Tx.
type database interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// save writes an order; times is how often that counts.
func save(ctx context.Context, db database, o Order, times int) error {
	if o.Cents < 0 {
		return classify.Permanent(errNegative)
	}
	_, err := db.ExecContext(ctx, `INSERT INTO orders VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
		version = excluded.version, cents = excluded.cents, times = times + excluded.times`, o.ID, o.Version, o.Cents, times)
	return err
}

// saveNewer is save for those who guard the version by themselves.
func saveNewer(ctx context.Context, db database, o Order) error {
	var version int64
	err := db.QueryRowContext(ctx, `SELECT version FROM orders WHERE id = ?`, o.ID).Scan(&version)
	if err == nil && version > o.Version {
		return nil
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	return save(ctx, db, o, 1)
}

// publish adds the event that follows to the outbox.
func (s *shop) publish(ctx context.Context, tx *sql.Tx, o Order) error {
	billed, err := event.New(ctx, "order.billed", Billed{ID: o.ID, Cents: o.Cents}, event.WithKey(o.ID))
	if err != nil {
		return err
	}
	return s.add(ctx, tx, billed)
}

// add adds msg to the outbox.
func (s *shop) add(ctx context.Context, tx *sql.Tx, msg *message.Message) error {
	return outbox.Add(ctx, s.store, tx, "bills", msg)
}

// saveOnce is what a handler does that has an inbox of its own.
func (s *shop) saveOnce(ctx context.Context, o Order) error {
	tx, err := s.store.DB().BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	r, err := tx.ExecContext(ctx, `INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING`, event.MessageID(ctx))
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if err := saveNewer(ctx, tx, o); err != nil {
		return err
	}
	return tx.Commit()
}

// place is the handler that does everything right.
func (s *shop) place(ctx context.Context, tx *sql.Tx, o Order) error {
	if err := save(ctx, tx, o, 1); err != nil {
		return err
	}
	return s.publish(ctx, tx, o)
}

// guarded is h without older versions.
func (s *shop) guarded(h func(context.Context, *sql.Tx, Order) error) func(context.Context, *sql.Tx, Order) error {
	return inbox.SkipStale(s.store, func(o Order) (string, int64) { return o.ID, o.Version }, h)
}

// handle registers h, guarded.
func (p process) handle(h func(context.Context, *sql.Tx, Order) error) {
	runtime.HandleTx(p.orders, "order.placed", p.store, p.guarded(h))
}

// plain is the spec of a handler without a transaction of the inbox: it publishes nothing and reads one form.
func (s *shop) plain() *shop {
	s.spec.Publishes, s.spec.Old = nil, nil
	s.spec.Schemas = nil
	s.spec.Strict = false
	return s
}

package runtime_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/pgxstore"
	"github.com/headrace-go/headrace/stores/testonly"
)

var fixed = parking.Reason{Actor: "ada", Reason: "fixed in release 7"}

// parkingPolicy looks for released keys often.
func parkingPolicy() *parking.Policy {
	return &parking.Policy{Poll: 5 * time.Millisecond, HoldDelay: time.Millisecond, MaxHoldDelay: 5 * time.Millisecond}
}

// ordersTx is a consumer that parks, and its effects, on any database.
type ordersTx struct {
	ledger  parking.Ledger
	effects func() []string
	handle  func(c *runtime.Consumer, fails func(id string) error)
	// refuse makes the database refuse the claims of the messages whose ids match, with that SQLSTATE; "": none. On Postgres.
	refuse func(ids, state string)
}

func onSQLite(t *testing.T) ordersTx {
	store := openStore(t)
	return ordersTx{
		ledger:  store.Parking(),
		effects: func() []string { return effects(t, store) },
		handle: func(c *runtime.Consumer, fails func(string) error) {
			runtime.HandleTx(c, "order.placed", store, func(ctx context.Context, tx *sql.Tx, o order) error {
				if _, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (?)`, o.ID); err != nil {
					return err
				}
				return fails(o.ID)
			})
		},
	}
}

func onPostgres(t *testing.T) ordersTx {
	pool, err := pgxpool.New(t.Context(), testserver.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("rt_%d_%d", os.Getpid(), schemas.next())
	execute := func(statement string) {
		t.Helper()
		if _, err := pool.Exec(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	t.Cleanup(func() {
		execute("DROP SCHEMA IF EXISTS " + name + " CASCADE")
		pool.Close()
	})
	execute("CREATE SCHEMA " + name)
	execute("CREATE TABLE " + name + ".effects (n bigint GENERATED ALWAYS AS IDENTITY, id text)")
	store, err := pgxstore.New(pool, pgxstore.WithSchema(name))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	grouped := inbox.Grouped[pgx.Tx](store, inbox.GroupConfig{})
	return ordersTx{
		ledger: store.Parking(),
		refuse: func(ids, state string) {
			execute("CREATE OR REPLACE FUNCTION " + name + ".refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF '" + state +
				"' <> '' AND NEW.id LIKE '" + ids + "' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '" + state + "'; END IF; RETURN NEW; END $$")
			execute("CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON " + name + ".headrace_inbox FOR EACH ROW EXECUTE FUNCTION " + name + ".refuse()")
		},
		effects: func() []string {
			rows, err := pool.Query(context.Background(), "SELECT id FROM "+name+".effects ORDER BY n")
			if err != nil {
				t.Fatal(err)
			}
			ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			return ids
		},
		handle: func(c *runtime.Consumer, fails func(string) error) {
			own := inbox.Store[pgx.Tx](store)
			if strings.Contains(t.Name(), "Grouped") {
				own = grouped
			}
			runtime.HandleTx(c, "order.placed", own, func(ctx context.Context, tx pgx.Tx, o order) error {
				if _, err := tx.Exec(ctx, "INSERT INTO "+name+".effects (id) VALUES ($1)", o.ID); err != nil {
					return err
				}
				return fails(o.ID)
			})
		},
	}
}

// counter gives numbers.
type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

var schemas counter

// faults are the orders whose handling fails for good.
type faults struct {
	mu  sync.Mutex
	ids map[string]bool
}

func newFaults(ids ...string) *faults {
	f := &faults{ids: map[string]bool{}}
	for _, id := range ids {
		f.ids[id] = true
	}
	return f
}

func (f *faults) of(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[id] {
		return classify.Permanent(errBroken)
	}
	return nil
}

func (f *faults) fix(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.ids, id)
	}
}

func of(t *testing.T, key string, ids ...string) []*message.Message {
	t.Helper()
	var msgs []*message.Message
	for _, id := range ids {
		msgs = append(msgs, placed(t, id, event.WithKey(key)))
	}
	return msgs
}

func ofKey(ids []string, prefix string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !strings.HasPrefix(id, prefix) })
}

func (b *bench) wantEffects(o ordersTx, prefix string, want ...string) {
	b.t.Helper()
	if got := ofKey(o.effects(), prefix); !slices.Equal(got, want) {
		b.t.Errorf("effects of %s: %q, want %q", prefix, got, want)
	}
}

// A payment failed, and the later ones of its account were booked without it.
func TestParkedKeyIsHandledInOrderBeforeItsLiveMessages(t *testing.T) {
	for name, on := range map[string]func(*testing.T) ordersTx{
		"SQLite": onSQLite, "Postgres": onPostgres, "PostgresGrouped": onPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			o, broken := on(t), newFaults("a2")
			b := newBench(t, nil)
			c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()})
			o.handle(c, broken.of)
			b.start()
			b.publish("orders", of(t, "a", "a1", "a2", "a3", "a4", "a5")...)
			b.publish("orders", of(t, "b", "b1", "b2", "b3")...)
			b.eventually("three parked, four handled", func() bool {
				s := c.Stats()
				return s.Parked == 3 && s.Effects == 4 && s.DeadLettered == 1
			})
			b.wantEffects(o, "a", "a1")
			b.wantEffects(o, "b", "b1", "b2", "b3")
			keys, err := o.ledger.Keys(t.Context(), "billing", "", 10)
			if err != nil || len(keys) != 1 || keys[0].Name != "a" || keys[0].Messages != 4 {
				t.Fatalf("keys %+v, %v; want a with 4 messages", keys, err)
			}
			record, err := poison.Parse(b.dead("orders", 1)[0])
			if err != nil || string(record.Payload) != `{"id":"a2"}` {
				t.Errorf("dead letter %+v, %v; want that of a2", record, err)
			}

			broken.fix("a2")
			if ok, err := o.ledger.Release(t.Context(), "billing", "a", fixed); !ok || err != nil {
				t.Fatalf("Release: %t, %v", ok, err)
			}
			b.publish("orders", of(t, "a", "a6", "a7", "a8")...)
			b.eventually("all are handled", func() bool { return len(o.effects()) == 11 && b.unacked("orders", "billing") == 0 })
			b.wantEffects(o, "a", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8")
			b.eventually("nothing is parked", func() bool { n, ok := c.Parked(); return ok && n.Keys == 0 })
			b.mustStop()
			if s := c.Stats(); s.DeadLettered != 1 {
				t.Errorf("stats %+v, want 1 dead letter", s)
			}
		})
	}
}

// The process ended while a key was parked, and between two of its messages in the drain.
func TestParkedKeySurvivesARestart(t *testing.T) {
	o, broken := onSQLite(t), newFaults("a1", "a3")
	first := newBench(t, nil)
	config := runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()}
	c := first.rt.ConsumerWith(config)
	o.handle(c, broken.of)
	first.start()
	first.publish("orders", of(t, "a", "a1", "a2", "a3", "a4")...)
	first.eventually("all are parked", func() bool { return c.Stats().Parked == 3 })
	first.mustStop()

	second := newBench(t, func(c *runtime.Config) { c.Broker = first.broker })
	second.broker = first.broker
	c = second.rt.ConsumerWith(config)
	o.handle(c, broken.of)
	second.start()
	broken.fix("a1")
	if _, err := o.ledger.Release(t.Context(), "billing", "a", fixed); err != nil {
		t.Fatal(err)
	}
	// a3 fails again and stays first: a4 must not pass it.
	second.eventually("the key is parked again", func() bool {
		keys, err := o.ledger.Keys(t.Context(), "billing", "", 10)
		return err == nil && len(keys) == 1 && keys[0].State == parking.Parked && keys[0].Failures == 2
	})
	second.wantEffects(o, "a", "a1", "a2")
	second.mustStop()

	third := newBench(t, func(c *runtime.Config) { c.Broker = first.broker })
	third.broker = first.broker
	o.handle(third.rt.ConsumerWith(config), broken.of)
	third.start()
	broken.fix("a3")
	if n, err := o.ledger.ReleaseAll(t.Context(), "billing", fixed); n != 1 || err != nil {
		t.Fatalf("ReleaseAll: %d, %v; want 1", n, err)
	}
	third.publish("orders", of(t, "a", "a5")...)
	third.eventually("all are handled", func() bool { return len(o.effects()) == 5 })
	third.wantEffects(o, "a", "a1", "a2", "a3", "a4", "a5")
	third.mustStop()
}

// Bytes that nobody can decode came for a key that was parked, and were dead-lettered out of order.
func TestUndecodableMessageOfAParkedKeyKeepsItsPlace(t *testing.T) {
	o, broken := onSQLite(t), newFaults("a1")
	b := newBench(t, nil)
	c := b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()})
	o.handle(c, broken.of)
	b.start()
	bad := placed(t, "a2", event.WithKey("a"))
	bad.Payload = []byte("\xff no JSON")
	b.publish("orders", append(of(t, "a", "a1"), append([]*message.Message{bad}, of(t, "a", "a3")...)...)...)
	b.eventually("all are parked", func() bool {
		n, err := o.ledger.Count(t.Context(), "billing")
		return err == nil && n.Messages == 3
	})
	broken.fix("a1")
	if _, err := o.ledger.Release(t.Context(), "billing", "a", fixed); err != nil {
		t.Fatal(err)
	}
	b.eventually("a2 has failed in its turn", func() bool {
		list, err := o.ledger.Messages(t.Context(), "billing", "a", 0, 10)
		return err == nil && len(list) == 2 && list[0].Record.Deaths == 2 && string(list[0].Record.Payload) == "\xff no JSON"
	})
	b.wantEffects(o, "a", "a1")
	if ok, err := o.ledger.Skip(t.Context(), "billing", "a", 2, parking.Reason{Actor: "ada", Reason: "not an order"}); !ok || err != nil {
		t.Fatalf("Skip: %t, %v", ok, err)
	}
	if _, err := o.ledger.Release(t.Context(), "billing", "a", fixed); err != nil {
		t.Fatal(err)
	}
	b.eventually("a3 is handled", func() bool { return len(o.effects()) == 2 })
	b.wantEffects(o, "a", "a1", "a3")
	b.mustStop()
}

// Back-pressure, not loss: what is beyond the bound waits un-acked, also over a shutdown.
func TestD5FullKeyIsHeldAndReleasedAtShutdown(t *testing.T) {
	o, broken := onSQLite(t), newFaults("a1")
	b := newBench(t, nil)
	policy := parkingPolicy()
	policy.MaxPerKey = 2
	config := runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: policy}
	c := b.rt.ConsumerWith(config)
	o.handle(c, broken.of)
	b.start()
	b.publish("orders", of(t, "a", "a1", "a2", "a3", "a4")...)
	b.publish("orders", of(t, "b", "b1")...)
	b.eventually("b1 is handled and a2 parked", func() bool { return len(o.effects()) == 1 && c.Stats().Parked == 1 })
	b.mustStop()
	if got := b.unacked("orders", "billing"); got != 2 {
		t.Errorf("%d un-acked after the shutdown, want 2", got)
	}

	next := newBench(t, func(c *runtime.Config) { c.Broker = b.broker })
	next.broker = b.broker
	o.handle(next.rt.ConsumerWith(config), broken.of)
	next.start()
	broken.fix("a1")
	if _, err := o.ledger.Release(t.Context(), "billing", "a", fixed); err != nil {
		t.Fatal(err)
	}
	next.eventually("all are handled", func() bool { return len(o.effects()) == 5 && next.unacked("orders", "billing") == 0 })
	next.wantEffects(o, "a", "a1", "a2", "a3", "a4")
	next.mustStop()
}

func TestParkingIsRefusedWithoutAnInbox(t *testing.T) {
	nothing := func(context.Context, order) error { return nil }
	for _, tc := range []struct {
		name   string
		policy *parking.Policy
		wire   func(*testing.T, *runtime.Consumer)
		want   []string
	}{
		{"plain handler", parkingPolicy(), func(_ *testing.T, c *runtime.Consumer) { runtime.Handle(c, "order.placed", nothing) }, []string{`"billing"`, "Park", `"order.placed"`, "HandleTx"}},
		{"plain handler beside one of HandleTx", parkingPolicy(), func(t *testing.T, c *runtime.Consumer) {
			onSQLite(t).handle(c, newFaults().of)
			runtime.Handle(c, "order.paid", nothing)
		}, []string{`"billing"`, `"order.paid"`, "HandleTx"}},
		{"batches", parkingPolicy(), func(t *testing.T, c *runtime.Consumer) {
			runtime.HandleBatch(c, "order.placed", openStore(t), inbox.GroupConfig{}, func(context.Context, *sql.Tx, []runtime.BatchEvent[order]) error { return nil })
		}, []string{`"billing"`, `"order.placed"`, "HandleTx"}},
		{"dead letters", parkingPolicy(), func(_ *testing.T, c *runtime.Consumer) {
			runtime.HandleDeadLetters(c, func(context.Context, poison.Record) error { return nil })
		}, []string{`"billing"`, "HandleTx"}},
		{"store that cannot", parkingPolicy(), func(_ *testing.T, c *runtime.Consumer) {
			runtime.HandleTx(c, "order.placed", testonly.New(), func(context.Context, *testonly.Tx, order) error { return nil })
		}, []string{`"billing"`, "cannot park", "testonly.Store", "sqlstore"}},
		{"two databases", parkingPolicy(), func(t *testing.T, c *runtime.Consumer) {
			onSQLite(t).handle(c, newFaults().of)
			runtime.HandleTx(c, "order.paid", openStore(t), func(context.Context, *sql.Tx, order) error { return nil })
		}, []string{`"billing"`, "2 databases"}},
		{"policy", &parking.Policy{MaxPerKey: -7}, func(t *testing.T, c *runtime.Consumer) { onSQLite(t).handle(c, newFaults().of) }, []string{"MaxPerKey", "-7"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			tc.wire(t, b.rt.ConsumerWith(runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: tc.policy}))
			b.start()
			wantParts(t, b.wait(), tc.want...)
		})
	}
}

// Two replicas, 12 keys of which every fourth has two poisoned messages, deliveries in any order of the
// processes: each effect once, in order per key.
func TestTwoReplicasDrainInOrderWithOneEffectEach(t *testing.T) {
	const keys, perKey = 12, 8
	var thirds, sevenths []string
	for k := 0; k < keys; k += 4 {
		thirds, sevenths = append(thirds, fmt.Sprintf("%02d-3", k)), append(sevenths, fmt.Sprintf("%02d-7", k))
	}
	o, broken := onPostgres(t), newFaults(append(thirds, sevenths...)...)
	var transient counter
	fails := func(id string) error {
		if transient.next()%23 == 0 {
			return errors.New("try again")
		}
		return broken.of(id)
	}
	b := newBench(t, nil)
	other := newBench(t, func(c *runtime.Config) { c.Broker = b.broker })
	config := runtime.ConsumerConfig{Name: "billing", Topic: "orders", Park: parkingPolicy()}
	o.handle(b.rt.ConsumerWith(config), fails)
	o.handle(other.rt.ConsumerWith(config), fails)
	b.start()
	other.start()
	for i := 1; i <= perKey; i++ {
		for k := range keys {
			b.publish("orders", of(t, fmt.Sprintf("%02d", k), fmt.Sprintf("%02d-%d", k, i))...)
		}
	}
	b.eventually("the healthy keys are handled and the others parked", func() bool {
		n, err := o.ledger.Count(t.Context(), "billing")
		return err == nil && n.Keys == keys/4 && b.unacked("orders", "billing") == 0
	})
	broken.fix(thirds...)
	released := func() bool {
		_, err := o.ledger.ReleaseAll(t.Context(), "billing", fixed)
		return err == nil
	}
	if !released() {
		t.Fatal("ReleaseAll failed")
	}
	b.eventually("they fail at the second", func() bool {
		n, err := o.ledger.Count(t.Context(), "billing")
		return err == nil && n.Released == 0 && n.Messages == keys/4*(perKey-6)
	})
	broken.fix(sevenths...)
	if !released() {
		t.Fatal("ReleaseAll failed")
	}
	b.eventually("all are handled", func() bool { return len(o.effects()) == keys*perKey })
	for k := range keys {
		var want []string
		for i := 1; i <= perKey; i++ {
			want = append(want, fmt.Sprintf("%02d-%d", k, i))
		}
		b.wantEffects(o, fmt.Sprintf("%02d-", k), want...)
	}
	b.mustStop()
	other.mustStop()
}

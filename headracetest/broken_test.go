package headracetest_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest"
	"github.com/headrace-go/headrace/runtime"
)

// brokenShops are services with one mistake each, which exactly one guarantee tells.
var brokenShops = []struct {
	name  string
	make  func(t testing.TB) *shop
	tells headracetest.Guarantee
	words []string
}{
	{
		name: "the handler is registered for a misspelt type",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) { runtime.HandleTx(p.orders, "order.place", p.store, p.guarded(p.place)) })
		},
		tells: headracetest.GuaranteeEffect,
		words: []string{`was ignored: consumer shop.orders has no handler for its type, "order.placed"`},
	},
	{
		name: "the handler forgets the effect",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) { p.handle(p.publish) })
		},
		tells: headracetest.GuaranteeEffect,
		words: []string{`the state stayed "none"`},
	},
	{
		name: "a message is known by its offset",
		make: func(t testing.TB) *shop {
			s := newShop(t, func(p process) { p.handle(p.place) })
			s.config.ID = func(m *message.Message) string {
				return fmt.Sprint(event.KeyOf(m), brokers.DeliveryOf(m.Context()).Offset)
			}
			return s
		},
		tells: headracetest.GuaranteeOnce,
		words: []string{"after the second delivery the state changed from", "written 1 times", "written 2 times", "published order.billed, under new ids"},
	},
	{
		name: "what was seen is asked first and noted last",
		make: func(t testing.TB) *shop {
			asked := make(chan struct{}) // two that have asked at the same time meet here
			return newShop(t, func(p process) {
				runtime.Handle(p.orders, "order.placed", func(ctx context.Context, o Order) error {
					db, seen := p.store.DB(), 0
					if err := db.QueryRowContext(ctx, `SELECT count(*) FROM seen WHERE id = ?`, event.MessageID(ctx)).Scan(&seen); err != nil || seen > 0 {
						return err
					}
					alone := time.NewTimer(50 * time.Millisecond)
					defer alone.Stop()
					select {
					case asked <- struct{}{}:
					case <-asked:
					case <-alone.C:
					}
					if err := saveNewer(ctx, db, o); err != nil {
						return err
					}
					_, err := db.ExecContext(ctx, `INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING`, event.MessageID(ctx))
					return err
				})
			}).plain()
		},
		tells: headracetest.GuaranteeTogether,
		words: []string{"after both the state is", "written 2 times", "want", "written 1 times"},
	},
	{
		name: "the last that came wins",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) { runtime.HandleTx(p.orders, "order.placed", p.store, p.place) })
		},
		tells: headracetest.GuaranteeVersion,
		words: []string{"version 1 after version 2 changed the state from", "version 2 of", "version 1 of"},
	},
	{
		name: "the first that came wins",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					there := 0
					if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM orders WHERE id = ?`, o.ID).Scan(&there); err != nil || there > 0 {
						return err
					}
					return p.place(ctx, tx, o)
				})
			})
		},
		tells: headracetest.GuaranteeVersion,
		words: []string{"a newer version after an older changes nothing"},
	},
	{
		name: "a lock of a process that was killed stays",
		make: func(t testing.TB) *shop {
			var locks sync.Map // elsewhere: it outlives the process
			return newShop(t, func(p process) {
				me := new(int)
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					if owner, _ := locks.LoadOrStore(event.MessageID(ctx), me); owner != me {
						return nil // somebody else is at it
					}
					return p.place(ctx, tx, o)
				})
			})
		},
		tells: headracetest.GuaranteeKillBefore,
		words: []string{"a process was killed before its commit, and the next one did nothing: the effect is lost"},
	},
	{
		name: "a redelivery is another message",
		make: func(t testing.TB) *shop {
			s := newShop(t, func(p process) { p.handle(p.place) })
			s.config.ID = func(m *message.Message) string {
				return fmt.Sprint(m.UUID, brokers.DeliveryOf(m.Context()).Count)
			}
			return s
		},
		tells: headracetest.GuaranteeKillAfter,
		words: []string{"a process was killed after its commit and before its ack, when the state was", "written 1 times", "the next one changed it to", "written 2 times"},
	},
	{
		name: "attempts add up in memory",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) {
				var mu sync.Mutex
				times := map[string]int{}
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					mu.Lock()
					defer mu.Unlock()
					times[event.MessageID(ctx)]++
					if err := save(ctx, tx, o, times[event.MessageID(ctx)]); err != nil {
						return err
					}
					return p.publish(ctx, tx, o)
				})
			})
		},
		tells: headracetest.GuaranteeRetry,
		words: []string{"after the second attempt the state is", "written 2 times", "want", "written 1 times"},
	},
	{
		name: "what cannot be decoded is passed over",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) {
				runtime.HandleMessage(p.orders, "order.placed", func(m *message.Message) error {
					var o Order
					if err := json.Unmarshal(m.Payload, &o); err != nil {
						return nil
					}
					return p.saveOnce(m.Context(), o)
				})
			}).plain()
		},
		tells: headracetest.GuaranteeGarbage,
		words: []string{"the handler of consumer shop.orders took it for a success: it is lost without a trace"},
	},
	{
		name: "what is refused is passed over",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					if o.Cents < 0 {
						return nil
					}
					return p.place(ctx, tx, o)
				})
			})
		},
		tells: headracetest.GuaranteePoison,
		words: []string{"took it for a success"},
	},
	{
		name: "what is refused is dropped",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					if o.Cents < 0 {
						return classify.Drop(errNegative)
					}
					return p.place(ctx, tx, o)
				})
			})
		},
		tells: headracetest.GuaranteePoison,
		words: []string{"the message was dropped: cents is negative"},
	},
	{
		name: "there is no upcaster",
		make: func(t testing.TB) *shop {
			s := newShop(t, func(p process) { p.handle(p.place) })
			s.upcaster = false
			return s
		},
		tells: headracetest.GuaranteeOldSchema,
		words: []string{"the older form 1 was dead-lettered", "cents is 0: want the price"},
	},
	{
		name: "the handler forgets to publish",
		make: func(t testing.TB) *shop {
			s := newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error { return save(ctx, tx, o, 1) })
			})
			s.spec.Strict = false // for the schema of what is not published
			return s
		},
		tells: headracetest.GuaranteeOutbox,
		words: []string{"the service has published nothing, want order.billed"},
	},
	{
		name: "nobody relays the outbox",
		make: func(t testing.TB) *shop {
			s := newShop(t, func(p process) { p.handle(p.place) })
			s.spec.Outbox = nil
			s.spec.Strict = false
			return s
		},
		tells: headracetest.GuaranteeOutbox,
		words: []string{"the service has published nothing, want order.billed", "let Service relay it, or set Spec.Outbox"},
	},
	{
		name: "the handler publishes past the outbox",
		make: func(t testing.TB) *shop {
			return newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					if err := save(ctx, tx, o, 1); err != nil {
						return err
					}
					billed, err := event.New(ctx, "order.billed", Billed{ID: o.ID, Cents: o.Cents})
					if err != nil {
						return err
					}
					return p.rt.Publisher().Publish("bills", billed)
				})
			})
		},
		tells: headracetest.GuaranteeRollback,
		words: []string{"the transaction was rolled back, and order.billed was published"},
	},
	{
		name: "cents are published as text",
		make: func(t testing.TB) *shop {
			s := newShop(t, func(p process) {
				p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
					if err := save(ctx, tx, o, 1); err != nil {
						return err
					}
					billed, err := event.New(ctx, "order.billed", Billed{ID: o.ID, Cents: fmt.Sprint(o.Cents)})
					if err != nil {
						return err
					}
					return p.add(ctx, tx, billed)
				})
			})
			return s
		},
		tells: headracetest.GuaranteeSchema,
		words: []string{`an event of type "order.billed" is not valid: at '/cents': got string, want integer`},
	},
}

// Each guarantee can be seen broken, by a service that breaks nothing else.
func TestEachMistakeIsToldByItsGuarantee(t *testing.T) {
	told := map[headracetest.Guarantee]bool{}
	for _, b := range brokenShops {
		told[b.tells] = true
		t.Run(b.name, func(t *testing.T) {
			v := judge(t, b.make(t).spec)
			if v.whole.Failed() {
				t.Fatalf("Consumer itself failed: %s", v.whole.told())
			}
			if got := v.broken(); !slices.Equal(got, []headracetest.Guarantee{b.tells}) {
				for _, g := range got {
					t.Logf("%s:\n%s", g, v.parts[g].told())
				}
				t.Fatalf("broken are %q, want %q alone", got, b.tells)
			}
			text := v.parts[b.tells].told()
			for _, w := range append(b.words, "guarantee broken: "+string(b.tells)+": ") {
				if !strings.Contains(text, w) {
					t.Errorf("it was told\n%s\nwithout %q", text, w)
				}
			}
		})
	}
	for _, g := range headracetest.Guarantees() {
		if !told[g] {
			t.Errorf("no broken service shows that this guarantee can be seen broken: %s", g)
		}
	}
}

// Where an event takes no effect, nothing else can be told.
func TestWithoutAnEffectNothingElseIsChecked(t *testing.T) {
	v := judge(t, brokenShops[0].make(t).spec)
	if len(v.parts) != 1 || !strings.Contains(v.whole.told(), "not checked: the other guarantees") {
		t.Errorf("%d guarantees were tried, want 1; told: %s", len(v.parts), v.whole.told())
	}
}

// What else can be wrong within a guarantee, and its words.
func TestMoreMistakesAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		make  func(t testing.TB) *shop
		tells headracetest.Guarantee
		words string
	}{
		"an event is dead-lettered": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					p.handle(func(context.Context, *sql.Tx, Order) error { return classify.Permanent(errNegative) })
				})
			},
			headracetest.GuaranteeEffect, "the event was dead-lettered: cents is negative",
		},
		"an event is dropped": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					p.handle(func(context.Context, *sql.Tx, Order) error { return classify.Drop(errNegative) })
				})
			},
			headracetest.GuaranteeEffect, "the event was dropped: cents is negative",
		},
		"a duplicate is taken for a mistake": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					runtime.Handle(p.orders, "order.placed", func(ctx context.Context, o Order) error {
						_, err := p.store.DB().ExecContext(ctx, `INSERT INTO orders VALUES (?, ?, ?, 1)`, o.ID, o.Version, o.Cents)
						return err
					})
				}).plain()
			},
			headracetest.GuaranteeOnce, "the second delivery was dead-lettered: constraint failed",
		},
		"a retry finds its own mark": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					var seen sync.Map
					p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
						if _, again := seen.LoadOrStore(event.MessageID(ctx), true); again {
							return nil
						}
						return p.place(ctx, tx, o)
					})
				})
			},
			headracetest.GuaranteeRetry, "the first attempt failed, and the second did nothing: the effect is lost",
		},
		"what is refused was written before": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					runtime.Handle(p.orders, "order.placed", func(ctx context.Context, o Order) error {
						cents := o.Cents
						o.Cents = max(cents, 1)
						if err := saveNewer(ctx, p.store.DB(), o); err != nil || cents > 0 {
							return err
						}
						return classify.Permanent(errNegative)
					})
				}).plain()
			},
			headracetest.GuaranteePoison, "the message that was refused changed the state from",
		},
		"after a refusal nothing works": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					var stuck atomic.Bool
					p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
						if stuck.Load() {
							return nil
						}
						stuck.Store(o.Cents < 0)
						return p.place(ctx, tx, o)
					})
				})
			},
			headracetest.GuaranteePoison, "the next event did nothing: its state stayed",
		},
		"an older form is passed over": {
			func(t testing.TB) *shop {
				return newShop(t, func(p process) {
					p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
						if e, _ := event.FromContext(ctx); e.SchemaVersion < 2 {
							return nil
						}
						return p.place(ctx, tx, o)
					})
				})
			},
			headracetest.GuaranteeOldSchema, "the older form 1 did nothing: the state stayed",
		},
		"the effect is elsewhere": {
			func(t testing.TB) *shop {
				var elsewhere sync.Map
				s := newShop(t, func(p process) {
					p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
						elsewhere.Store(o.ID, true)
						return p.publish(ctx, tx, o)
					})
				})
				s.spec.State = func(_ context.Context, key string) (string, error) {
					_, there := elsewhere.Load(key)
					return fmt.Sprint(there), nil
				}
				return s
			},
			headracetest.GuaranteeRollback, `the transaction was rolled back, and the state changed from "false" to "true"`,
		},
		"an event has no envelope": {
			func(t testing.TB) *shop {
				s := newShop(t, func(p process) {
					p.handle(func(ctx context.Context, tx *sql.Tx, o Order) error {
						if err := save(ctx, tx, o, 1); err != nil {
							return err
						}
						bad := message.NewMessage(o.ID, []byte("{}"))
						bad.Metadata.Set(event.MetaType, "order.billed")
						return p.add(ctx, tx, bad)
					})
				})
				return s
			},
			headracetest.GuaranteeSchema, "has no valid envelope",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if text := judge(t, c.make(t).spec, c.tells).parts[c.tells].told(); !strings.Contains(text, c.words) {
				t.Errorf("told %q, want %q", text, c.words)
			}
		})
	}
}

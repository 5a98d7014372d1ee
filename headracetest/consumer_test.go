package headracetest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/headracetest"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/testonly"
)

// A service that does everything right, with everything checked.
func TestConsumerPasses(t *testing.T) {
	headracetest.Consumer(t, newShop(t, func(p process) { p.handle(p.place) }).spec)
}

// The service's own relay, as when Service is all that main does.
func TestConsumerWithTheServicesOwnRelay(t *testing.T) {
	s := newShop(t, func(p process) {
		p.handle(p.place)
		p.rt.Relay(p.store.Outbox(), outbox.RelayConfig{})
	})
	s.spec.Outbox = nil
	headracetest.Consumer(t, s.spec)
}

func TestConsumerOfGroups(t *testing.T) {
	headracetest.Consumer(t, newShop(t, func(p process) {
		runtime.HandleTx(p.orders, "order.placed", inbox.Grouped(p.store, inbox.GroupConfig{}), p.guarded(p.place))
	}).spec)
}

func TestConsumerOfBatches(t *testing.T) {
	s := newShop(t, func(p process) {
		runtime.HandleBatch(p.orders, "order.placed", p.store, inbox.GroupConfig{},
			func(ctx context.Context, tx *sql.Tx, events []runtime.BatchEvent[Order]) error {
				for _, e := range events {
					ctx := e.Context(ctx)
					if err := saveNewer(ctx, tx, e.Value); err != nil {
						return err
					}
					if err := p.publish(ctx, tx, e.Value); err != nil {
						return err
					}
				}
				return nil
			})
	})
	headracetest.Consumer(t, s.spec)
}

// A plain handler with an inbox of its own keeps what it can. What it cannot is said.
func TestConsumerOfAPlainHandler(t *testing.T) {
	s := newShop(t, func(p process) { runtime.Handle(p.orders, "order.placed", p.saveOnce) }).plain()
	s.spec.Strict = true
	s.spec.Waive = map[headracetest.Guarantee]string{
		headracetest.GuaranteeOldSchema: "there is one form",
		headracetest.GuaranteeOutbox:    "it publishes nothing",
		headracetest.GuaranteeRollback:  "it publishes nothing",
		headracetest.GuaranteeSchema:    "it has none",
	}
	headracetest.Consumer(t, s.spec)
}

// A handler of raw messages whose only effect is what it publishes.
func TestConsumerOfAPublishingHandler(t *testing.T) {
	spec := headracetest.Spec{
		Service: func(b brokers.Broker) (*runtime.Runtime, error) {
			rt, err := runtime.New(runtime.Config{Service: "shop", Broker: b, Logger: quiet()})
			if err != nil {
				return nil, err
			}
			c := rt.ConsumerWith(runtime.ConsumerConfig{Name: "shop.raw", Topic: "raw", Type: func(*message.Message) string { return "line" }})
			runtime.HandlePublish(c, "line", "counted", func(m *message.Message) ([]*message.Message, error) {
				out, err := event.New(m.Context(), "line.counted", len(m.Payload))
				return []*message.Message{out}, err
			})
			return rt, nil
		},
		Topic: "raw",
		Event: func(_ context.Context, key string, n int) (*message.Message, error) {
			return message.NewMessage(fmt.Sprint(key, n), []byte("a line")), nil
		},
		Publishes: []string{"line.counted"},
		Strict:    true,
		Waive: map[headracetest.Guarantee]string{
			headracetest.GuaranteeVersion:   "lines have no version",
			headracetest.GuaranteeGarbage:   "any bytes are a line",
			headracetest.GuaranteePoison:    "any bytes are a line",
			headracetest.GuaranteeOldSchema: "any bytes are a line",
			headracetest.GuaranteeRollback:  "its outputs are published before the ack, and again after a failure",
			headracetest.GuaranteeSchema:    "it has none",
		},
	}
	headracetest.Consumer(t, spec)

	delete(spec.Waive, headracetest.GuaranteeRollback)
	v := judge(t, spec, headracetest.GuaranteeRollback)
	if got := v.broken(); !slices.Equal(got, []headracetest.Guarantee{headracetest.GuaranteeRollback}) ||
		!strings.Contains(v.parts[got[0]].told(), "the handler has no transaction (runtime.HandleTx) that could be rolled back") {
		t.Errorf("broken are %q, want the rollback that cannot be checked", got)
	}
}

// Whoever publishes under random ids makes a second event of a second delivery.
func TestRandomIdsOfOutputsAreTold(t *testing.T) {
	s := newShop(t, func(p process) {
		runtime.HandlePublish(p.orders, "order.placed", "bills", func(m *message.Message) ([]*message.Message, error) {
			out, err := event.New(context.Background(), "order.billed", nil, event.WithSource("/shop"))
			return []*message.Message{out}, err
		})
	})
	s.spec.State, s.spec.Strict, s.spec.Outbox = nil, false, nil
	v := judge(t, s.spec, headracetest.GuaranteeOnce)
	if text := v.parts[headracetest.GuaranteeOnce].told(); !strings.Contains(text, "the second delivery published order.billed, under new ids") {
		t.Errorf("told %q", text)
	}
}

func TestConsumerOnTheStoreInMemory(t *testing.T) {
	store := testonly.New()
	headracetest.Consumer(t, headracetest.Spec{
		Service: func(b brokers.Broker) (*runtime.Runtime, error) {
			rt, err := runtime.New(runtime.Config{Service: "shop", Broker: b, Logger: quiet()})
			if err != nil {
				return nil, err
			}
			runtime.HandleTx(rt.Consumer("shop.orders", "orders"), "order.placed", store, func(_ context.Context, tx *testonly.Tx, o Order) error {
				tx.Set(o.ID, tx.Get(o.ID)+"+")
				return nil
			})
			return rt, nil
		},
		Topic: "orders",
		Event: func(ctx context.Context, key string, n int) (*message.Message, error) { return placed(ctx, key, n, n) },
		State: func(_ context.Context, key string) (string, error) { return store.Get(key), nil },
	})
}

// What a spec says nothing about is named, with its field, and is a failure under Strict.
func TestNotCheckedIsSaid(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(p.place) })
	s.spec.Versioned, s.spec.Old, s.spec.Poison, s.spec.Publishes, s.spec.Schemas = false, nil, nil, nil, nil
	fields := map[headracetest.Guarantee]string{
		headracetest.GuaranteeVersion:   "Spec.Versioned is false",
		headracetest.GuaranteeOldSchema: "Spec.Old is nil",
		headracetest.GuaranteePoison:    "Spec.Poison is nil",
		headracetest.GuaranteeOutbox:    "Spec.Publishes is empty",
		headracetest.GuaranteeRollback:  "Spec.Publishes is empty",
		headracetest.GuaranteeSchema:    "Spec.Schemas is empty",
	}
	for _, strict := range []bool{false, true} {
		s.spec.Strict = strict
		v := judge(t, s.spec, slices.Collect(maps.Keys(fields))...)
		for g, field := range fields {
			p := v.parts[g]
			if want := fmt.Sprintf("not checked: %s: %s", g, field); p.Failed() != strict || !strings.Contains(p.told(), want) {
				t.Errorf("Strict %t, %s: failed %t, told %q, want %q", strict, g, p.Failed(), p.told(), want)
			}
		}
	}
}

// States that two keys do not share tell nothing of two deliveries at once.
func TestGeneratedValuesInTheStateAreTold(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(p.place) })
	n := 0
	s.spec.State = func(ctx context.Context, key string) (string, error) {
		state, err := s.state(ctx, key)
		if state != "none" {
			rowid := 0
			err = errors.Join(err, s.store.DB().QueryRowContext(ctx, `SELECT rowid FROM orders WHERE id = ?`, key).Scan(&rowid))
			state += fmt.Sprint(" in row ", rowid)
		}
		n++
		return state, err
	}
	v := judge(t, s.spec)
	if got := v.broken(); !slices.Equal(got, []headracetest.Guarantee{headracetest.GuaranteeTogether}) {
		t.Errorf("broken are %q, want %q", got, headracetest.GuaranteeTogether)
	}
	if text := v.parts[headracetest.GuaranteeTogether].told(); !strings.Contains(text, "Spec.State differs between two keys to which the same happened") {
		t.Errorf("told %q", text)
	}
}

// wrapped hides what the kit's broker is beyond a broker.
type wrapped struct{ brokers.Broker }

// The kit's broker is more than a broker: what wraps it hides that.
func TestAForeignBrokerIsTold(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(p.place) })
	inner := s.spec.Service
	own, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for want, broker := range map[string]func(brokers.Broker) brokers.Broker{
		"wraps the broker that it was given": func(b brokers.Broker) brokers.Broker { return wrapped{b} },
		"on another broker":                  func(brokers.Broker) brokers.Broker { return own },
	} {
		s.spec.Service = func(b brokers.Broker) (*runtime.Runtime, error) { return inner(broker(b)) }
		r := record(t, func(t testing.TB) { headracetest.Run(t, s.spec, headracetest.Deliver(must(t, "a", 1))) })
		if text := r.told(); !strings.Contains(text, want) {
			t.Errorf("told %q, want %q", text, want)
		}
	}
}

func TestConsumerChecksItsSpec(t *testing.T) {
	good := newShop(t, func(p process) { p.handle(p.place) }).spec
	for name, c := range map[string]struct {
		change func(*headracetest.Spec)
		want   string
	}{
		"no service":     {func(s *headracetest.Spec) { s.Service = nil }, "Spec.Service is nil"},
		"no topic":       {func(s *headracetest.Spec) { s.Topic = "" }, `Spec.Topic is ""`},
		"no event":       {func(s *headracetest.Spec) { s.Event = nil }, "Spec.Event is nil"},
		"nothing to see": {func(s *headracetest.Spec) { s.State, s.Publishes = nil, nil }, "Spec.State and Spec.Publishes are not set"},
		"a bad limit":    {func(s *headracetest.Spec) { s.Limit = -1 }, "Spec.Limit is -1ns"},
		"an unknown waiver": {
			func(s *headracetest.Spec) { s.Waive = map[headracetest.Guarantee]string{"twice": "no"} },
			`Spec.Waive is "twice": want one of the guarantees`,
		},
		"a waiver without a reason": {
			func(s *headracetest.Spec) {
				s.Waive = map[headracetest.Guarantee]string{headracetest.GuaranteeOnce: " "}
			},
			"is empty: give the reason",
		},
		"the waiver of all": {
			func(s *headracetest.Spec) {
				s.Waive = map[headracetest.Guarantee]string{headracetest.GuaranteeEffect: "why not"}
			},
			"nothing else can be checked without it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := good
			c.change(&spec)
			v := judge(t, spec)
			if !v.whole.Failed() || len(v.parts) > 0 || !strings.Contains(v.whole.told(), c.want) {
				t.Errorf("%d subtests ran, told %q, want %q", len(v.parts), v.whole.told(), c.want)
			}
		})
	}
}

// What the functions of a spec return ends the check that called them, with the call and the reason.
func TestBadAnswersOfASpecAreTold(t *testing.T) {
	failing := errors.New("out of paper")
	for name, c := range map[string]struct {
		change func(*headracetest.Spec)
		in     headracetest.Guarantee
		want   string
	}{
		"no event": {
			func(s *headracetest.Spec) {
				s.Event = func(context.Context, string, int) (*message.Message, error) { return nil, failing }
			}, headracetest.GuaranteeEffect, "1): out of paper",
		},
		"a nil event": {
			func(s *headracetest.Spec) {
				s.Event = func(context.Context, string, int) (*message.Message, error) { return nil, nil }
			}, headracetest.GuaranteeEffect, "returned no message",
		},
		"no UUID": {
			func(s *headracetest.Spec) {
				s.Event = func(context.Context, string, int) (*message.Message, error) { return message.NewMessage("", nil), nil }
			}, headracetest.GuaranteeEffect, "without a UUID",
		},
		"no state": {
			func(s *headracetest.Spec) {
				s.State = func(context.Context, string) (string, error) { return "", failing }
			},
			headracetest.GuaranteeEffect, "out of paper",
		},
		"no service": {
			func(s *headracetest.Spec) {
				s.Service = func(brokers.Broker) (*runtime.Runtime, error) { return nil, failing }
			}, headracetest.GuaranteeEffect, "Spec.Service: out of paper",
		},
		"a nil service": {
			func(s *headracetest.Spec) {
				s.Service = func(brokers.Broker) (*runtime.Runtime, error) { return nil, nil }
			}, headracetest.GuaranteeEffect, "neither a runtime nor an error",
		},
		"a service without a consumer": {
			func(s *headracetest.Spec) {
				s.Service = func(b brokers.Broker) (*runtime.Runtime, error) {
					return runtime.New(runtime.Config{Service: "shop", Broker: b, Logger: quiet()})
				}
				s.Outbox = nil
			}, headracetest.GuaranteeEffect, "the service does not start: runtime shop: the runtime has neither a consumer nor a relay",
		},
		"another topic": {
			func(s *headracetest.Spec) { s.Topic = "oders" },
			headracetest.GuaranteeEffect, `Spec.Topic is "oders", which no consumer of the service reads: they read ["orders" "shop.orders.REDRIVE"]`,
		},
		"one id for all versions": {
			func(s *headracetest.Spec) {
				s.Event = func(_ context.Context, key string, n int) (*message.Message, error) {
					m, err := placed(event.ContextWithSource(context.Background(), "/shop"), key, n, 100*n)
					m.UUID = key
					return m, err
				}
			}, headracetest.GuaranteeVersion, "made version 1 and 2 with the same UUID",
		},
		"no older form": {
			func(s *headracetest.Spec) {
				s.Old = func(context.Context, string) ([]*message.Message, error) { return nil, nil }
			}, headracetest.GuaranteeOldSchema, "returned no message",
		},
		"older forms that fail": {
			func(s *headracetest.Spec) {
				s.Old = func(context.Context, string) ([]*message.Message, error) { return nil, failing }
			}, headracetest.GuaranteeOldSchema, "out of paper",
		},
		"no poison": {
			func(s *headracetest.Spec) {
				s.Poison = func(context.Context, string) (*message.Message, error) { return nil, failing }
			}, headracetest.GuaranteePoison, "out of paper",
		},
		"a schema that is not JSON": {
			func(s *headracetest.Spec) { s.Schemas = map[string][]byte{"order.placed": []byte("{")} },
			headracetest.GuaranteeSchema, `Spec.Schemas["order.placed"] is not JSON`,
		},
		"a schema that makes no sense": {
			func(s *headracetest.Spec) { s.Schemas = map[string][]byte{"order.placed": []byte(`{"type": 1}`)} },
			headracetest.GuaranteeSchema, `Spec.Schemas["order.placed"]`,
		},
		"a schema from elsewhere": {
			func(s *headracetest.Spec) {
				s.Schemas = map[string][]byte{"order.placed": []byte(`{"$ref": "https://schemas.example.com/order"}`)}
			}, headracetest.GuaranteeSchema, "nothing is loaded from elsewhere",
		},
		"a schema of nothing": {
			func(s *headracetest.Spec) { s.Schemas = map[string][]byte{"order.shipped": []byte("{}")} },
			headracetest.GuaranteeSchema, `no event of the type "order.shipped" of Spec.Schemas was seen`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, func(p process) { p.handle(p.place) })
			c.change(&s.spec)
			v := judge(t, s.spec, c.in)
			if text := v.parts[c.in].told(); !strings.Contains(text, c.want) {
				t.Errorf("told %q, want %q", text, c.want)
			}
		})
	}
}

// Schemas refer to each other by $id, and formats are asserted.
func TestSchemasReferToEachOther(t *testing.T) {
	s := newShop(t, func(p process) { p.handle(p.place) })
	s.spec.Schemas = map[string][]byte{
		"order.placed": []byte(`{"$id": "https://shop.example.com/placed", "properties": {"id": {"$ref": "billed#/$defs/id"}}}`),
		"order.billed": []byte(`{"$id": "https://shop.example.com/billed", "$defs": {"id": {"type": "string", "format": "date"}}}`),
	}
	v := judge(t, s.spec, headracetest.GuaranteeSchema)
	if text := v.parts[headracetest.GuaranteeSchema].told(); !strings.Contains(text, `an event of type "order.placed" is not valid: at '/id'`) {
		t.Errorf("told %q", text)
	}
}

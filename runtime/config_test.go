package runtime_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

func handleNothing(context.Context, order) error { return nil }

func TestNewNamesEveryBadFieldAndValue(t *testing.T) {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer broker.Close()
	tests := []struct {
		name   string
		change func(*runtime.Config)
		want   []string
	}{
		{"zero", func(c *runtime.Config) { *c = runtime.Config{} }, []string{"Service", `""`, "Broker", "nil"}},
		{"service", func(c *runtime.Config) { c.Service = "a b" }, []string{"Service", `"a b"`}},
		{"drain", func(c *runtime.Config) { c.DrainTimeout = -time.Second }, []string{"DrainTimeout", "-1s"}},
		{"drain off", func(c *runtime.Config) { c.DrainTimeout = runtime.Off }, []string{"DrainTimeout"}},
		{"stall", func(c *runtime.Config) { c.StallAfter = -2 }, []string{"StallAfter", "-2ns"}},
		{"retention", func(c *runtime.Config) { c.InboxRetention = -3 }, []string{"InboxRetention", "-3ns"}},
		{"timeout", func(c *runtime.Config) { c.Timeout = -4 }, []string{"Timeout", "-4ns"}},
		{"window", func(c *runtime.Config) { c.Window = -5 }, []string{"Window", "-5"}},
		{"concurrency", func(c *runtime.Config) { c.Concurrency = -6 }, []string{"Concurrency", "-6"}},
		{"contradiction", func(c *runtime.Config) { c.Window, c.Concurrency = 4, 8 }, []string{"Concurrency", "8", "Window", "4"}},
		{"unknown", func(c *runtime.Config) { c.Unknown = "panic" }, []string{"Unknown", `"panic"`}},
		{"redrive", func(c *runtime.Config) { c.Redrive = "never" }, []string{"Redrive", `"never"`}},
		{"middleware", func(c *runtime.Config) { c.Middleware = []message.HandlerMiddleware{nil} }, []string{"Middleware[0]", "nil"}},
		{"retry", func(c *runtime.Config) { c.Retry = middleware.RetryConfig{MaxAttempts: -1} }, []string{"MaxAttempts", "-1"}},
		{"two at once", func(c *runtime.Config) { c.Window, c.Service = -7, "" }, []string{"Window", "-7", "Service"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := runtime.Config{Service: "billing", Broker: broker}
			tt.change(&cfg)
			_, err := runtime.New(cfg)
			wantParts(t, err, tt.want...)
		})
	}
	if _, err := runtime.New(runtime.Config{Service: "billing", Broker: broker}); err != nil {
		t.Errorf("a config with nothing but what is required: %v", err)
	}
}

func TestRunReportsEveryWiringMistake(t *testing.T) {
	tests := []struct {
		name string
		wire func(*runtime.Runtime)
		want []string
	}{
		{"nothing", func(*runtime.Runtime) {}, []string{"neither a consumer nor a relay"}},
		{"no handler", func(rt *runtime.Runtime) { rt.Consumer("a", "t") }, []string{`consumer "a" has no handler`}},
		{"no name", func(rt *runtime.Runtime) {
			runtime.Handle(rt.Consumer("", "t"), "x", handleNothing)
		}, []string{`Name is ""`}},
		{"no topic", func(rt *runtime.Runtime) {
			runtime.Handle(rt.Consumer("a", ""), "x", handleNothing)
		}, []string{`consumer "a"`, `Topic is ""`}},
		{"same name twice", func(rt *runtime.Runtime) {
			runtime.Handle(rt.Consumer("a", "t"), "x", handleNothing)
			runtime.Handle(rt.Consumer("a", "u"), "x", handleNothing)
		}, []string{`consumer "a" was registered twice`, `"t"`, `"u"`}},
		{"same type twice", func(rt *runtime.Runtime) {
			c := rt.Consumer("a", "t")
			runtime.Handle(c, "x", handleNothing)
			runtime.HandleMessage(c, "x", func(*message.Message) error { return nil })
		}, []string{`consumer "a"`, `two handlers for "x"`}},
		{"nil handler", func(rt *runtime.Runtime) {
			runtime.Handle[order](rt.Consumer("a", "t"), "x", nil)
		}, []string{`consumer "a"`, `"x"`, "nil"}},
		{"empty type", func(rt *runtime.Runtime) {
			runtime.Handle(rt.Consumer("a", "t"), "", handleNothing)
		}, []string{`consumer "a"`, `event type is ""`}},
		{"nil store", func(rt *runtime.Runtime) {
			runtime.HandleTx(rt.Consumer("a", "t"), "x", nil, func(context.Context, *sql.Tx, order) error { return nil })
		}, []string{`consumer "a"`, `store`, `"x"`, "nil"}},
		{"no output topic", func(rt *runtime.Runtime) {
			runtime.HandlePublish(rt.Consumer("a", "t"), "x", "", func(*message.Message) ([]*message.Message, error) { return nil, nil })
		}, []string{`consumer "a"`, "output topic", `"x"`}},
		{"dead letters and others", func(rt *runtime.Runtime) {
			c := rt.Consumer("a", "t.DLT")
			runtime.HandleDeadLetters(c, func(context.Context, poison.Record) error { return nil })
			runtime.Handle(c, "x", handleNothing)
		}, []string{`consumer "a"`, "dead letters", "1 other"}},
		{"concurrency above the default window", func(rt *runtime.Runtime) {
			c := rt.ConsumerWith(runtime.ConsumerConfig{Name: "a", Topic: "t", Policy: runtime.Policy{Concurrency: 5000}})
			runtime.Handle(c, "x", handleNothing)
		}, []string{`consumer "a"`, "Concurrency is 5000", "1024"}},
		{"consumer's policy", func(rt *runtime.Runtime) {
			c := rt.ConsumerWith(runtime.ConsumerConfig{Name: "a", Topic: "t", Policy: runtime.Policy{Window: -9}})
			runtime.Handle(c, "x", handleNothing)
		}, []string{`consumer "a".Window is -9`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, nil)
			tt.wire(b.rt)
			wantParts(t, b.rt.Run(t.Context()), tt.want...)
		})
	}
}

// capable is a broker that promises other things than it keeps.
type capable struct {
	brokers.Broker
	caps brokers.Capabilities
}

func (c capable) Capabilities() brokers.Capabilities { return c.caps }

func TestSettingsAgainstTheBrokersCapabilities(t *testing.T) {
	tests := []struct {
		name   string
		caps   brokers.Capabilities
		policy runtime.Policy
		want   []string
	}{
		{
			"retry budget beyond the patience",
			brokers.Capabilities{System: "x", FanOut: true, Patience: 30 * time.Second},
			runtime.Policy{Retry: middleware.RetryConfig{MaxAttempts: 10, InitialDelay: time.Minute, MaxDelay: time.Minute}},
			[]string{`consumer "a"`, "Retry", "30s", `"x"`},
		},
		{
			"retry budget beyond the hard limit",
			brokers.Capabilities{System: "x", FanOut: true, Patience: 30 * time.Second, ExtendsPatience: true, PatienceLimit: time.Minute},
			runtime.Policy{Retry: middleware.RetryConfig{MaxAttempts: 10, InitialDelay: time.Minute, MaxDelay: time.Minute}},
			[]string{`consumer "a"`, "Retry", "48s"},
		},
		{
			"timeout beyond the patience",
			brokers.Capabilities{System: "x", FanOut: true, Patience: 10 * time.Second},
			runtime.Policy{Retry: quick, Timeout: 20 * time.Second},
			[]string{`consumer "a"`, "Timeout is 20s", "10s"},
		},
		{
			"two consumers without fan-out",
			brokers.Capabilities{System: "x"},
			runtime.Policy{Retry: quick},
			[]string{`"a"`, `"b"`, `topic "t"`, `"x"`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, func(c *runtime.Config) {
				c.Broker = capable{c.Broker, tt.caps}
				c.Policy = tt.policy
			})
			runtime.Handle(b.rt.Consumer("a", "t"), "x", handleNothing)
			runtime.Handle(b.rt.Consumer("b", "t"), "x", handleNothing)
			wantParts(t, b.rt.Run(t.Context()), tt.want...)
		})
	}
}

func TestLimitsOfTheBrokerAreWarnings(t *testing.T) {
	tests := []struct {
		name   string
		change func(*brokers.Capabilities)
		want   []string // nil: no warning
	}{
		{"attempts beyond the delivery limit", func(c *brokers.Capabilities) { c.DeliveryLimit = 2 }, []string{"level=WARN", "consumer=a", "broker=memory", "attempts=3", "delivery_limit=2"}},
		{"as many attempts as the delivery limit", func(c *brokers.Capabilities) { c.DeliveryLimit = 3 }, nil},
		{"concurrency beyond the un-acked limit", func(c *brokers.Capabilities) { c.MaxUnacked = 1 }, []string{"level=WARN", "consumer=a", "broker=memory", "concurrency=2", "max_unacked=1"}},
		{"no limits", func(*brokers.Capabilities) {}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, func(c *runtime.Config) {
				caps := c.Broker.Capabilities()
				tt.change(&caps)
				c.Broker = capable{c.Broker, caps}
				c.Policy = runtime.Policy{Retry: quick, Concurrency: 2}
			})
			runtime.Handle(b.rt.Consumer("a", "t"), "x", handleNothing)
			b.start()
			b.mustStop()
			for _, part := range tt.want {
				if !strings.Contains(b.log.String(), part) {
					t.Errorf("the log lacks %q:\n%s", part, b.log.String())
				}
			}
			if tt.want == nil && strings.Contains(b.log.String(), "level=WARN") {
				t.Errorf("the log has a warning:\n%s", b.log.String())
			}
		})
	}
}

func TestDeadLetterTopicThatIsTheTopicIsRefused(t *testing.T) {
	b := newBench(t, func(c *runtime.Config) { c.DeadLetterTopic = func(topic string) string { return topic } })
	runtime.Handle(b.rt.Consumer("a", "t"), "x", handleNothing)
	wantParts(t, b.rt.Run(t.Context()), `a`, `"t"`, "dead-letter")
}

func TestTypedNilsAreNamed(t *testing.T) {
	var none *memory.Broker
	_, err := runtime.New(runtime.Config{Service: "x", Broker: none})
	wantParts(t, err, "Broker", "nil")
	b := newBench(t, nil)
	var store *sqlstore.Store
	runtime.HandleTx(b.rt.Consumer("a", "t"), "x", store, func(context.Context, *sql.Tx, order) error { return nil })
	wantParts(t, b.rt.Run(t.Context()), `consumer "a"`, "store", "nil")
}

func TestRunTwiceIsRefused(t *testing.T) {
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("a", "t"), "x", handleNothing)
	b.start()
	b.mustStop()
	wantParts(t, b.rt.Run(t.Context()), "Run was called twice")
}

func TestConsumerAfterRunIsRefused(t *testing.T) {
	b := newBench(t, nil)
	runtime.Handle(b.rt.Consumer("a", "t"), "x", handleNothing)
	b.start()
	b.mustStop()
	if got := b.rt.Publisher().Publish("t"); got != runtime.ErrNotRunning {
		t.Errorf("Publish after Run: got %v, want ErrNotRunning", got)
	}
}

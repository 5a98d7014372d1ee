package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	amqpbroker "github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/jetstream"
	kafkabroker "github.com/headrace-go/headrace/brokers/kafka"
	pgbroker "github.com/headrace-go/headrace/brokers/postgres"
	"github.com/headrace-go/headrace/brokers/sqs"
	"github.com/headrace-go/headrace/integration/history"
	"github.com/headrace-go/headrace/internal/testserver"
	"github.com/headrace-go/headrace/ordering"
)

func TestMain(m *testing.M) {
	child()
	goleak.VerifyTestMain(m)
}

// The verdict must fail when a promise is broken. Sabotaged pipelines run beside one that is not, on Postgres alone.
func TestSabotageIsFound(t *testing.T) {
	testserver.Postgres(t) // no server for tests: none is to be started here either
	dir, err := os.MkdirTemp("", "headrace-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server's user must be able to see it
		t.Fatal(err)
	}
	script, err := filepath.Abs("../servers")
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := kindsWanted("poison,kill-consumer")
	if err != nil {
		t.Fatal(err)
	}
	c := config{
		Servers: script, Dir: dir, Seed: uint64(time.Now().UnixNano()), Duration: 14 * time.Second, Wanted: wanted,
		Pipelines: map[string]string{"sound": postgres}, Sabotaged: map[string]sabotage{},
		Rate: 100, Backlog: 400, Relays: 1, Consumers: 1, Patience: 10 * time.Second, Log: t.Output(),
	}
	for _, s := range sabotages {
		c.Pipelines[string(s)], c.Sabotaged[string(s)] = postgres, s
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r, err := chaos(ctx, c)
	if err != nil {
		t.Fatalf("%v; logs and records: %s", err, dir)
	}
	t.Log(r)
	if len(r.Verdicts) != len(c.Pipelines) {
		t.Fatalf("%d verdicts of %d pipelines", len(r.Verdicts), len(c.Pipelines))
	}
	for _, v := range r.Verdicts {
		few := v.Attempts < 100 && v.Pipeline != string(ackFirst) // what is acked and then fails is not tried again
		if v.Made < 100 || few || v.Acks < 100 || v.Poison == 0 {
			t.Errorf("%s: %d events, %d of them poison, %d attempts, %d acks: that proves nothing", v.Pipeline, v.Made, v.Poison, v.Attempts, v.Acks)
		}
		checkBroken(t, v)
	}
	if !t.Failed() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}

// checkBroken compares what a verdict says is broken with what is.
func checkBroken(t *testing.T, v verdict) {
	t.Helper()
	for _, want := range map[string][]string{
		string(ackFirst):  {string(history.AckBeforeOutcome)},
		string(twice):     {"doubled effects", string(history.DoubledEffect), "claims without an effect"},
		string(skip):      {"stands still", "lost events", "claims without an effect"},
		string(unordered): {"after a later one", string(history.Inversion)},
		string(condemn):   {"dead letters of events that can be handled"},
	}[v.Pipeline] {
		if !slices.ContainsFunc(v.Broken, func(text string) bool { return strings.Contains(text, want) }) {
			t.Errorf("%s: the verdict does not say %q: %q", v.Pipeline, want, v.Broken)
		}
	}
	if v.Pipeline == "sound" && (len(v.Broken) > 0 || len(v.Rules) > 0) {
		t.Errorf("%s: %q, %v, want nothing broken", v.Pipeline, v.Broken, slices.Collect(maps.Keys(v.Rules)))
	}
}

// A database, or a server, was away while a process stopped. Its subscriptions tried for as long as the runtime waits for
// them, so it gave up on them a moment before they ended, and the process failed though it held nothing.
func TestSubscriptionsEndWithinTheRuntimesPatience(t *testing.T) {
	const leave = 2 * time.Second // of a Kafka group, see its CloseTimeout
	for name, d := range map[string]time.Duration{
		"kafka": kafkabroker.DefaultCloseTimeout + leave, "jetstream": jetstream.DefaultCloseTimeout, "postgres": pgbroker.DefaultCloseTimeout,
		"amqp": amqpbroker.DefaultCloseTimeout, "sqs": sqs.DefaultWaitTime + sqs.DefaultCloseTimeout,
	} {
		if d >= ordering.DefaultCancelGrace {
			t.Errorf("%s takes up to %v, want less than %v", name, d, ordering.DefaultCancelGrace)
		}
	}
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

func TestDoctorFindsWhatIsWrong(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.indexes()
	for name, tc := range map[string]struct {
		config string
		args   []string
		code   int
		want   []string // "status check subject: part of the message"
	}{
		"all is well but old letters": {
			`{"inbox_retention": "30d", "consumers": [{"name": "billing.orders", "topic": "orders"}]}`, nil, exitUnwell,
			[]string{"ok topic orders", "ok topic orders.DLT", "warn topic billing.orders.REDRIVE: the service makes it", "ok retention billing.orders", "fail dead letters -: 13 dead letters"},
		},
		"retention": {
			`{"inbox_retention": "24h", "dead_letter_retention": "36500d", "consumers": [{"name": "c", "topic": "orders"}]}`, nil, exitUnwell,
			[]string{"fail retention c: shorter than the oldest redelivery", "warn dead letters -: 13 dead letters"},
		},
		"no inbox, no retention to check": {
			`{"inbox_retention": "24h", "dead_letter_retention": "36500d", "consumers": [{"name": "c", "topic": "orders", "inbox": false}]}`, nil, exitDone, nil,
		},
		"names and topics": {
			`{"consumers": [{"name": "a b", "topic": "none"}, {"name": "c", "topic": ""}, {"name": "d", "topic": "x"}, {"name": "d", "topic": "y"}]}`, nil, exitUnwell,
			[]string{"fail name a b", "fail topic none: no such topic", "fail topic c: reads no topic", "fail name d: share an inbox"},
		},
		"pool and retry": {
			`{"max_open_conns": 16, "consumers": [{"name": "c", "topic": "orders", "concurrency": 16}, {"name": "e", "topic": "orders", "retry_attempts": -1}]}`, nil, exitUnwell,
			[]string{"fail pool c: at most 15", "fail retry e: MaxAttempts is -1"},
		},
		"a stock adapter": {
			`{"adapter": "watermill-kafka"}`, nil, exitUnwell, []string{"warn adapter watermill-kafka: It delivers one un-acked message per partition"},
		},
		"an unknown adapter": {`{"adapter": "pigeon"}`, nil, exitUnwell, []string{"fail adapter pigeon: not known"}},
		"no broker there":    {`{}`, []string{"--broker", "nats://127.0.0.1:1"}, exitUnwell, []string{"fail broker nats://127.0.0.1:1"}},
		"no database there":  {`{}`, []string{"--database", "postgres://u:secret@127.0.0.1:1/x"}, exitUnwell, []string{"fail database postgres://127.0.0.1:1/x"}},
		"kafka is not there": {`{}`, []string{"--broker", "kafka://127.0.0.1:1"}, exitUnwell, []string{"fail broker kafka://127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.json")
			if err := os.WriteFile(file, []byte(tc.config), 0o600); err != nil {
				t.Fatal(err)
			}
			r := s.run(append([]string{"doctor", "--config", file, "-o", "json"}, tc.args...)...)
			var got struct {
				OK       bool
				Findings []finding
			}
			if err := json.Unmarshal([]byte(r.out), &got); err != nil {
				t.Fatalf("%v\n%s%s", err, r.out, r.err)
			}
			if r.code != tc.code || got.OK != (tc.code == exitDone) {
				t.Errorf("exit code %d, ok %t; want %d\n%s", r.code, got.OK, tc.code, r.out)
			}
			if strings.Contains(r.out+r.err, "secret") {
				t.Errorf("the password is shown: %s%s", r.out, r.err)
			}
			for _, want := range tc.want {
				head, part, _ := strings.Cut(want, ": ")
				found := false
				for _, f := range got.Findings {
					found = found || head == f.Status+" "+f.Check+" "+f.Subject && strings.Contains(f.Message, part)
				}
				if !found {
					t.Errorf("lacks %q:\n%s", want, r.out)
				}
			}
		})
	}
	for config, want := range map[string]string{
		`{"consumer": []}`:            "unknown field",
		`{"inbox_retention": 30}`:     "want a time in quotes",
		`{"inbox_retention": "soon"}`: "want a time, such as",
		`{} {}`:                       "more than one",
		`{"consumers": [{"name": "c", "inbox": 1}]}`: "inbox",
	} {
		if r := s.runWith(config, "doctor", "--config", "-"); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("config %s: %d %s; want %q", config, r.code, r.err, want)
		}
	}
}

// impatient is a broker that delivers again after a minute.
type impatient struct{ brokers.Broker }

func (impatient) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{System: "impatient", Patience: 60e9, DeliveryLimit: 5}
}

func TestDoctorComparesPatienceAndFanOut(t *testing.T) {
	d := &doctor{broker: &broker{Broker: impatient{}, retention: unknownRetention}, checkup: checkup{Consumers: []consumerOf{
		{Name: "slow", Topic: "orders", RetryMaxElapsed: 120e9},
		{Name: "long", Topic: "orders", Timeout: 61e9, RetryMaxElapsed: 1e9},
		{Name: "good", Topic: "refunds", RetryMaxElapsed: 1e9},
		{Name: "often", Topic: "returns", RetryMaxElapsed: 1e9, RetryAttempts: 6},
	}}}
	for i := range d.checkup.Consumers {
		d.examineConsumer(t.Context(), &d.checkup.Consumers[i])
	}
	d.examineFanOut()
	got := map[string]string{}
	for _, f := range d.findings {
		got[f.Check+" "+f.Subject] = f.Status
	}
	for want, status := range map[string]string{"patience slow": statusFail, "patience long": statusFail, "patience good": statusOK, "fan-out long": statusFail, "deliveries good": statusOK, "deliveries often": statusWarn} {
		if got[want] != status {
			t.Errorf("%s is %q, want %s: %+v", want, got[want], status, d.findings)
		}
	}
}

// A stream without a MaxAge, or a compacted topic, keeps its messages for ever; doctor took the adapter's default of a week for it, and said
// that all was well.
func TestDoctorKnowsWhatIsKeptForEver(t *testing.T) {
	s := onJetStream(t)
	nc, err := nats.Connect(s.env["HEADRACE_BROKER"])
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"ever": 0, "day": 24 * time.Hour, "years": 100 * 24 * time.Hour} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, MaxAge: age}); err != nil {
			t.Fatal(err)
		}
	}
	for topic, want := range map[string][2]string{
		"ever":  {statusWarn, "the broker keeps ever for ever: a replay"},
		"day":   {statusOK, "the inbox remembers for 720h0m0s"},
		"years": {statusFail, "shorter than the oldest redelivery"},
		"none":  {statusOK, "the oldest redelivery"}, // it will be made as the adapter makes it
	} {
		r := s.run("doctor", "--consumer", "c="+topic, "-o", "json")
		if !found(t, r, want[0], "retention", want[1]) {
			t.Errorf("%s: want %q:\n%s", topic, want, r.out)
		}
	}
	k := onKafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimPrefix(k.env["HEADRACE_BROKER"], "kafka://"), ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	compact, ms := "compact", "86400000"
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact, "retention.ms": &ms}, k.name("compacted")); err != nil {
		t.Fatal(err)
	}
	if r := k.run("doctor", "--consumer", "c="+k.name("compacted"), "-o", "json"); !found(t, r, statusWarn, "retention", "compacted for ever") {
		t.Errorf("a compacted topic:\n%s", r.out)
	}
}

// found tells whether doctor found something.
func found(t *testing.T, r result, status, check, part string) bool {
	t.Helper()
	var got struct{ Findings []finding }
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v\n%s%s", err, r.out, r.err)
	}
	return slices.ContainsFunc(got.Findings, func(f finding) bool {
		return f.Status == status && f.Check == check && strings.Contains(f.Message, part)
	})
}

func TestKafkaRetention(t *testing.T) {
	for _, tc := range []struct {
		policy, ms string
		want       time.Duration
		known      bool
	}{
		{"delete", "1000", time.Second, true},
		{"compact,delete", "1000", time.Second, true},
		{"compact", "1000", 0, true},
		{"delete", "-1", 0, true},
		{"delete", "0", 1, true}, // not for ever
		{"delete", "9223372036854775807", 9223372036854 * time.Millisecond, true},
		{"delete", "", 0, false},
		{"", "", 0, false},
	} {
		if got, known := retentionOf(tc.policy, tc.ms); known != tc.known || got != tc.want {
			t.Errorf("%+v: %v, %t", tc, got, known)
		}
	}
}

func TestDoctorTellsWhatEachStockAdapterCannotDo(t *testing.T) {
	for name, words := range map[string][]string{
		"watermill-kafka":       {"one un-acked message per partition", "drops record keys", "loses what was published before"},
		"watermill-nats":        {"one un-acked message", "changes the order", "crashes the process"},
		"watermill-amqp":        {"one un-acked message", "requeues at once", "hot loop"},
		"watermill-sql":         {"one un-acked message", "loses rows", "retried for ever"},
		"watermill-redisstream": {"one un-acked message", "no order over a restart", "ends the subscription"},
		"gochannel":             {"keeps nothing", "hot loop"},
	} {
		d := &doctor{checkup: checkup{Adapter: name}}
		d.examineAdapter()
		var all []string
		for _, f := range d.findings {
			if f.Status != statusWarn || f.Check != "adapter" || f.Subject != name {
				t.Errorf("%s: finding %+v, want a warning of the adapter", name, f)
			}
			all = append(all, f.Message)
		}
		for _, w := range words {
			if text := strings.Join(all, " "); !strings.Contains(text, w) {
				t.Errorf("%s: doctor does not say %q: %s", name, w, text)
			}
		}
	}
}

// The page is what doctor says.
func TestPageOfStockAdaptersIsWhatDoctorSays(t *testing.T) {
	const page = "../../docs/stock-adapters.md"
	if *update {
		if err := os.WriteFile(page, []byte(stockPage()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != stockPage() {
		t.Errorf("docs/stock-adapters.md is\n%s\nwant\n%s\ngo test ./cmd/headrace -run PageOfStock -update writes it", got, stockPage())
	}
}

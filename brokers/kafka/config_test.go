package kafka_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/kafka"
)

func TestNewNamesTheBadField(t *testing.T) {
	seeds := []string{"localhost:1"}
	for _, tt := range []struct {
		want   string
		config kafka.Config
	}{
		{"Seeds", kafka.Config{}},
		{"Seeds[1]", kafka.Config{Seeds: []string{"a", ""}}},
		{"Window is -1", kafka.Config{Seeds: seeds, Window: -1}},
		{"Window is 1048577", kafka.Config{Seeds: seeds, Window: kafka.MaxWindow + 1}},
		{"KeyBudget is -1", kafka.Config{Seeds: seeds, KeyBudget: -1}},
		{"MaxSpan is -1", kafka.Config{Seeds: seeds, MaxSpan: -1}},
		{"BufferRecords is -1", kafka.Config{Seeds: seeds, BufferRecords: -1}},
		{"BufferBytes is -1", kafka.Config{Seeds: seeds, BufferBytes: -1}},
		{"Partitions is -2", kafka.Config{Seeds: seeds, Partitions: -2}},
		{"Replicas is -2", kafka.Config{Seeds: seeds, Replicas: -2}},
		{"RevokeWait is -2ns", kafka.Config{Seeds: seeds, RevokeWait: -2}},
		{"CommitInterval is -1ns", kafka.Config{Seeds: seeds, CommitInterval: -1}},
		{"CommitTimeout is -1ns", kafka.Config{Seeds: seeds, CommitTimeout: -1}},
		{"CloseTimeout is -1ns", kafka.Config{Seeds: seeds, CloseTimeout: -1}},
		{"NackDelay is -1ns", kafka.Config{Seeds: seeds, NackDelay: -1}},
		{"MaxNackDelay is 1ns", kafka.Config{Seeds: seeds, MaxNackDelay: 1}},
		{"PublishTimeout is -1ns", kafka.Config{Seeds: seeds, PublishTimeout: -1}},
		{"DialTimeout is -1ns", kafka.Config{Seeds: seeds, DialTimeout: -1}},
	} {
		if _, err := kafka.New(tt.config); err == nil || !strings.Contains(err.Error(), "Config."+tt.want) {
			t.Errorf("New(%+v): error is %v, want one with %q", tt.config, err, "Config."+tt.want)
		}
	}
}

// A wait that is longer than the group's patience would get the member expelled at each revocation. The member may have joined by the
// time that this is known, and got partitions that nobody reads: leaving must not wait for a reader.
func TestRevokeWaitBeyondTheRebalanceTimeoutIsRefused(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	config := quick(seeds)
	config.Options = append(config.Options, kgo.RebalanceTimeout(8*time.Second))
	b := open(t, config) // 5 s and 5 s
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), "topic"); err == nil || !strings.Contains(err.Error(), "RevokeWait is 5s") {
		t.Errorf("error is %v, want one that names RevokeWait", err)
	}
}

func TestTLSAndSASL(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	for _, tt := range []struct {
		name      string
		mechanism sasl.Mechanism
	}{
		{"PLAIN", plain.Auth{User: "u", Pass: "p"}.AsMechanism()},
		{"SCRAM-SHA-256", scram.Auth{User: "u", Pass: "p"}.AsSha256Mechanism()},
		{"SCRAM-SHA-512", scram.Auth{User: "u", Pass: "p"}.AsSha512Mechanism()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, seeds := fake(t, kfake.TLS(&tls.Config{Certificates: s.TLS.Certificates}), kfake.EnableSASL(),
				kfake.Superuser(tt.name, "u", "p"), kfake.SeedTopics(1, "topic"))
			config := quick(seeds)
			config.TLS = &tls.Config{RootCAs: roots, ServerName: "example.com"}
			config.SASL = []sasl.Mechanism{tt.mechanism}
			b := open(t, config)
			if err := publisher(t, b).Publish("topic", numbered(0)); err != nil {
				t.Fatal(err)
			}
			read(t, b, "topic", 1).next().Ack()

			config.SASL = []sasl.Mechanism{plain.Auth{User: "u", Pass: "wrong"}.AsMechanism()}
			config.DialTimeout = time.Second
			if wrong, err := kafka.New(config); err == nil {
				_ = wrong.Close()
				t.Error("New with a wrong password gave no error")
			}
		})
	}
}

// A topic that matches is found when it is made, after the subscription.
func TestRegexFindsNewTopics(t *testing.T) {
	_, seeds := fake(t)
	regex(t, seeds)
}

func TestRegexFindsNewTopicsOnKafka(t *testing.T) { regex(t, real(t)) }

func regex(t *testing.T, seeds []string) {
	orders := "orders." + rand.Text() + "." // others run on the same cluster
	eu, us, other := orders+"eu", orders+"us", "other."+orders
	makeTopic(t, seeds, eu, 1)
	makeTopic(t, seeds, other, 1)
	config := quick(seeds)
	config.Regex = true
	config.Options = append(config.Options, kgo.MetadataMaxAge(100*time.Millisecond))
	fill(t, seeds, eu, 0, 1, key)
	fill(t, seeds, other, 0, 1, key)
	r := read(t, open(t, config), "^"+regexp.QuoteMeta(orders), 4)
	first := r.next()
	first.Ack()
	makeTopic(t, seeds, us, 1)
	fill(t, seeds, us, 0, 1, key)
	second := r.next()
	second.Ack()
	if got := []string{at(first).Topic, at(second).Topic}; !slices.Equal(got, []string{eu, us}) {
		t.Errorf("topics are %v, want %s and %s", got, eu, us)
	}
	r.quiet(200 * time.Millisecond)
}

// The pattern of orders matches orders.DLT too, so that dead letters were handled as orders, and what failed of them as well. And the
// redrive topic of a consumer is its name: as a pattern nobody made it, and it matched the redrive topics of others.
func TestRegexLeavesOutWhatWasKept(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "orders", "orders.DLT", "orders.DLT.DLT", "orders.REDRIVE", "orders.c.REDRIVE.old"))
	topics := []string{"orders.DLT", "orders.DLT.DLT", "orders.REDRIVE", "orders.c.REDRIVE.old", "orders"}
	config := quick(seeds)
	config.Regex = true
	config.Options = append(config.Options, kgo.MetadataMaxAge(100*time.Millisecond))
	b := open(t, config)
	for _, topic := range topics {
		fill(t, seeds, topic, 0, 1, key)
	}
	for _, tt := range []struct {
		consumer, topic string
		want            []string
	}{
		{"c", "^orders", []string{"orders", "orders.c.REDRIVE.old"}},
		{"dead", "orders.DLT", []string{"orders.DLT"}},
		{"c.REDRIVE", "c.REDRIVE", []string{"c.REDRIVE"}},
	} {
		t.Run(tt.topic, func(t *testing.T) {
			sub, err := b.Subscriber(brokers.Subscription{Consumer: tt.consumer, Topic: tt.topic, Window: 16})
			if err != nil {
				t.Fatal(err)
			}
			in, err := sub.Subscribe(t.Context(), tt.topic)
			if err != nil {
				t.Fatal(err)
			}
			r := &reader{t, sub, in}
			if tt.topic == "c.REDRIVE" {
				fill(t, seeds, tt.topic, 0, 1, key)
			}
			var got []string
			for _, m := range r.take(len(tt.want)) {
				got = append(got, at(m).Topic)
				m.Ack()
			}
			if slices.Sort(got); !slices.Equal(got, tt.want) {
				t.Errorf("topics are %v, want %v", got, tt.want)
			}
			r.quiet(200 * time.Millisecond)
			r.close()
		})
	}
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Subscribe(t.Context(), `^orders.*\.DLT$`); err == nil || !strings.Contains(err.Error(), ".DLT") {
		t.Errorf("Subscribe to a pattern of dead letters gave %v, want an error that tells of .DLT", err)
	}
}

// A static member that restarts gets its partitions back without a rebalance; two subscriptions of one process are two members.
func TestStaticMembers(t *testing.T) {
	_, seeds := fake(t)
	staticMembers(t, seeds)
}

func TestStaticMembersOnKafka(t *testing.T) { staticMembers(t, real(t)) }

func staticMembers(t *testing.T, seeds []string) {
	topic := uniqueTopic(t, seeds, 2)
	config := quick(seeds)
	config.InstanceID = "pod-1"
	b := open(t, config)
	read := func() *reader {
		sub, err := b.Subscriber(brokers.Subscription{Consumer: topic, Window: 4})
		if err != nil {
			t.Fatal(err)
		}
		in, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		return &reader{t, sub, in}
	}
	read()
	second := read()
	admin := kadm.NewClient(client(t, seeds))
	members := func() []string {
		groups, err := admin.DescribeGroups(t.Context(), topic)
		if err != nil {
			return nil // the coordinator is not known yet
		}
		var ids []string
		for _, m := range groups[topic].Members {
			if m.InstanceID != nil {
				ids = append(ids, *m.InstanceID)
			}
		}
		slices.Sort(ids)
		return ids
	}
	want := []string{"pod-1", "pod-1-2"}
	eventually(t, "two members", 5*time.Second, func() bool { return slices.Equal(members(), want) })
	second.close()
	if got := members(); !slices.Equal(got, want) {
		t.Errorf("after one was closed the members are %v, want %v: it may come back", got, want)
	}
	read()
	eventually(t, "the second is back under its name", 5*time.Second, func() bool { return slices.Equal(members(), want) })
}

// Transaction markers take offsets, and an aborted transaction's records are not there: the commit goes over both.
func TestTransactionsLeaveGaps(t *testing.T) {
	_, seeds := fake(t, kfake.SeedTopics(1, "topic"))
	transactions(t, seeds, "topic")
}

func TestTransactionsLeaveGapsOnKafka(t *testing.T) {
	seeds := real(t)
	topic := uniqueTopic(t, seeds, 1)
	transactions(t, seeds, topic)
}

func transactions(t *testing.T, seeds []string, topic string) {
	cl := client(t, seeds, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	for i := range 6 {
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := cl.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		if err := cl.EndTransaction(context.Background(), kgo.TransactionEndTry(i%2 == 0)); err != nil {
			t.Fatal(err)
		}
	}
	config := quick(seeds)
	config.MaxSpan = 4 // the gaps are wider than the span
	b := open(t, config)
	r := read(t, b, topic, 4)
	var got []int64
	for range 9 {
		m := r.next()
		got = append(got, at(m).Offset)
		m.Ack()
	}
	if want := []int64{0, 1, 2, 8, 9, 10, 16, 17, 18}; !slices.Equal(got, want) {
		t.Errorf("offsets are %v, want %v", got, want)
	}
	r.quiet(100 * time.Millisecond)
	r.close()
	if o, _ := offsetOf(t, seeds, "c", topic, 0); o != 19 {
		t.Errorf("committed offset is %d, want 19", o)
	}

	config.ReadUncommitted = true
	sub, err := open(t, config).Subscriber(brokers.Subscription{Consumer: "uncommitted"})
	if err != nil {
		t.Fatal(err)
	}
	in, err := sub.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 18 {
		m := <-in
		if want := int64(i + i/3); at(m).Offset != want {
			t.Errorf("with ReadUncommitted, record %d has offset %d, want %d", i, at(m).Offset, want)
		}
		m.Ack()
	}
}

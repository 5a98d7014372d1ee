package amqp_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers/amqp"
)

func TestBadConfigNamesTheFieldAndTheValue(t *testing.T) {
	urls := []string{"amqp://127.0.0.1:0/"}
	for _, tt := range []struct {
		want   string
		config amqp.Config
	}{
		{"URLs is a list of 0", amqp.Config{}},
		{"URLs[1]", amqp.Config{URLs: []string{urls[0], "http://x"}}},
		{"URLs[0]: is no URL", amqp.Config{URLs: []string{"amqp://user:secret%zz@host"}}},
		{"Topology is 7", amqp.Config{URLs: urls, Topology: 7}},
		{"Name is of 256 bytes", amqp.Config{URLs: urls, Name: strings.Repeat("x", 256)}},
		{"Window is -1", amqp.Config{URLs: urls, Window: -1}},
		{"Window is 65536", amqp.Config{URLs: urls, Window: 65536}},
		{"NackDelay is -1s", amqp.Config{URLs: urls, NackDelay: -time.Second}},
		{"MaxNackDelay is 1ms", amqp.Config{URLs: urls, NackDelay: time.Second, MaxNackDelay: time.Millisecond}},
		{"Patience is -2ns", amqp.Config{URLs: urls, Patience: -2}},
		{"MaxMessageBytes is -1", amqp.Config{URLs: urls, MaxMessageBytes: -1}},
		{"PublishTimeout is -1s", amqp.Config{URLs: urls, PublishTimeout: -time.Second}},
		{"DialTimeout is -1s", amqp.Config{URLs: urls, DialTimeout: -time.Second}},
		{"Heartbeat is 1ms", amqp.Config{URLs: urls, Heartbeat: time.Millisecond}},
		{"LagInterval is -1s", amqp.Config{URLs: urls, LagInterval: -time.Second}},
		{"CloseTimeout is -1s", amqp.Config{URLs: urls, CloseTimeout: -time.Second}},
	} {
		t.Run(tt.want, func(t *testing.T) {
			_, err := amqp.New(tt.config)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("New: %v, want an error with %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("New: %v, which has a password", err)
			}
		})
	}
}

// With Check there are no queues for delays, and the operator's may drop a message after 20 deliveries. The capabilities said otherwise, so that
// nobody was warned.
func TestCapabilitiesOfACheckedTopologyAreTheOperators(t *testing.T) {
	for _, tt := range []struct {
		topology amqp.Topology
		delays   bool
		limit    int
	}{{amqp.Declare, true, 0}, {amqp.Check, false, 20}} {
		b, err := amqp.New(amqp.Config{URLs: []string{"amqp://127.0.0.1:0/"}, Topology: tt.topology})
		if err != nil {
			t.Fatal(err)
		}
		if c := b.Capabilities(); c.Delays != tt.delays || c.DeliveryLimit != tt.limit {
			t.Errorf("topology %d: Delays is %v, DeliveryLimit is %d; want %v and %d", tt.topology, c.Delays, c.DeliveryLimit, tt.delays, tt.limit)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

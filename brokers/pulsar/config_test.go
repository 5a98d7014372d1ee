package pulsar_test

import (
	"strings"
	"testing"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/pulsar"
)

// noClient is a client that nobody asks for anything.
type noClient struct{ pulsarclient.Client }

func TestBadConfigNamesTheFieldAndTheValue(t *testing.T) {
	c := noClient{}
	for _, tt := range []struct {
		want   string
		config pulsar.Config
	}{
		{"Client is nil", pulsar.Config{}},
		{"MaxUnacked is 1:", pulsar.Config{Client: c, MaxUnacked: 1}},
		{"Window is -1:", pulsar.Config{Client: c, Window: -1}},
		{"Window is 25001: want 1 to 25000", pulsar.Config{Client: c, Window: 25_001}},
		{"Window is 6: want 1 to 5", pulsar.Config{Client: c, Window: 6, MaxUnacked: 10}},
		{"NackDelay is -1s", pulsar.Config{Client: c, NackDelay: -time.Second}},
		{"MaxNackDelay is 1ms: want at least NackDelay, 1s", pulsar.Config{Client: c, NackDelay: time.Second, MaxNackDelay: time.Millisecond}},
		{"Compression is 9", pulsar.Config{Client: c, Compression: 9}},
		{"MaxMessageBytes is 10:", pulsar.Config{Client: c, MaxMessageBytes: 10}},
		{"MaxProducers is -1", pulsar.Config{Client: c, MaxProducers: -1}},
		{"Retention is -1s", pulsar.Config{Client: c, Retention: -time.Second}},
		{"PublishTimeout is -1s", pulsar.Config{Client: c, PublishTimeout: -time.Second}},
		{"PartitionInterval is -1s", pulsar.Config{Client: c, PartitionInterval: -time.Second}},
		{"CloseTimeout is -1s", pulsar.Config{Client: c, CloseTimeout: -time.Second}},
	} {
		t.Run(tt.want, func(t *testing.T) {
			if _, err := pulsar.New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New: %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestCapabilitiesFollowTheConfig(t *testing.T) {
	b, err := pulsar.New(pulsar.Config{Client: noClient{}, MaxUnacked: 100, NoDelays: true, Retention: time.Hour, MaxMessageBytes: 8000})
	if err != nil {
		t.Fatal(err)
	}
	want := brokers.Capabilities{
		System: "pulsar", Ordering: brokers.OrderingKey, MaxUnacked: 50, Releases: true, FanOut: true, Replays: true, MaxHeaderBytes: 1000,
	}
	if got := b.Capabilities(); got != want {
		t.Errorf("Capabilities: %+v, want %+v", got, want)
	}
	if _, err := b.Subscriber(brokers.Subscription{Consumer: "c", Window: 51}); err == nil || !strings.Contains(err.Error(), "51") {
		t.Errorf("Subscriber with a window of 51: %v, want an error that names it", err)
	}
}

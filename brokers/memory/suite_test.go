package memory_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/headracetest/brokertest"
)

func TestSuite(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config memory.Config
	}{{"one partition", memory.Config{}}, {"partitions", memory.Config{Partitions: 4}}} {
		t.Run(tt.name, func(t *testing.T) {
			brokertest.Run(t, brokertest.Suite{
				New: func(tb testing.TB) brokers.Broker {
					b, err := memory.New(tt.config)
					if err != nil {
						tb.Fatal(err)
					}
					return b
				},
				PublishForeign: func(tb testing.TB, b brokers.Broker, topic string, payload []byte) {
					pub, err := b.Publisher()
					if err != nil {
						tb.Fatal(err)
					}
					if err := pub.Publish(topic, &message.Message{Payload: payload}); err != nil {
						tb.Fatal(err)
					}
				},
			})
		})
	}
}

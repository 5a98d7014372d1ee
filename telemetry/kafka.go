package telemetry

import (
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"

	"github.com/headrace-go/headrace/internal/flight"
)

// appendKafka appends what the conventions have for Kafka alone. A key that is not text is left out, as
// they ask.
func (t *Telemetry) appendKafka(attrs []attribute.KeyValue, msg *message.Message, f *flight.Flight) []attribute.KeyValue {
	if f.Delivery.Offset >= 0 {
		attrs = t.both(attrs, keyKafkaOffset.Int64(f.Delivery.Offset), oldKafkaOffset)
	}
	if key := f.Delivery.Key; key != nil && utf8.Valid(key) {
		attrs = t.both(attrs, keyKafkaKey.String(string(key)), oldKafkaKey)
	}
	if msg.Payload == nil {
		attrs = t.both(attrs, keyKafkaTombstone.Bool(true), oldKafkaTombstone)
	}
	return attrs
}

// both appends kv, and its value under its former key if that was asked for.
func (t *Telemetry) both(attrs []attribute.KeyValue, kv attribute.KeyValue, old attribute.Key) []attribute.KeyValue {
	attrs = append(attrs, kv)
	if t.dup {
		attrs = append(attrs, attribute.KeyValue{Key: old, Value: kv.Value})
	}
	return attrs
}

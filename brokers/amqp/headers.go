package amqp

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/brokers"
)

// headerText gives a header's value as metadata. exact is false if that is not what was received.
func headerText(value any) (text string, exact bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case bool:
		return strconv.FormatBool(v), false
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), false
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), false
	case time.Time:
		return v.UTC().Format(time.RFC3339), false
	case nil:
		return "", false
	}
	if n, ok := integer(value); ok {
		return strconv.FormatInt(n, 10), false
	}
	if encoded, err := json.Marshal(value); err == nil {
		return string(encoded), false
	}
	return fmt.Sprint(value), false // a table with a number that is none in JSON
}

// integer gives the value of a header of any of AMQP's integer types.
func integer(value any) (int64, bool) {
	switch v := value.(type) {
	case uint8:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int64:
		return v, true
	}
	return 0, false
}

// typedHeaders gives all headers, sorted by their names: the client keeps no order. The value of a string or a byte array is its
// bytes; any other is AMQP's field value, that is the octet of its type and what follows it.
func typedHeaders(table amqp091.Table) []brokers.Header {
	headers := make([]brokers.Header, 0, len(table))
	for _, name := range slices.Sorted(maps.Keys(table)) {
		h := brokers.Header{Key: name}
		switch v := table[name].(type) {
		case string:
			h.Value = []byte(v)
		case []byte:
			h.Value = v
		default:
			h.Value = appendField(nil, v)
		}
		headers = append(headers, h)
	}
	return headers
}

// appendField appends a field value as RabbitMQ's dialect of AMQP 0-9-1 has it: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3
func appendField(b []byte, value any) []byte {
	be := binary.BigEndian
	switch v := value.(type) {
	case bool:
		if v {
			return append(b, 't', 1)
		}
		return append(b, 't', 0)
	case uint8:
		return append(b, 'B', v)
	case int8:
		return append(b, 'b', byte(v))
	case int16:
		return be.AppendUint16(append(b, 's'), uint16(v))
	case uint16:
		return be.AppendUint16(append(b, 'u'), v)
	case int32:
		return be.AppendUint32(append(b, 'I'), uint32(v))
	case uint32:
		return be.AppendUint32(append(b, 'i'), v)
	case int64:
		return be.AppendUint64(append(b, 'l'), uint64(v))
	case float32:
		return be.AppendUint32(append(b, 'f'), math.Float32bits(v))
	case float64:
		return be.AppendUint64(append(b, 'd'), math.Float64bits(v))
	case amqp091.Decimal:
		return be.AppendUint32(append(b, 'D', v.Scale), uint32(v.Value))
	case time.Time:
		return be.AppendUint64(append(b, 'T'), uint64(v.Unix()))
	case string:
		return append(be.AppendUint32(append(b, 'S'), uint32(len(v))), v...)
	case []byte:
		return append(be.AppendUint32(append(b, 'x'), uint32(len(v))), v...)
	case []any:
		return appendSized(append(b, 'A'), func(b []byte) []byte {
			for _, item := range v {
				b = appendField(b, item)
			}
			return b
		})
	case amqp091.Table:
		return appendSized(append(b, 'F'), func(b []byte) []byte {
			for _, name := range slices.Sorted(maps.Keys(v)) {
				b = append(append(b, byte(len(name))), name...)
				b = appendField(b, v[name])
			}
			return b
		})
	}
	return append(b, 'V') // nil: the client knows no other type
}

// appendSized appends what fill does, with its length before it.
func appendSized(b []byte, fill func([]byte) []byte) []byte {
	at := len(b)
	b = fill(append(b, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

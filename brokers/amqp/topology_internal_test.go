package amqp

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A backlog was handed over 256 messages at a time, whatever their size: 4 GiB of large ones.
func TestHandOverIsBoundedByBytes(t *testing.T) {
	for _, tt := range []struct{ size, there, want int }{
		{1, 0, 0},
		{1, 3, 3},
		{1, 1000, handOverBatch},
		{1 << 20, 1000, handOverBytes >> 20},
		{handOverBytes + 1, 2, 1},
	} {
		body, left := make([]byte, tt.size), tt.there
		batch, err := gather(func() (amqp091.Delivery, bool, error) {
			left--
			return amqp091.Delivery{Body: body}, left >= 0, nil
		})
		if err != nil || len(batch) != tt.want {
			t.Errorf("%d at once of %d messages of %d bytes, error %v; want %d", len(batch), tt.there, tt.size, err, tt.want)
		}
	}
}

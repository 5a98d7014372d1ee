package adapter

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
)

// Key is event.KeyOf as bytes; nil: none.
func Key(m *message.Message) []byte {
	if key := event.KeyOf(m); key != "" {
		return []byte(key)
	}
	return nil
}

package runtime

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
)

// errNoReceipt is the failure of an attempt that returned nil without proof of an effect: a middleware
// swallowed the handler's error, or did not call it (invariant I2).
var errNoReceipt = errors.New("a middleware returned nil but no handler succeeded: return the error, or classify.Drop(err) to skip the message")

// errLostContext is the failure of a message whose context does not come from the one it arrived with.
var errLostContext = errors.New("a middleware gave the message a context that is not made of the one it had (a message.Copy has none): derive it, and use CopyWithContext")

// needReceipt fails an attempt that returns nil without a receipt.
func needReceipt(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		_, err := h(msg)
		if err == nil && flight.From(ctx).Receipt() == flight.NoReceipt {
			return nil, classify.Permanent(errNoReceipt)
		}
		return nil, err
	}
}

// dispatch is the innermost stage: it finds the handler of the message's type and runs it.
func (c *Consumer) dispatch(msg *message.Message) ([]*message.Message, error) {
	f := flight.From(msg.Context())
	if f == nil {
		return nil, classify.Permanent(errLostContext)
	}
	if r := c.routes[AnyType]; r != nil && r.whole {
		return nil, r.run(msg)
	}
	if err := f.Delivery.DecodeError; err != nil {
		return nil, classify.Permanent(fmt.Errorf("message from %s cannot be decoded: %w", f.Topic, err))
	}
	if f.ID == "" && c.config.ID != nil {
		_ = c.config.ID(msg) // see identify
	}
	eventType, err := event.TypeOf(msg)
	if err != nil {
		return nil, err
	}
	if eventType == "" && c.config.Type != nil {
		eventType = c.config.Type(msg)
	}
	r := c.routes[eventType]
	if r == nil {
		r = c.routes[AnyType]
	}
	if r == nil {
		return nil, c.unknown(msg, eventType)
	}
	if r.raw {
		msg = ownMessage(msg)
	}
	return nil, r.run(msg)
}

func (c *Consumer) unknown(msg *message.Message, eventType string) error {
	if c.config.Unknown == DeadLetter {
		return classify.Permanent(fmt.Errorf("consumer %s has no handler for the event type %q", c.config.Name, eventType))
	}
	flight.Give(msg.Context(), flight.Ignored)
	return nil
}

// ownMessage copies msg for a handler that may change it, without the headers of ours that only mean
// something on our own channels.
func ownMessage(msg *message.Message) *message.Message {
	own := message.NewMessageWithContext(msg.Context(), msg.UUID, msg.Payload)
	own.Metadata = maps.Clone(msg.Metadata)
	maps.DeleteFunc(own.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, event.MetaPrefix) })
	if own.Metadata == nil {
		own.Metadata = message.Metadata{}
	}
	return own
}

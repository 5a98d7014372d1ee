package jetstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
)

// maxBatch bounds the messages of one call of Publish that await their confirmation at once.
const maxBatch = 256

// publish is what [Broker.Publisher] describes.
func (b *Broker) publish(topic string, messages []*message.Message) error {
	if err := adapter.CheckCall("jetstream", topic, messages); err != nil {
		return err
	}
	out := make([]*nats.Msg, len(messages))
	limit := b.conn.MaxPayload()
	for i, m := range messages {
		out[i] = encode(topic, m)
		if size := wireSize(out[i]); limit > 0 && int64(size) > limit {
			return classify.Permanent(fmt.Errorf("jetstream: publish message %q to topic %q: it has %d bytes with its headers, more than the server's max_payload of %d",
				m.UUID, topic, size, limit))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.config.PublishTimeout)
	defer cancel()
	if err := b.stream(ctx, topic); err != nil {
		return err
	}
	var (
		pending []sent
		keys    = make(map[string]struct{})
	)
	for i, m := range messages {
		// The next message of a key leaves only when the one before is stored: if that failed, or was lost with
		// a connection, the later one would otherwise be stored before it.
		key := event.KeyOf(m)
		_, waits := keys[key]
		if key != "" && waits || len(pending) == maxBatch {
			if err := b.await(topic, pending, len(messages)); err != nil {
				return err
			}
			pending = pending[:0]
			clear(keys)
		}
		keys[key] = struct{}{}
		options := []jetstream.PublishOpt{jetstream.WithStallWait(b.config.PublishTimeout)}
		if b.config.MsgID != nil {
			if id := b.config.MsgID(topic, m); id != "" {
				options = append(options, jetstream.WithMsgID(id))
			}
		}
		future, err := b.js.PublishMsgAsync(out[i], options...)
		if err != nil {
			return errors.Join(b.await(topic, pending, len(messages)), b.failed(topic, sent{i, m, nil}, len(messages), err))
		}
		pending = append(pending, sent{i, m, future})
	}
	return b.await(topic, pending, len(messages))
}

// sent is a message on its way.
type sent struct {
	index   int
	message *message.Message
	future  jetstream.PubAckFuture
}

// await waits until all are decided, so that none is stored after Publish returned, and returns the first failure.
func (b *Broker) await(topic string, pending []sent, of int) error {
	var first error
	for _, s := range pending {
		var err error
		select {
		case <-s.future.Ok():
			continue
		case err = <-s.future.Err():
		case <-s.message.Context().Done():
			err = fmt.Errorf("not confirmed: %w", context.Cause(s.message.Context()))
		}
		if first == nil {
			first = b.failed(topic, s, of, err)
		}
	}
	return first
}

func (b *Broker) failed(topic string, s sent, of int, err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) {
		b.unknown(topic) // the stream may have been deleted: the next call looks for it
	}
	err = fmt.Errorf("jetstream: publish message %q (%d of %d) to topic %q: %w", s.message.UUID, s.index+1, of, topic, err)
	var api *jetstream.APIError
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadHeaderMsg):
		return classify.Permanent(err)
	case errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == codeHeaderTooLarge):
		return classify.Permanent(err)
	}
	return err
}

// codeHeaderTooLarge is the server's JSStreamHeaderExceedsMaximumErr, which nats.go does not name.
const codeHeaderTooLarge jetstream.ErrorCode = 10097

// wireSize is the size of m as the server counts it against max_payload.
func wireSize(m *nats.Msg) int {
	n := len(m.Data)
	if len(m.Header) > 0 {
		n += len("NATS/1.0\r\n\r\n")
	}
	for k, values := range m.Header {
		for _, v := range values {
			n += len(k) + len(v) + len(": \r\n")
		}
	}
	return n
}

package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/telemetry"
)

// What a row may hold at most, in bytes.
const (
	MaxTopicBytes    = 255
	MaxKeyBytes      = 1024
	MaxUUIDBytes     = 255
	MaxMetadataBytes = 64 << 10 // keys and values together
	MaxPayloadBytes  = 16 << 20
	MaxMessages      = 10_000 // of one Add
)

// ErrInvalid is wrapped by the errors about a message that the outbox cannot hold. Nothing was
// inserted; the same message will always be refused.
var ErrInvalid = errors.New("invalid outbox message")

// Add writes msgs into the outbox within tx: they are published to topic by a [Relay] after tx was
// committed, and never if it is rolled back. Without a relay (runtime.Runtime.Relay) they stay there.
//
// A message is ordered within its topic by its key, see [event.KeyOf]: the event's partition key, else its subject.
// A message with neither has no order. Transactions that write rows of one key must be serialised by
// the caller, by locking what the key stands for (the aggregate's row) before Add; then messages are
// published in the order of the commits.
//
// The caller's messages are not changed. The rows get, where absent, the correlation and causation ids
// and the trace context of ctx, so that the trace of a handler goes on in the next one.
//
// An error that wraps [ErrInvalid] names the message and the field. After any other error the
// transaction must be rolled back.
//
// With ctx of a handler, the relays of its runtime are woken when the message is done. Elsewhere call
// runtime.Runtime.Wake, or [Relay.Wake] of a relay of your own, after the commit. Rows that nobody tells of are found by the
// poll, RelayConfig.PollMax later at most.
func Add[Tx any](ctx context.Context, w Writer[Tx], tx Tx, topic string, msgs ...*message.Message) error {
	return add(ctx, w, tx, time.Time{}, topic, msgs)
}

// AddAt is [Add] for messages that are not to be published before the given time, by the database's
// clock. A delayed message keeps no order with any other message, whatever its key: it is put behind
// what is in the outbox when its time has come.
func AddAt[Tx any](ctx context.Context, w Writer[Tx], tx Tx, at time.Time, topic string, msgs ...*message.Message) error {
	if at.IsZero() {
		return fmt.Errorf("%w: time to publish at is the zero time", ErrInvalid)
	}
	return add(ctx, w, tx, at, topic, msgs)
}

func add[Tx any](ctx context.Context, w Writer[Tx], tx Tx, at time.Time, topic string, msgs []*message.Message) error {
	if err := checkName("topic", topic, MaxTopicBytes); err != nil {
		return err
	}
	if len(msgs) > MaxMessages {
		return fmt.Errorf("%w: %d messages at once, at most %d", ErrInvalid, len(msgs), MaxMessages)
	}
	if len(msgs) == 0 {
		return nil
	}
	rows := make([]Row, 0, len(msgs))
	for i, msg := range msgs {
		row, err := rowOf(ctx, topic, at, msg)
		if err != nil {
			return fmt.Errorf("message %d of %d for topic %q: %w", i+1, len(msgs), topic, err)
		}
		rows = append(rows, row)
	}
	if err := w.InsertOutbox(ctx, tx, rows); err != nil {
		return fmt.Errorf("outbox: add %d messages for topic %q: %w", len(rows), topic, err)
	}
	if at.IsZero() {
		flight.Added(ctx)
	}
	return nil
}

func rowOf(ctx context.Context, topic string, at time.Time, msg *message.Message) (Row, error) {
	if msg == nil {
		return Row{}, fmt.Errorf("%w: nil message", ErrInvalid)
	}
	if err := checkName("UUID", msg.UUID, MaxUUIDBytes); err != nil {
		return Row{}, err
	}
	key := event.KeyOf(msg)
	if key != "" {
		if err := checkName("key", key, MaxKeyBytes); err != nil {
			return Row{}, err
		}
	}
	if len(msg.Payload) > MaxPayloadBytes {
		return Row{}, fmt.Errorf("%w: payload of %d bytes, at most %d", ErrInvalid, len(msg.Payload), MaxPayloadBytes)
	}
	metadata := make(message.Metadata, len(msg.Metadata)+4)
	maps.Copy(metadata, msg.Metadata)
	stamp(ctx, metadata)
	if err := checkMetadata(metadata); err != nil {
		return Row{}, err
	}
	spread := key
	if spread == "" {
		spread = msg.UUID
	}
	return Row{
		Bucket: BucketOf(spread), Topic: topic, Key: key, UUID: msg.UUID,
		Metadata: metadata, Payload: msg.Payload, AvailableAt: at,
	}, nil
}

// stamp writes what ctx knows and metadata does not.
func stamp(ctx context.Context, metadata message.Metadata) {
	if metadata[event.MetaCorrelationID] == "" && metadata[event.MetaWatermillCorrelationID] == "" {
		if id := event.CorrelationID(ctx); id != "" {
			metadata[event.MetaCorrelationID] = id
		}
	}
	if metadata[event.MetaCausationID] == "" {
		if id := event.CausationID(ctx); id != "" {
			metadata[event.MetaCausationID] = id
		}
	}
	telemetry.Inject(ctx, metadata)
}

// checkName refuses what some database or broker cannot hold as text, or would hold changed.
func checkName(field, value string, limit int) error {
	switch {
	case value == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalid, field)
	case len(value) > limit:
		return fmt.Errorf("%w: %s %.40q... of %d bytes, at most %d", ErrInvalid, field, value, len(value), limit)
	case !utf8.ValidString(value):
		return fmt.Errorf("%w: %s %.40q is not valid UTF-8", ErrInvalid, field, value)
	case strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("%w: %s %.40q has a NUL byte", ErrInvalid, field, value)
	}
	return nil
}

func checkMetadata(metadata message.Metadata) error {
	size := 0
	for k, v := range metadata {
		size += len(k) + len(v)
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: metadata %.40q: value %.40q: not valid UTF-8", ErrInvalid, k, v)
		}
	}
	if size > MaxMetadataBytes {
		return fmt.Errorf("%w: metadata of %d bytes, at most %d", ErrInvalid, size, MaxMetadataBytes)
	}
	return nil
}

package poison

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/event"
)

// RedriveVersion is the version of the form of a message on a redrive topic that this package writes.
const RedriveVersion = 1

// RedriveSuffix is what [RedriveTopic] adds to a consumer's name.
const RedriveSuffix = ".REDRIVE"

// The metadata keys of a message on a redrive topic: a wire contract. Beside them it is a dead letter: the
// original's bytes, metadata and position in the form that [Parse] reads, without the error's text.
const (
	MetaRedriveVersion = "headrace_redrive_version" // the form's version; always there
	MetaRedriveKind    = "headrace_redrive_kind"    // RedriveKind in words; always there
	MetaRedriveHops    = "headrace_redrive_hops"    // how often it was redriven, this time included
	MetaRedriveBatch   = "headrace_redrive_batch"   // the operator's run that it belongs to

	// MetaRedrivePrefix begins all of these.
	MetaRedrivePrefix = "headrace_redrive_"
)

// RedriveKind tells why a message is on a redrive topic.
type RedriveKind string

// The kinds.
const (
	KindRedrive RedriveKind = "redrive" // it was a dead letter, whose id in the inbox is frozen
	KindReplay  RedriveKind = "replay"  // it was read from its topic again; the consumer identifies it as it did before
	KindDelay   RedriveKind = "delay"   // it is no dead letter: its error asked for a later delivery. Its attempts and its first failure count on
)

func (k RedriveKind) isKnown() bool { return k == KindRedrive || k == KindReplay || k == KindDelay }

// maxHops bounds what is believed of a count of hops or deaths.
const maxHops = 1 << 30

// RedriveTopic names the topic that the messages go to that are to be handled again by consumer alone. The
// runtime subscribes the consumer to it beside its own topic.
func RedriveTopic(consumer string) string { return consumer + RedriveSuffix }

// ErrNotRedrive says that a message has no mark of one that was redriven.
var ErrNotRedrive = errors.New("not a redriven message: no " + MetaRedriveVersion)

// Redrive is what a redriven message says of itself.
type Redrive struct {
	Kind RedriveKind

	// Hops is how often the message was redriven, this time included; Batch names the operator's run. A dead letter of a
	// replayed message is told from those of before the replay by it: give each replay one of its own.
	Hops  int
	Batch string

	// Record is the dead letter it was, with the message as it had arrived. A replayed message was none:
	// its Record has no ID, MessageID and Deaths. Nor was a delayed one: its Deaths are those before, and its Attempts and
	// FirstFailure are of all deliveries so far.
	Record Record
}

// Message returns the message to publish to [RedriveTopic] of the record's consumer, with at most
// maxHeaderBytes of metadata (0: 32 KiB); what does not fit goes into the body, as in a dead letter. Its UUID is the dead letter's
// id. A reference has no message to redrive and is refused, as is a record without a consumer.
func (r *Redrive) Message(maxHeaderBytes int) (*message.Message, error) {
	rec := r.Record
	switch {
	case rec.Consumer == "":
		return nil, errors.New("redrive: the record names no consumer")
	case rec.Reference:
		return nil, fmt.Errorf("redrive dead letter %s: it refers to %s/%d/%d and has no message of its own", rec.ID, rec.Topic, rec.Partition, rec.Offset)
	case !r.Kind.isKnown():
		return nil, fmt.Errorf("redrive: kind %q: want %q, %q or %q", r.Kind, KindRedrive, KindReplay, KindDelay)
	case !isClean(r.Batch):
		return nil, fmt.Errorf("redrive: batch %.64q: want at most 255 bytes of printable text", r.Batch)
	case r.Hops < 0 || r.Hops > maxHops:
		return nil, fmt.Errorf("redrive: %d hops: want 0 to %d", r.Hops, maxHops)
	}
	if rec.ID == "" {
		rec.ID = watermill.NewUUID()
	}
	rec.Version, rec.Error, rec.Stack = Version, "", ""
	own := []field{
		{MetaRedriveVersion, strconv.Itoa(RedriveVersion)},
		{MetaRedriveKind, string(r.Kind)},
		{MetaRedriveHops, count(r.Hops)},
		{MetaRedriveBatch, r.Batch},
	}
	limit := or(maxHeaderBytes, 32<<10)
	for _, f := range own {
		limit -= len(f.key) + len(f.value)
	}
	var msg *message.Message
	var err error
	if isText(rec.Metadata) {
		msg, err = rec.message(limit)
	} else {
		msg, err = rec.enveloped(limit) // an outbox, say, keeps no other metadata than text
	}
	if err != nil {
		return nil, fmt.Errorf("redrive dead letter %s: %w", rec.ID, err)
	}
	for key := range msg.Metadata {
		if strings.HasPrefix(key, MetaRedrivePrefix) {
			delete(msg.Metadata, key) // of an earlier life, or somebody else's: ours alone mean something here
		}
	}
	for _, f := range own {
		if f.value != "" {
			msg.Metadata[f.key] = f.value
		}
	}
	return msg, nil
}

// ParseRedrive reads a message of a redrive topic. The error wraps [ErrNotRedrive], or names the key and the
// value that it cannot read. It is for redrive topics alone: elsewhere anybody can send these keys.
func ParseRedrive(msg *message.Message) (Redrive, error) {
	r := reader{metadata: msg.Metadata}
	version := r.number(MetaRedriveVersion, 64)
	switch {
	case msg.Metadata[MetaRedriveVersion] == "":
		return Redrive{}, fmt.Errorf("parse redriven message %s: %w", msg.UUID, ErrNotRedrive)
	case r.err == nil && (version < 1 || version > RedriveVersion):
		r.err = fmt.Errorf("%s is %d: this program reads versions 1 to %d", MetaRedriveVersion, version, RedriveVersion)
	}
	hops := r.number(MetaRedriveHops, 32)
	if hops < 0 || hops > maxHops {
		r.fail(MetaRedriveHops, fmt.Errorf("want 0 to %d", maxHops))
	}
	kind := RedriveKind(msg.Metadata[MetaRedriveKind])
	if !kind.isKnown() {
		r.fail(MetaRedriveKind, fmt.Errorf("want %q, %q or %q", KindRedrive, KindReplay, KindDelay))
	}
	if r.err != nil {
		return Redrive{}, fmt.Errorf("parse redriven message %s: %w", msg.UUID, r.err)
	}
	record, err := Parse(msg)
	if err != nil {
		return Redrive{}, fmt.Errorf("parse redriven message: %w", err)
	}
	if record.Reference {
		return Redrive{}, fmt.Errorf("parse redriven message %s: it refers to another message", msg.UUID)
	}
	for key := range record.Metadata {
		if strings.HasPrefix(key, MetaRedrivePrefix) {
			delete(record.Metadata, key)
		}
	}
	return Redrive{Kind: kind, Hops: int(hops), Batch: msg.Metadata[MetaRedriveBatch], Record: record}, nil
}

type redriveKey struct{}

// RedriveOf returns what [Restore] found out about the message that ctx belongs to, or nil: it was not redriven.
// Callers must not change it.
func RedriveOf(ctx context.Context) *Redrive {
	r, _ := ctx.Value(redriveKey{}).(*Redrive)
	return r
}

// Restore makes a message of a redrive topic what it was when it first arrived: UUID, payload, metadata, and
// where it came from (brokers.DeliveryOf); [RedriveOf] tells the rest. Decoders, upcasters, lanes and the
// consumer's own functions then see what they saw before. Use it on subscriptions to redrive topics alone,
// inside of the intake:
//
//	sub, err = message.MessageTransformSubscriberDecorator(poison.Restore)(sub)
//
// What it cannot read stays as it is, with a DecodeError: it is a permanent failure, and becomes a dead letter of the
// redrive topic itself.
func Restore(msg *message.Message) {
	var d brokers.Delivery
	if got := brokers.DeliveryOf(msg.Context()); got != nil {
		d = *got
	} else {
		d.Partition, d.Offset = -1, -1
	}
	redrive, err := ParseRedrive(msg)
	if err != nil {
		if d.DecodeError == nil {
			d.DecodeError = err
		}
		msg.SetContext(brokers.WithDelivery(msg.Context(), &d))
		return
	}
	r := &redrive.Record
	d.Topic, d.Incarnation, d.Partition, d.Offset, d.Time = r.Topic, r.Incarnation, r.Partition, r.Offset, r.Time
	d.Key, d.Headers, d.DecodeError = r.Key, r.Headers, nil
	if r.DecodeError != "" {
		d.DecodeError = errors.New(r.DecodeError)
	}
	msg.UUID, msg.Payload, msg.Metadata = r.UUID, r.Payload, r.Metadata
	msg.SetContext(context.WithValue(brokers.WithDelivery(msg.Context(), &d), redriveKey{}, &redrive))
}

// Identify returns the message's id within the consumer: the frozen one of a dead letter or a delayed message, which its
// inbox knows. It is "" for a replay, and for what had none: then the consumer's own way applies to the restored message, with
// the topic r.Record.Topic.
func (r *Redrive) Identify() string {
	if r.Kind == KindReplay {
		return ""
	}
	return r.Record.MessageID
}

// Trace returns the W3C context of the span in which the message failed, or was published, as far as it is known; isNew says that
// what happens to it now is a trace of its own: an operator sent it again.
func (r *Redrive) Trace() (parent string, isNew bool) {
	return r.Record.TraceParent, r.Kind == KindReplay || r.Kind == KindRedrive && r.Record.ID != ""
}

// Earlier returns how often the handler has run for a delayed message, and when it had failed first; 0 for others, which
// begin anew.
func (r *Redrive) Earlier() (attempts int, firstFailure time.Time) {
	if r.Kind != KindDelay {
		return 0, time.Time{}
	}
	return r.Record.Attempts, r.Record.FirstFailure
}

// failed adds what a record of a redriven message has beside that of another. The position is that of the restored delivery.
func (r *Redrive) failed(rec *Record) {
	rec.Topic, rec.Hops, rec.Batch = r.Record.Topic, r.Hops, r.Batch
	if before := r.Record.Deaths; before > 0 && before < maxHops {
		rec.Deaths = before + 1
	}
}

// life tells the deaths of a message that a replay brought back, which are counted from 1 again, from those before: by the
// replay's batch, and after a redrive of such a dead letter by its id. It is "" for all others.
func (r *Redrive) life() string {
	if r == nil {
		return ""
	}
	if r.Record.Deaths == 0 {
		return r.Batch // a replay's, which may have been delayed or parked since
	}
	if letter := r.letter(); letter != r.Record.deriveID("") {
		return letter
	}
	return ""
}

// letter is the id of the dead letter that the message was last, also if it was delayed or parked since. "": it was none.
func (r *Redrive) letter() string {
	if r.Kind == KindRedrive && r.Record.ID != "" {
		return r.Record.ID
	}
	return r.Record.Letter // the ID of a delayed one is that of the message that brings it
}

// topicOf is where the message was first read: its dead letters go to the topic of that one's.
func topicOf(ctx context.Context, topic string) string {
	if r := RedriveOf(ctx); r != nil {
		return r.Record.Topic
	}
	return topic
}

// Original returns the message of r as it had arrived, for an adapter-independent look at its type and keys. It
// shares memory with r and has no context.
func (r *Record) Original() *message.Message {
	msg := message.NewMessage(r.UUID, r.Payload)
	msg.Metadata = r.Metadata
	d := &brokers.Delivery{
		Topic: r.Topic, Incarnation: r.Incarnation, Partition: r.Partition, Offset: r.Offset, Time: r.Time,
		Key: r.Key, Headers: r.Headers,
	}
	if r.DecodeError != "" {
		d.DecodeError = errors.New(r.DecodeError)
	}
	msg.SetContext(brokers.WithDelivery(context.Background(), d))
	return msg
}

// RecordOf is the record of a message that was read from a broker and is no dead letter, to be replayed to
// consumer. It shares memory with msg.
func RecordOf(consumer string, msg *message.Message) (Record, error) {
	d := brokers.DeliveryOf(msg.Context())
	if d == nil || d.Topic == "" {
		return Record{}, fmt.Errorf("message %q does not tell the topic it was read from", msg.UUID)
	}
	r := Record{
		Version: Version, Consumer: consumer,
		Topic: d.Topic, Incarnation: d.Incarnation, Partition: d.Partition, Offset: d.Offset, Time: d.Time,
		Key: d.Key, Payload: msg.Payload, Metadata: msg.Metadata, UUID: msg.UUID, Headers: d.Headers,
		CorrelationID: msg.Metadata[event.MetaCorrelationID],
	}
	if d.DecodeError != nil {
		r.DecodeError = cut(readable(textOf(d.DecodeError)), maxClean)
	}
	if !isClean(r.CorrelationID) {
		r.CorrelationID = ""
	}
	return r, nil
}

func isText(metadata map[string]string) bool {
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return false
		}
	}
	return true
}

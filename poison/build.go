package poison

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// record writes down what is known of a failed message, which is as it was when it arrived.
func (p *Poison) record(ctx context.Context, f *flight.Flight, msg *message.Message, fail *middleware.GaveUpError) Record {
	d, said := f.Delivery, readable(cut(textOf(fail.Err), maxText))
	r := Record{
		Version:       Version,
		Consumer:      p.config.Consumer,
		Topic:         or(d.Topic, f.Topic), // the subscription's may be a pattern
		Incarnation:   d.Incarnation,
		Partition:     d.Partition,
		Offset:        d.Offset,
		Time:          d.Time,
		Key:           slices.Clone(d.Key),
		Payload:       msg.Payload,
		Metadata:      original(msg.Metadata),
		UUID:          msg.UUID,
		Headers:       slices.Clone(d.Headers),
		MessageID:     f.ID,
		Attempts:      fail.Attempts,
		Deliveries:    d.Count,
		Deaths:        1,
		Verdict:       fail.Verdict,
		ErrorType:     cut(readable(fail.ErrorType), maxErrorType),
		Error:         cut(said, p.config.MaxMessageBytes),
		FirstFailure:  fail.FirstFailure,
		LastFailure:   fail.LastFailure,
		CorrelationID: f.CorrelationID,
		TraceParent:   traceParent(ctx, msg),
	}
	if before, err := strconv.Atoi(msg.Metadata[MetaDeaths]); err == nil && before > 0 && before < 1<<30 {
		r.Deaths += before
	}
	if d.DecodeError != nil {
		r.DecodeError = cut(readable(cut(textOf(d.DecodeError), maxText)), maxClean)
	}
	if redrive := RedriveOf(ctx); redrive != nil {
		redrive.failed(&r)
	}
	if r.MessageID == "" {
		r.MessageID, _ = event.Identify(msg, r.Topic) // there may be none, and Poison needs none
	}
	if r.CorrelationID == "" {
		r.CorrelationID = or(msg.Metadata[event.MetaCorrelationID], msg.Metadata[event.MetaWatermillCorrelationID])
	}
	if !isClean(r.CorrelationID) {
		r.CorrelationID = "" // it is in the metadata as it came
	}
	if panicked, ok := errors.AsType[*classify.PanicError](fail.Err); ok {
		r.Stack = cut(readable(string(panicked.Stack)), p.config.MaxStackBytes)
	}
	r.ID = r.deriveID(RedriveOf(ctx).life())
	eventType, _ := event.TypeOf(msg)
	r.Fingerprint = fingerprint(r.Consumer, eventType, r.ErrorType, said)
	return r
}

// original returns the metadata without what a dead letter adds.
func original(metadata message.Metadata) map[string]string {
	if metadata == nil {
		return nil
	}
	kept := make(map[string]string, len(metadata))
	for k, v := range metadata {
		if k != event.MetaFrozenID && !strings.HasPrefix(k, MetaPrefix) {
			kept[k] = v
		}
	}
	return kept
}

// deriveID makes the dead letter's id. It is the same for each copy of one death. life is "" but for what a replay brought back.
func (r *Record) deriveID(life string) string {
	if r.MessageID == "" {
		return watermill.NewUUID() // nothing tells copies apart from strangers
	}
	parts := []string{"headrace dead letter 1", r.Consumer, r.MessageID, strconv.Itoa(r.Deaths)}
	if life != "" {
		parts = append(parts, life)
	}
	sum := sumOf(parts...)
	sum[6] = sum[6]&0x0f | 0x80 // version 8, RFC 9562: of our own making
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// fingerprint is frozen: alarms and saved searches name it. The text is bounded after ids and numbers were
// taken out, so that the cut does not depend on them.
func fingerprint(consumer, eventType, errorType, text string) string {
	sum := sumOf("headrace fingerprint 1", consumer, eventType, errorType, cut(normalise(text), maxKind))
	return fmt.Sprintf("%x", sum[:8])
}

// sumOf hashes the parts, each with its length, so that they cannot run into each other.
func sumOf(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, part := range parts {
		writePart(h, part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func writePart(h hash.Hash, part string) {
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
	h.Write([]byte(part))
}

// traceParent returns the W3C context of the span that ctx is in, else what the message came with.
func traceParent(ctx context.Context, msg *message.Message) string {
	if span := spanOf(ctx); span != "" {
		return span
	}
	if sent := msg.Metadata[event.MetaTraceParent]; isClean(sent) {
		return sent
	}
	return ""
}

// spanOf is the W3C context of the span that ctx is in, or "".
func spanOf(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() {
		return ""
	}
	return fmt.Sprintf("00-%s-%s-%s", span.TraceID(), span.SpanID(), span.TraceFlags())
}

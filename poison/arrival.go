package poison

import (
	"context"
	"slices"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
)

// Arrival is the record of the message that ctx belongs to, as it arrived: one that is to be kept and has not failed for
// good. It has no ID, and the deaths, the hops and the last Letter of earlier lives alone. It is for stages of a consumer; the second result is
// false outside of one.
func Arrival(ctx context.Context) (Record, bool) {
	f := flight.From(ctx)
	if f == nil {
		return Record{}, false
	}
	d := f.Delivery
	uuid, payload, metadata := f.Arrived()
	r := Record{
		Version: Version, Consumer: f.Consumer, Topic: or(d.Topic, f.Topic), Incarnation: d.Incarnation,
		Partition: d.Partition, Offset: d.Offset, Time: d.Time, Deliveries: d.Count,
		Key: slices.Clone(d.Key), Headers: slices.Clone(d.Headers),
		UUID: uuid, Payload: payload, Metadata: original(metadata), MessageID: f.ID, CorrelationID: f.CorrelationID,
	}
	if sent := metadata[event.MetaTraceParent]; isClean(sent) {
		r.TraceParent = sent
	}
	if d.DecodeError != nil {
		r.DecodeError = cut(readable(cut(textOf(d.DecodeError), maxText)), maxClean)
	}
	if before := RedriveOf(ctx); before != nil {
		r.Topic = before.Record.Topic
		r.Deaths, r.Hops, r.Batch = before.Record.Deaths, before.Hops, before.Batch
		if letter := before.letter(); isClean(letter) {
			r.Letter = letter
		}
	}
	return r, true
}

// Delayed is [Arrival] for a message whose error asked for a later delivery, with what is known of its failures so far.
func Delayed(ctx context.Context, e *middleware.DelayedError) (Record, bool) {
	r, ok := Arrival(ctx)
	r.Verdict, r.ErrorType = classify.VerdictRetryAfter, cut(readable(e.ErrorType), maxErrorType)
	r.Error = cut(readable(cut(textOf(e.Err), maxText)), slimError)
	r.Attempts, r.FirstFailure, r.LastFailure = e.Attempts, e.FirstFailure, e.LastFailure
	if span := spanOf(ctx); span != "" {
		r.TraceParent = span
	}
	return r, ok
}

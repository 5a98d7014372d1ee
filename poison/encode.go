package poison

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
)

// The values of MetaEncoding.
const (
	encodingEnvelope  = "envelope"
	encodingReference = "reference"
)

// field is one metadata entry of a dead letter.
type field struct{ key, value string }

// message builds the dead letter, with at most limit bytes of metadata. It leaves r as it is.
func (r *Record) message(limit int) (*message.Message, error) {
	if r.Reference {
		return r.referred(limit), nil
	}
	if msg := r.plain(limit); msg != nil {
		return msg, nil
	}
	return r.enveloped(limit)
}

// referred has nothing of the original but where it is.
func (r *Record) referred(limit int) *message.Message {
	msg := message.NewMessage(r.ID, nil)
	fields := append([]field{{MetaEncoding, encodingReference}}, r.fields()...)
	for _, f := range append(fields, field{MetaError, cut(r.Error, slimError)}) {
		if size := len(f.key) + len(f.value); size <= limit && len(f.value) <= slimError && isClean(f.value) {
			msg.Metadata[f.key] = f.value
			limit -= size
		}
	}
	return msg
}

// plain is the original's bytes and metadata, and the record beside it. It returns nil if they do not fit.
func (r *Record) plain(limit int) *message.Message {
	if !isClean(r.UUID) || !isClean(r.MessageID) || !isClean(r.Topic) || !isClean(r.Incarnation) {
		return nil
	}
	fields := r.fields()
	fields = append(fields, r.keyFields()...)
	if r.Headers != nil {
		headers, err := json.Marshal(headerPairs(r.Headers))
		if err != nil {
			return nil // the envelope says why
		}
		fields = append(fields, field{MetaHeaders, string(headers)})
	}
	size := 0
	for k, v := range r.Metadata {
		size += len(k) + len(v)
	}
	for _, f := range fields {
		size += len(f.key) + len(f.value)
	}
	// What is left is for the text, which may be cut: the error first, then the stack.
	left := limit - size
	if least := len(MetaError) + min(len(r.Error), slimError); left < least {
		return nil
	}
	text := cut(r.Error, left-len(MetaError))
	fields = append(fields, field{MetaError, text})
	left -= len(MetaError) + len(text)
	if stack := cut(r.Stack, left-len(MetaStack)); stack != "" {
		fields = append(fields, field{MetaStack, stack})
	}

	msg := message.NewMessage(r.ID, r.Payload)
	for k, v := range r.Metadata {
		msg.Metadata[k] = v
	}
	for _, f := range fields {
		msg.Metadata[f.key] = f.value
	}
	return msg
}

// enveloped has everything in its body, and in its metadata what fits, the most useful first.
func (r *Record) enveloped(limit int) (*message.Message, error) {
	body, err := json.Marshal(r.envelope())
	if err != nil {
		return nil, fmt.Errorf("encode the envelope: %w", err)
	}
	msg := message.NewMessage(r.ID, body)
	fields := append([]field{
		{MetaVersion, strconv.Itoa(Version)},
		{MetaEncoding, encodingEnvelope},
		{event.MetaContentType, EnvelopeType},
	}, r.fields()...)
	for _, key := range []string{event.MetaPartitionKey, event.MetaTraceParent} {
		if v, ok := r.Metadata[key]; ok {
			fields = append(fields, field{key, v})
		}
	}
	fields = append(fields, field{MetaError, cut(r.Error, slimError)})
	for _, f := range fields {
		if size := len(f.key) + len(f.value); size <= limit && len(f.value) <= slimError && utf8.ValidString(f.value) {
			msg.Metadata[f.key] = f.value
			limit -= size
		}
	}
	return msg, nil
}

// fields are the entries of bounded size, the most useful first.
func (r *Record) fields() []field {
	all := []field{
		{MetaVersion, strconv.Itoa(Version)},
		{MetaConsumer, r.Consumer},
		{MetaTopic, r.Topic},
		{event.MetaFrozenID, r.MessageID},
		{MetaVerdict, r.Verdict.String()},
		{MetaErrorType, r.ErrorType},
		{MetaDeaths, count(r.Deaths)},
		{MetaAttempts, count(r.Attempts)},
		{MetaFingerprint, r.Fingerprint},
		{MetaFirstFailure, timeText(r.FirstFailure)},
		{MetaLastFailure, timeText(r.LastFailure)},
		{MetaPartition, position(int64(r.Partition))},
		{MetaOffset, position(r.Offset)},
		{MetaIncarnation, r.Incarnation},
		{MetaTime, timeText(r.Time)},
		{MetaUUID, r.UUID},
		{MetaDeliveries, count(r.Deliveries)},
		{MetaCorrelationID, r.CorrelationID},
		{MetaTraceParent, r.TraceParent},
		{MetaDecodeError, r.DecodeError},
		{MetaHops, count(r.Hops)},
		{MetaBatch, r.Batch},
		{MetaLetter, r.Letter},
	}
	return slices.DeleteFunc(all, func(f field) bool { return f.value == "" })
}

// keyFields give the key, as text if it can be read back from that.
func (r *Record) keyFields() []field {
	switch {
	case r.Key == nil:
		return nil
	case isClean(string(r.Key)):
		return []field{{MetaKey, string(r.Key)}}
	}
	return []field{{MetaKey, base64.StdEncoding.EncodeToString(r.Key)}, {MetaKeyEncoding, encodingBase64}}
}

// encodingBase64 is the value of MetaKeyEncoding.
const encodingBase64 = "base64"

func count(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func position(n int64) string {
	if n < 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

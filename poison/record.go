package poison

import (
	"time"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
)

// Version is the version of the dead letter's form that this package writes.
const Version = 1

// The metadata keys of a dead letter: a wire contract. A key is absent where there is nothing to say.
// Numbers are decimal, times are RFC 3339 in UTC with nanoseconds. In JSON, what is not valid UTF-8 is
// {"base64": "..."}, and what is nil is null.
const (
	MetaVersion       = "headrace_dlt_version"        // the form's version; always there
	MetaEncoding      = "headrace_dlt_encoding"       // "envelope": the body is one; "reference": there is none; absent: the original bytes
	MetaConsumer      = "headrace_dlt_consumer"       // who could not handle it
	MetaTopic         = "headrace_dlt_topic"          // where it was read
	MetaIncarnation   = "headrace_dlt_incarnation"    // of the topic
	MetaPartition     = "headrace_dlt_partition"      // where the broker has one
	MetaOffset        = "headrace_dlt_offset"         // where the broker has one
	MetaTime          = "headrace_dlt_time"           // when the broker had stored it
	MetaKey           = "headrace_dlt_key"            // the broker's key; "" is a key, absent is none
	MetaKeyEncoding   = "headrace_dlt_key_encoding"   // "base64": the key is; absent: it is text
	MetaHeaders       = "headrace_dlt_headers"        // JSON [[key, value], ...]: the headers as received, where metadata cannot hold them
	MetaUUID          = "headrace_dlt_uuid"           // the original's Watermill UUID
	MetaAttempts      = "headrace_dlt_attempts"       // runs of the handler, in the process that gave up
	MetaDeliveries    = "headrace_dlt_deliveries"     // the broker's count of deliveries
	MetaDeaths        = "headrace_dlt_deaths"         // how often it was dead-lettered, this time included
	MetaVerdict       = "headrace_dlt_verdict"        // classify.Verdict in words
	MetaErrorType     = "headrace_dlt_error_type"     // the kind of error, from a bounded set
	MetaError         = "headrace_dlt_error"          // the error's text, bounded
	MetaStack         = "headrace_dlt_stack"          // of a panic, bounded
	MetaFirstFailure  = "headrace_dlt_first_failure"  // when the first attempt had failed
	MetaLastFailure   = "headrace_dlt_last_failure"   // when the last attempt had failed
	MetaCorrelationID = "headrace_dlt_correlation_id" // of the conversation
	MetaTraceParent   = "headrace_dlt_traceparent"    // W3C: the span in which it failed
	MetaFingerprint   = "headrace_dlt_fingerprint"    // equal for failures of one kind
	MetaDecodeError   = "headrace_dlt_decode_error"   // why the adapter could not make sense of what it received
	MetaHops          = "headrace_dlt_hops"           // how often it had been redriven
	MetaBatch         = "headrace_dlt_batch"          // the redrive that it failed in
	MetaLetter        = "headrace_dlt_letter"         // of a delayed message: the id of the dead letter that it was last

	// MetaPrefix begins all of these. With event.MetaFrozenID they are all that a dead letter adds.
	MetaPrefix = "headrace_dlt_"
)

// EnvelopeType is the content type of an enveloped dead letter.
const EnvelopeType = "application/vnd.headrace.dead-letter+json"

// Record is what is known of a dead letter. See the Meta constants for its form on the wire.
type Record struct {
	// ID is the dead letter's own id, its Watermill UUID.
	ID string
	// Version is the form it was read in.
	Version int

	// Consumer is who could not handle the message.
	Consumer string

	// Where it was read. Partition and Offset are -1 where the broker has none; Time is the zero time
	// where it is not known.
	Topic, Incarnation string
	Partition          int32
	Offset             int64
	Time               time.Time

	// The message as it was: its key (nil: none), payload (nil: a tombstone), metadata, UUID, and its
	// headers where metadata could not hold them (nil: it could).
	Key      []byte
	Payload  []byte
	Metadata map[string]string
	UUID     string
	Headers  []brokers.Header

	// Reference says that the broker would not store the original again, since it is as large as a
	// message can be: it is not here, but still at its Topic, Partition and Offset.
	Reference bool

	// MessageID is the message's id within the consumer, the one in its inbox. "": it had none.
	MessageID string

	// Attempts is how often the handler ran in the process that gave up; Deliveries is the broker's
	// count, 0 where it has none; Deaths is how often the message was dead-lettered, this time included.
	Attempts, Deliveries, Deaths int

	// Why. Error and Stack are bounded, and valid UTF-8.
	Verdict                 classify.Verdict
	ErrorType, Error, Stack string

	FirstFailure, LastFailure time.Time

	// CorrelationID names the conversation. TraceParent is the W3C context of the span that failed.
	CorrelationID, TraceParent string

	// DecodeError is why the adapter could not make sense of what it received, bounded; "": it could.
	DecodeError string

	// Hops is how often the message had been redriven, and Batch the run of the last of these.
	Hops  int
	Batch string

	// Letter is the id of the dead letter that the message was last, in a record that is none itself: see [Arrival]. "": it
	// was none.
	Letter string

	// Fingerprint is equal for failures of one kind: same consumer, event type, error type and error
	// text, apart from numbers and ids in it. 16 hexadecimal digits.
	Fingerprint string
}

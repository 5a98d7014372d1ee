package telemetry

import "go.opentelemetry.io/otel/attribute"

// The names are those of OpenTelemetry's semantic conventions 1.45.0 (status: Development), which
// otel-go has no generated package for. No other file of the module spells one.
const schemaURL = "https://opentelemetry.io/schemas/1.45.0"

// scopeName names the instrumentation scope of all spans and metrics.
const scopeName = "github.com/headrace-go/headrace/telemetry"

// optInVariable lists, comma-separated, which conventions to emit; optInDup asks for both the present
// names and those they replaced.
const (
	optInVariable = "OTEL_SEMCONV_STABILITY_OPT_IN"
	optInDup      = "messaging/dup"
)

// Attribute keys of the conventions.
const (
	keySystem           = attribute.Key("messaging.system.name")
	keyOperationName    = attribute.Key("messaging.operation.name")
	keyOperationType    = attribute.Key("messaging.operation.type")
	keyDestination      = attribute.Key("messaging.destination.name")
	keyPartition        = attribute.Key("messaging.destination.partition.id")
	keyConsumerGroup    = attribute.Key("messaging.consumer.group.name")
	keyMessageID        = attribute.Key("messaging.message.id")
	keyConversationID   = attribute.Key("messaging.message.conversation_id")
	keyBodySize         = attribute.Key("messaging.message.body.size")
	keyBatchCount       = attribute.Key("messaging.batch.message_count")
	keyKafkaOffset      = attribute.Key("kafka.offset")
	keyKafkaKey         = attribute.Key("kafka.message.key")
	keyKafkaTombstone   = attribute.Key("kafka.message.tombstone")
	keyErrorType        = attribute.Key("error.type")
	keyCloudEventID     = attribute.Key("cloudevents.event_id")
	keyCloudEventSource = attribute.Key("cloudevents.event_source")
	keyCloudEventType   = attribute.Key("cloudevents.event_type")
)

// Attribute keys that 1.45.0 replaced, for messaging/dup.
const (
	oldSystem         = attribute.Key("messaging.system")
	oldKafkaOffset    = attribute.Key("messaging.kafka.offset")
	oldKafkaKey       = attribute.Key("messaging.kafka.message.key")
	oldKafkaTombstone = attribute.Key("messaging.kafka.message.tombstone")
)

// Attribute keys of our own.
const (
	keyOutcome         = attribute.Key("headrace.outcome")
	keyAttempts        = attribute.Key("headrace.attempts")
	keyAttempt         = attribute.Key("headrace.attempt.number")
	keyAttemptDuration = attribute.Key("headrace.attempt.duration")
	keyRetryDelay      = attribute.Key("headrace.retry.delay")
	keyDeliveryCount   = attribute.Key("headrace.delivery.count")
	keyOutbox          = attribute.Key("headrace.outbox.name")
	keyInbox           = attribute.Key("headrace.inbox.name")
	keyDeadLetterState = attribute.Key("headrace.dead_letter.state")
	keyPauseCause      = attribute.Key("headrace.pause.cause")
)

// Values of messaging.operation.name and .type, and beginnings of span names.
const (
	operationProcess = "process"
	operationSend    = "send"
	operationAttempt = "attempt" // in span names only
)

const (
	systemKafka   = "kafka"
	systemDefault = "watermill"

	// errorTypeOther is the conventions' value for what has no better name.
	errorTypeOther = "_OTHER"

	// errorTypePanic is classify's name for a panic; here it is one that nobody recovered yet.
	errorTypePanic = "panic"
)

// Values of headrace.outcome beside the receipts' names.
const (
	outcomeFailed   = "failed"
	outcomeReleased = "released"
	outcomeDelayed  = "delayed"
)

// Names of span events.
const (
	eventAttemptFailed = "headrace.attempt.failed"
	eventRetry         = "headrace.retry"
)

// Units, as UCUM writes them.
const (
	unitSeconds  = "s"
	unitMessages = "{message}"
	unitPauses   = "{pause}"
	unitKeys     = "{key}"
	unitBuckets  = "{bucket}"
	unitRelays   = "{relay}"
)

// instrument is what one metric is called.
type instrument struct {
	name, unit, description string
}

var (
	processDuration = instrument{
		"messaging.process.duration", unitSeconds,
		"Duration of processing operation.",
	}
	operationDuration = instrument{
		"messaging.client.operation.duration", unitSeconds,
		"Duration of messaging operation initiated by a producer or consumer client.",
	}
	sentMessages = instrument{
		"messaging.client.sent.messages", unitMessages,
		"Number of messages producer attempted to send to the broker.",
	}
	consumedMessages = instrument{
		"messaging.client.consumed.messages", unitMessages,
		"Number of messages that were delivered to the application.",
	}

	queueDuration = instrument{
		"headrace.consumer.queue.duration", unitSeconds,
		"Time between the broker's storing of a message and the start of its processing.",
	}
	retryDelay = instrument{
		"headrace.consumer.retry.delay", unitSeconds,
		"Delay before a retry.",
	}
	redeliveries = instrument{
		"headrace.consumer.redeliveries", unitMessages,
		"Number of deliveries that the broker counts as the second or later of their message.",
	}
	duplicates = instrument{
		"headrace.consumer.duplicates", unitMessages,
		"Number of deliveries that had no effect because the inbox had seen their message.",
	}
	deadLetters = instrument{
		"headrace.consumer.dead_letters", unitMessages,
		"Number of dead letters confirmed stored.",
	}
	inFlight = instrument{
		"headrace.consumer.in_flight", unitMessages,
		"Number of deliveries being handled.",
	}
	waiting = instrument{
		"headrace.consumer.waiting", unitMessages,
		"Number of deliveries that wait for an earlier one of their key.",
	}
	oldestInFlight = instrument{
		"headrace.consumer.oldest_in_flight", unitSeconds,
		"Age of the oldest delivery being handled.",
	}
	lag = instrument{
		"headrace.consumer.lag", unitMessages,
		"Number of messages that the broker holds for the consumer and has not delivered.",
	}
	blocked = instrument{
		"headrace.consumer.blocked", unitMessages,
		"Number of deliveries held because their dead letter cannot be written.",
	}
	held = instrument{
		"headrace.consumer.held", unitMessages,
		"Number of deliveries that used up their retries while nothing else succeeds, or wait for the breaker.",
	}
	paused = instrument{
		"headrace.consumer.paused", unitPauses,
		"1 while the intake is paused, for whatever reason, else 0.",
	}
	oldestAge = instrument{
		"headrace.consumer.oldest_age", unitSeconds,
		"Time since the broker stored the oldest message that is held.",
	}
	retentionMargin = instrument{
		"headrace.consumer.retention_margin", unitSeconds,
		"Time until the broker may delete the oldest message that is held, unhandled.",
	}
	parkedKeys = instrument{
		"headrace.parked.keys", unitKeys,
		"Number of keys that are parked behind a dead letter.",
	}
	parkedMessages = instrument{
		"headrace.parked.messages", unitMessages,
		"Number of messages that are parked.",
	}
	deadLetterDepth = instrument{
		"headrace.dead_letters.depth", unitMessages,
		"Number of dead letters that nobody has dealt with.",
	}
	deadLetterOldest = instrument{
		"headrace.dead_letters.oldest", unitSeconds,
		"Age of the oldest dead letter that nobody has dealt with.",
	}
	deadLetterStored = instrument{
		"headrace.dead_letters.stored", unitMessages,
		"Number of dead letters in the store, by what has become of them.",
	}
	pauses = instrument{
		"headrace.consumer.pauses", unitPauses,
		"Number of times that the breaker paused the intake.",
	}
	outboxDepth = instrument{
		"headrace.outbox.depth", unitMessages,
		"Number of outbox rows that are not yet published, up to 100,000.",
	}
	outboxOldest = instrument{
		"headrace.outbox.oldest", unitSeconds,
		"Age of the oldest outbox row that is not yet published.",
	}
	outboxDead = instrument{
		"headrace.outbox.dead", unitMessages,
		"Number of outbox rows that were given up, up to 100,000.",
	}
	outboxDelayed = instrument{
		"headrace.outbox.delayed", unitMessages,
		"Number of outbox rows whose time has not come, up to 100,000.",
	}
	outboxBuckets = instrument{
		"headrace.outbox.buckets", unitBuckets,
		"Number of buckets that this relay holds by lease.",
	}
	outboxRelays = instrument{
		"headrace.outbox.relays", unitRelays,
		"Number of live relays that share the outbox.",
	}
	outboxLost = instrument{
		"headrace.outbox.leases_lost", unitBuckets,
		"Number of leases that ended while this relay took them for its own.",
	}
	outboxLatency = instrument{
		"headrace.outbox.publish.latency", unitSeconds,
		"Time between the adding of an outbox row and the confirmation of its publish, of the oldest row of each batch.",
	}
	inboxSize = instrument{
		"headrace.inbox.size", unitMessages,
		"Number of messages that the inbox remembers, estimated.",
	}
	inboxOldest = instrument{
		"headrace.inbox.oldest", unitSeconds,
		"Age of the oldest message that the inbox remembers.",
	}
	inboxMargin = instrument{
		"headrace.inbox.retention_margin", unitSeconds,
		"How far the inbox remembers beyond the oldest redelivery there can be; negative: one of that age takes effect again.",
	}
)

// durationBuckets are the boundaries that the conventions ask for, in seconds.
var durationBuckets = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// waitBuckets are for times that go up to hours: queues and retry delays, in seconds.
var waitBuckets = []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}

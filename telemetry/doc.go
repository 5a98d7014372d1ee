// Package telemetry makes OpenTelemetry spans and metrics of deliveries and publishes, and carries the
// trace context through message metadata. It is the only package with semantic-convention keys; all of
// them are in semconv.go.
//
// It judges no error: classify names it. It settles nothing and changes no verdict: a failing exporter,
// a bad traceparent or a missing SDK never makes a message fail.
//
// # Spans
//
//   - "process {topic}", CONSUMER: one per delivery ([Consumer.Middleware]), from the stage below the
//     intake until the message is settled. It is linked to the message's creation context and, unless
//     NoParent says otherwise, its child. The handler's context carries it.
//   - "attempt {topic}", INTERNAL: with [AttemptSpans], for deliveries that need more than one run.
//     By default failed runs are events of the process span.
//   - "send {topic}", PRODUCER: one per call of Publish ([Telemetry.Publisher]). CLIENT when every
//     message has a creation context already, which is then linked and never overwritten.
//
// An error that was retried is no error of the process span: only the last one sets its status and
// error.type. Shutdown and revocation are no error at all.
//
// # Metrics
//
// By the conventions: messaging.process.duration, messaging.client.consumed.messages,
// messaging.client.operation.duration, messaging.client.sent.messages. The first two have headrace.outcome
// beside error.type: the receipt ("handled", "committed", "duplicate", "stale", "ignored", "dropped",
// "dead_lettered", "parked"), or "delayed" (to come again later, as its error asked, whoever keeps it meanwhile),
// or "released" (no verdict: shutdown or revocation), or "failed".
//
// Of our own, where the conventions have none:
//
//	headrace.consumer.queue.duration    histogram, s              broker's time of storing to start of processing
//	headrace.consumer.retry.delay       histogram, s              delay before each retry; its count is the retries
//	headrace.consumer.redeliveries      counter, {message}        deliveries that the broker counts as second or later
//	headrace.consumer.duplicates        counter, {message}        deliveries that the inbox had seen
//	headrace.consumer.dead_letters      counter, {message}        dead letters confirmed stored
//	headrace.consumer.pauses            counter, {pause}          pauses of the intake by the breaker, by headrace.pause.cause
//	headrace.consumer.in_flight         updowncounter, {message}  held and being handled
//	headrace.consumer.waiting           updowncounter, {message}  held and waiting for their lane
//	headrace.consumer.blocked           updowncounter, {message}  held because their dead letter cannot be written
//	headrace.consumer.held              updowncounter, {message}  held with their retries used up, in an outage, or by the breaker
//	headrace.consumer.paused            gauge, {pause}            1 while the intake is paused, for whatever reason, else 0
//	headrace.consumer.oldest_in_flight  gauge, s                  age of the oldest delivery being handled
//	headrace.consumer.oldest_age        gauge, s                  time since the broker stored the oldest message that is held, where it is known
//	headrace.consumer.retention_margin  gauge, s                  time until the broker may delete that message, where it is known
//	headrace.consumer.lag               gauge, {message}          not yet delivered, where it is known
//	headrace.parked.keys                gauge, {key}              keys parked behind a dead letter
//	headrace.parked.messages            gauge, {message}          messages parked
//	headrace.dead_letters.depth         gauge, {message}          stored dead letters that nobody has dealt with
//	headrace.dead_letters.oldest        gauge, s                  age of the oldest of them
//	headrace.dead_letters.stored        gauge, {message}          all stored dead letters, by headrace.dead_letter.state
//	headrace.outbox.depth               gauge, {message}          rows not yet published, counted up to 100,000
//	headrace.outbox.oldest              gauge, s                  age of the oldest of them
//	headrace.outbox.dead                gauge, {message}          rows given up, up to 100,000
//	headrace.outbox.delayed             gauge, {message}          rows whose time has not come, up to 100,000
//	headrace.outbox.buckets             gauge, {bucket}           buckets that this relay holds by lease
//	headrace.outbox.relays              gauge, {relay}            live relays that share the outbox
//	headrace.outbox.leases_lost         counter, {bucket}         leases that ended while this relay took them for its own
//	headrace.outbox.publish.latency     histogram, s              adding of a row to its confirmed publish, the oldest of each batch
//	headrace.inbox.size                 gauge, {message}          messages remembered, estimated
//	headrace.inbox.oldest               gauge, s                  age of the oldest of them
//	headrace.inbox.retention_margin     gauge, s                  how far it remembers beyond the oldest redelivery; negative: too short
//
// Those of consumers, parked keys and dead letters have the consumer's attributes; those of outboxes and inboxes
// have headrace.outbox.name and headrace.inbox.name where a runtime has several, and publish.latency the topic.
//
// Partition ids and message ids are on spans only, never on metrics. The error types of one consumer or
// topic are bounded; what exceeds the bound is "_OTHER".
//
// # Cost
//
// With no-op providers a delivery without trace headers costs no allocation. Attributes and options
// are computed once; what only a recorded span needs is computed when the span is recording.
package telemetry

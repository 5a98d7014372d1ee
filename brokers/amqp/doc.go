// Package amqp is the adapter for RabbitMQ, by AMQP 0-9-1. It holds many deliveries un-acked, acks out of order, confirms each
// publish, counts deliveries, and delays single messages. It wants RabbitMQ 3.10 or later, for what quorum queues have since then.
//
// # Topology
//
// A topic is a durable fanout exchange of its name. A consumer is a quorum queue, "topic/consumer", which is bound to it: each
// consumer gets all, the subscribers of one consumer share. What is published while no queue is bound to a topic goes, by its alternate exchange,
// to the queue "topic/unrouted!", and from there to the consumers that register first, or to those of a subscription that finds it there. That
// queue also holds the messages of a dead-letter topic that nobody reads; an operator can look at them there.
//
// All of it is declared when it is needed, and again after a connection was lost, or a queue deleted. An exchange that is deleted takes its
// bindings with it, and no consumer is told: subscriptions bind their queues again each [Config.LagInterval]. What was published meanwhile goes
// to the consumers of the process that finds out first, in order, and to none of another's: nobody knows that those were bound.
//
// With [Check], the operator has made the exchanges, queues and bindings; the broker fails if one is missing and asks no more of them. So a
// queue can have a dead-letter exchange, a length or a time to live of its own, or be of another type; the headers that the server adds to
// what went through a dead-letter exchange (x-death, x-first-death-queue and so on) are in the metadata. A message that no queue gets is
// an error of Publish then: [ErrUnroutable].
//
// # Order
//
// A queue has a single active consumer: one subscriber gets all messages in order and the others wait until it goes, so that the
// runtime's lanes keep the order of each key over all processes. What is given back comes again before what has not been
// delivered yet, in order, also when the active one dies: the server takes back all that it had. What was delivered to a process that
// lost its connection can still be at work there while the next one has it: its context has ended.
//
// [Config.CompetingConsumers] lets all subscribers read at once, without order. For several active ones with order, declare an exchange of
// type x-consistent-hash (a plugin of RabbitMQ's), bind it to the topic's exchange, and queues to it, and give each of them to a
// consumer by [Config.QueueName] with [Check]. The routing key is the event's key.
//
// # Giving back
//
// A nacked delivery is held back un-acked, for longer each time, and then requeued; a released one shortly. The server counts, in
// x-delivery-count, and the count lasts through restarts. The queues have a delivery limit that is never reached: from RabbitMQ 4.0 on the
// default is 20, which drops messages; and before, what is requeued to a queue without a limit goes to its end.
//
// A delayed one goes through the queues "headrace.delay.0" to "headrace.delay.23", which all consumers of a virtual host share. Each
// keeps all its messages for the same time, 100 ms, 200 ms, 400 ms and so on, and a message visits those whose sum is its delay, rounded up by
// 200 ms at most. The server sends it on, at least once, and at the end to the consumer's queue alone. It is acked when it is
// confirmed there; if the connection is lost meanwhile it comes at once, or twice.
//
// # Patience
//
// RabbitMQ closes the channel of who holds a delivery for longer than its consumer_timeout, 30 minutes by default, and that cannot be prolonged:
// see [Config.Patience].
//
// # Wire format
//
// The body is the payload. The header "_watermill_message_uuid" is the id, as with Watermill's own adapter, and so is the property
// message-id up to 255 bytes; each other header is one metadata key with a string, with "h:" before it if it would be something else
// ("_watermill_message_uuid", "headrace-payload", "CC", "BCC", and what begins with "h:", "headrace-delay", or as the server's own
// headers do). The header "headrace-payload" is "nil" if the payload is nil, and not empty. The properties content-type and timestamp are set
// for others. A message that says it has no payload, and has one, is one with a DecodeError.
//
// Without that id a message is another program's: then its id is the property message-id, and the properties content-type and correlation-id
// are the metadata "content-type" and "correlation_id" if no header is; "cloudEvents:", "cloudEvents_" and "ce-" before a header's name are read
// as "ce_". Headers that are no strings are in the metadata as text, tables and arrays as JSON, and all headers are in Delivery.Headers as
// they were received: strings and byte arrays as their bytes, others as AMQP's field values, with the octet of their type.
package amqp

// Package sqs is the adapter for Amazon SQS, and for SNS topics that send to its queues. It holds many messages un-acked,
// acks and nacks out of order, prolongs what is held by heartbeat, and deletes in batches.
//
// # Topics and queues
//
// A topic is one queue, and has one consumer: SQS gives a message to one of those who receive, so the capabilities say
// that the broker does not fan out, and the runtime refuses a second consumer of a topic. With [Config.SNS] a topic is an SNS
// topic, each consumer has a queue of its own that is subscribed to it, and consumers of different names each get every
// message. SNS sends to the queues that are subscribed at the time of a publish: what was published before [Broker.Register],
// which the runtime calls first, does not come. A publisher that would send to several queues by
// itself was not built: it can fail between two of them, and would have to know the consumers of other programs.
//
// A queue has the name of its topic; with SNS, of the consumer and the topic. Bytes that a name cannot have become "-"; then,
// and where it is longer than 80 bytes, and always with SNS, a hash of the whole follows, so that different ones differ.
// Queues in FIFO mode end in ".fifo". [Config.QueueName] gives other names.
//
// # Receiving
//
// One receive brings at most ten messages. While receives are full, more are made at once, up to [Config.Pollers]; a quiet queue
// has one, a long poll. A receive is never broken off, but for one that does not answer at all: ElasticMQ gives
// messages to a receive whose connection is gone (20 of 20 in a trial), which hides them for the visibility timeout, and AWS
// promises nothing else. So a Close waits for the receive under way, at most [Config.WaitTime]. What is held is given back
// before that.
//
// Each receive counts against a queue's redrive policy, also that of a message that was released or that a process
// left behind. Subscribe refuses a policy that allows few, see [Config.MinReceives]. What a policy has moved here says
// from where in the metadata sqs_dead_letter_queue_source_arn, where SQS tells.
//
// # Holding
//
// Deliveries are prolonged when half of their visibility is over, ten with one call. A delivery that cannot be prolonged,
// since it was received again, its queue is gone, or the 12 hours are over, is lost: its context ends, which
// is no failure of its handler, and it comes again. A delete that the service has not taken is repeated, with its message
// still hidden and its place in the window still taken. A delete that comes too late has no effect; the message comes again.
//
// A nack hides the message for a time that doubles, whole seconds. A release shows it at once; the subscription
// then does not receive for a while, 250 ms and twice as long each time up to 20 s until something is acked, so that others get it.
//
// # Order
//
// Standard queues have none. In FIFO mode the message group is the key, so messages of one key come in the order of their
// publication. SQS gives some messages of a group, all in one receive, and no more of it until those are deleted or
// visible again. When one of them is nacked, released or lost, the later ones of its group that are held here are recalled:
// their contexts end, they are given back, and come again after it. Each of them then has one receive more. There
// is no Delivery.Delay: it would hold up the group. A message without a key is a group by itself.
//
// A batch can be taken in part. So Publish sends no two messages of a group in one batch, and the next only when the
// one before is stored: messages of many keys go ten at a time, those of one key one by one.
//
// A FIFO queue drops a message whose deduplication id it has seen within five minutes, and says that it is stored.
// With the message's id for it, a dead letter that is redriven twice, or a message that is dead-lettered, redriven and
// dead-lettered again, would be lost. So each message of each call of Publish has a new one, which only lets the repeats of
// that call be dropped. Repeats by a relay are what the inbox is for. [Config.DeduplicationID] gives others.
//
// # Wire format
//
// The body is the payload, if that is text as SQS takes it (the characters of XML 1.0, at least one). The message attribute
// "_watermill_message_uuid" is the id, and each metadata key an attribute of its own, all of type String. What does not fit
// is in the attribute "headrace_wire", encoded as an HTML form: "body", which is "base64", "empty" or "nil" where the body
// is not the payload; "uuid", an id that is empty or no text; and "m." with a key for metadata that cannot be an attribute,
// by its name or value, or since SQS takes ten; the ce_ attributes are the last to go there. Everything arrives as it was sent.
//
// A message of another program has its attributes as metadata, and the id that SQS gave it if it has none. If it has no
// attributes and is a complete SNS notification, it is unwrapped, see [Config.Envelope]; its id is then that of the
// notification, the same in all queues. A CloudEvent in structured mode is the runtime's to decode.
//
// A message with its attributes has at most [Config.MaxMessageBytes]; a larger one is a [TooLargeError]. Leave room: a dead
// letter is its message and up to an eighth of that more, and bytes that are no text take a third more.
package sqs

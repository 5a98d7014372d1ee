// Package event owns the envelope of a message: CloudEvents 1.0 in binary and structured mode and plain
// payloads, message ids, correlation and causation, codecs and upcasters. It knows no broker and no
// runtime, keeps no state, starts nothing, and never changes a message that it reads.
//
// Reading goes in three steps, each only as far as it is asked for: [TypeOf] finds the type for routing
// and allocates nothing, [Parse] reads the whole [Envelope], [Decode] turns the data into a Go value.
// Whatever is wrong with a message is an [*Error], which names the field and is permanent to classify: a
// message that is malformed today is malformed tomorrow. The raw bytes stay in [Envelope.Data].
//
// Writing is [New]. Inside a handler it takes source, correlation and causation from the delivery and
// derives the id, so that a retry publishes the same ids.
//
// # Which metadata counts
//
// The envelope is read from message.Metadata alone. Where a header came more than once, the adapter has put
// the one into Metadata that its broker's own clients would take: Kafka's the last, NATS's the first.
// brokers.Delivery.Headers holds all of them for the dead letter and is not looked at here.
//
// The rules of CloudEvents are applied so that what is read has one meaning only. An empty optional
// attribute counts as absent. An unknown attribute is an extension. A URI is not checked beyond its
// characters when it is read; [New] does check what it writes.
package event

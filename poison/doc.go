// Package poison stores the deliveries that cannot be handled: as dead letters, on a topic of their own,
// confirmed before the delivery may be acked. It owns the dead letter's form ([Record]) and the stage that
// writes it ([Poison]). It judges nothing: classify does, and middleware.Retry gives up. It knows no
// broker: a dead letter goes through any Watermill publisher.
//
// # When
//
// A delivery is dead-lettered if its error's verdict is Poison, or if Retry gave up on it for any reason but
// Drop. It is never dead-lettered because its context ended, nor for a Stop.
//
// # What
//
// A dead letter is a new message with the original's payload, byte for byte (a nil one stays nil), its
// metadata, and what happened in metadata keys that begin with headrace_dlt_: see the constants. Such
// keys of an earlier life are replaced. Its UUID is made from the consumer and the message's id, so that a
// second copy, written because the process died before the ack, is recognised; it differs when the message
// was redriven and failed again. The dead letter and the ack are not one transaction.
//
// Metadata is bounded by Config.MaxHeaderBytes. The stack is cut first, then the error's text. If the
// original's own metadata is too large, the whole of it goes into the body of an enveloped dead letter
// (content type [EnvelopeType], marked by [MetaEncoding]), where nothing is cut. [Parse] reads both.
// Where even that is more than the broker can store, Config.Refer allows a reference to the original.
//
// # When it cannot be written
//
// Then the delivery is held, and its lane with it, and written again with a backoff until it is stored or
// the message's context ends; then it is left unacked. Nothing is dropped. [Poison.Blocked] and
// [Poison.Stats] say so for health and metrics.
package poison

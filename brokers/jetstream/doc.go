// Package jetstream is the adapter for NATS JetStream, on nats.go. It takes many deliveries un-acked at once, keeps
// them alive by heartbeat for as long as they are held, and gives them back when its subscription ends.
// It does not judge messages: whatever is in a stream arrives.
//
// The server can be a cluster ([Config.URL]), a connection of the application ([Config.Conn]), or a server in
// this process ([Config.Server], see the sub-package embedded, which only its users compile).
//
// # Names
//
// A topic is a subject: letters, digits and other printable characters in tokens separated by dots
// ("github.webhooks", "orders.DLT"). Topics with spaces, wildcards (* and >), empty tokens, or a first
// character of $ or _ are refused. A topic that some stream holds already, alone or with other subjects, is read
// from that stream. For others a stream is made whose name is the topic with _ for each character that a
// stream's name cannot have (. / \). Two topics that get one name that way ("a.b" and "a_b") are refused, not mixed.
//
// A consumer's durable has the consumer's name, written likewise, or "name-topic" if the stream
// holds more than the topic. It carries the consumer's true name in its metadata, and a durable of another
// name is refused.
//
// # Order
//
// A stream is one sequence and is delivered in order. JetStream sends a nacked message again when its delay is over,
// after whatever was sent meanwhile; with a window of one un-acked delivery nothing else is. A
// subscription that ends gives back what it holds in order. After a crash, a subscription that finds no other
// member of its consumer alive takes over first what the dead one held, in order, and only then reads on; Subscribe takes
// half a second then. Of those that start together one does so and the others wait for it, at most 3 s. With
// [Config.CheckOnly] the durable cannot be changed for that: the subscription keeps newer messages
// back until the old ones have come, which is after AckWait, and at most 1 s longer. Members that run at the same
// time share one durable, without order between them.
//
// # Delay
//
// A delivery can be delayed by itself (brokers.Delivery.Delay). The server counts it as un-acked meanwhile: with as
// many delayed as the window, or [Config.MaxAckPending], is large, nothing else comes. A member that takes over
// after a crash may get it before its time.
//
// # On the wire
//
// CloudEvents attributes follow the CloudEvents NATS binding: metadata ce_x is the header ce-x, percent-encoded;
// content-type is ce-datacontenttype for an event in binary mode and content-type otherwise. The UUID is
// Watermill's own header _watermill_message_uuid. Other metadata are headers of the same name. An entry that a header
// cannot hold, or that would mean something to NATS or to this adapter (Nats-Rollup empties a stream), is a
// value "key=value", both percent-encoded, of the header headrace-meta. A nil payload is marked with the
// header headrace-payload: nil, and a UUID that a header cannot hold is percent-encoded in headrace-uuid.
//
// The UUID is not the Nats-Msg-Id unless [Config.MsgID] says so: the server drops a second message with one id within
// minutes, which loses a dead letter that fails again after a redrive.
package jetstream

// Package pulsar is the adapter for Apache Pulsar, on pulsar-client-go. It holds many deliveries un-acked, acks single messages, confirms
// each publish, keeps the order of keys over all processes, and delays single messages. It was tested with Pulsar 4.0.
//
// # Topics and subscriptions
//
// A topic is a topic, of namespace public/default unless its name says another; the server makes it when it is used, if it is allowed to. A
// consumer is a durable subscription of its name, of type Key_Shared, on each partition. It begins with the oldest message that
// there is. Pulsar keeps what some subscription has not acked. What is published while a topic has no subscription is kept as the
// namespace's retention policy says: by default not for long, and a server deletes a topic that nobody uses. So give namespaces with
// dead-letter topics a retention, and tell it to [Config.Retention]; or register a consumer that keeps them, see [Broker.Register].
//
// # Order
//
// The server gives each key to one member at a time, in order, and to another only when the first has settled what it has of it, or
// is gone. Messages of other keys go ahead. Messages without a key have no order; the server spreads them. A nacked message
// comes again here after its delay, before what is new; what was handed over of its key meanwhile is not recalled. With a window
// of one nothing overtakes it.
//
// With [Config.Batched] the publisher makes batches of one key each. Batches of programs that mix keys go where the key of their first message goes, and have
// no order of keys over several members: such programs need the client's batcher by key, or no batches.
//
// # Holding and giving back
//
// The server waits for acks without end, while the connection lasts. The client's queue has as many messages as the window, which are un-acked
// at the server as well but not handed over. A released message goes back to the server, which gives it to the member that has its
// key now; so it comes to another only if the key has moved or this subscription ends. What a member has when it ends comes first, in
// order, to those that take over.
//
// The server knows acks and redeliveries of whole entries only. So a batch, of another program or with [Config.Batched], goes back when nothing
// of it is at work here, and what was acked of it is not handed over again, by this member. After the end of the member it is: all of a
// batch comes again that was not acked completely. Acks of parts of a batch are not sent, whatever the server allows: with them, the client
// (v0.19.0) takes more from the server than its queue holds when such a batch comes again, and stops reading from the connection.
//
// When a connection is lost, or the server moves a topic, the server gives to others what the member had: the contexts of all that is
// held end, and what is acked nonetheless is not handed over if it comes here once more. The subscription goes on when the client has
// connected again. It does not if the topic was deleted and the server makes none by itself: the client gives up then and tells nobody, and
// this adapter logs an error each minute.
//
// The server counts redeliveries, and forgets the counts when the last member leaves, as does a server that restarts. So Delivery.Count is
// not set.
//
// # Delays
//
// A delayed message is sent, with Pulsar's delayed delivery, to a topic of the consumer's own, see [Config.DelayTopic], and acked; all members
// of the consumer read it too. It comes as what it was, with its first position and time. The server sends it up to its
// delayedDeliveryTickTimeMillis early, and it waits here for the rest, as it does for all of its time if it could not be stored there; if the
// connection is lost meanwhile, the latter comes at once. Messages of its key that come meanwhile overtake it, and the order of
// delayed messages is that of their times. Delayed delivery works for shared subscriptions only: a program that reads the topic with a
// failover or exclusive one gets everything at once.
//
// # Dead letters of other clients
//
// What a client's dead-letter policy has moved here is a message of its own. Where it was is in the metadata, as the clients write it: REAL_TOPIC,
// ORIGIN_MESSAGE_ID and ORIGIN_MESSAGE_IDY_TIME, RECONSUMETIMES and DELAY_TIME for one that was tried again by them, REAL_SUBSCRIPTION by Java.
//
// # Positions
//
// Delivery.Partition is the partition's index, 0 for a topic without partitions. Delivery.Offset is the number of the ledger, 24 bits for that of
// the entry and 10 for the index in its batch; it is -1 for what does not fit: a ledger from 536,870,912 on, an entry from 16,777,216 on,
// an index from 1,024 on. Such a message has no id by its position.
//
// # Wire format
//
// The payload is the payload, the partition key the event's key; a key that is no UTF-8 is the ordering key, and the partition key is its
// standard Base64 encoding. The property "_watermill_message_uuid" is the id, each other property one metadata key. What does not fit into
// text, or would be something else (an empty name, "_watermill_message_uuid", and what begins with "headrace-"), is in the property
// "headrace-wire", encoded as an HTML form: "uuid", "m." with a key, and "payload" with "nil" if the payload is nil, and not
// empty. Everything arrives as it was sent. A message whose form is none of ours, or that says it has no payload, and has one, is one
// with a DecodeError, as is one that is encrypted and cannot be decrypted.
//
// The client sets no flag that a key is bytes, and does not tell it: of a key that Java's keyBytes has set its Base64 form is read. A
// message of another program has its properties as metadata and no id.
//
// # Limits
//
// Pulsar 4.0.7 can stop delivering to a key-shared subscription (it looks like apache/pulsar#23845) until the next message of the topic is
// published. All of its consumers have permits, nothing is un-acked, no hash is draining, what is left is in msgInReplay, and the cursor has
// subscriptionHavePendingRead without subscriptionHavePendingReplayRead: nobody here holds anything that could be settled, and no command of the
// client has the server look again. It wants members whose windows are small beside what waits: it was seen in 1 of 40 runs of two members with
// windows of 4, 60 messages and a single key, in 1 of some 330 runs of fifty members with windows of one, in none of 150 with two windows of 64, and in none of 30
// with fifty of 100. The older dispatcher (subscriptionKeySharedUseClassicPersistentImplementation) is no way out: there it was 25 of some 60 runs. So
// let the window of a member be large where several share a consumer's name.
//
// Of several properties of one name the client tells one.
//
// What arrives broken is the client's to judge: it acks, by itself, entries that fail their checksum, cannot be decompressed or taken
// apart, and a message that was sent without a batch, without properties and without a payload. This adapter does not get to see them.
package pulsar

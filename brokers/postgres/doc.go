// Package postgres is a message broker in a PostgreSQL database: topics, consumer groups, order per key, redelivery.
// A service that has only Postgres needs no other broker, and its events commit in the transaction of their cause
// ([Broker.PublisherTx]), so that it needs no outbox and no relay either. It does not judge messages: whatever
// is in the tables arrives.
//
// # Consumers
//
// A message that is published becomes one row for each consumer of its topic, and the consumer's ack deletes
// it. A consumer is registered for good by its first subscription or by [Broker.Register], and from then on gets all messages,
// also while it does not run; so one that is given up must be unregistered ([Broker.Unregister]).
//
// What is published to a topic without consumers is kept, and the first consumer gets all of it. A consumer that comes later
// gets what is published after it was registered: acked messages are gone, there is no replay. Where several consumers shall all
// have a topic's first messages, name them in one call of Register before, in a migration say. [Config.MaxBacklog] bounds what is
// kept for a consumer, or for nobody yet: Publish then fails, and nothing is dropped.
//
// # Order
//
// Messages of one key are delivered in the order of their commits, in all processes together. A key is in one of
// 64 buckets (outbox.BucketOf), and each bucket of a consumer belongs to one subscription at a time, by a lease with an epoch; the
// subscriptions of a consumer share the buckets evenly, up to 64 of them. Transactions that publish with the same key
// at the same time have no order between them, unless the caller serialises them, see [Broker.PublisherTx]. Messages
// without a key have none, nor have delayed ones ([WithAvailableAt]).
//
// A subscription takes up to its window of deliveries without waiting for acks, so it is the runtime's intake, or a
// window of 1, that keeps a key's order in the handlers. A nacked or released message comes again after a delay, and later
// messages of its key, as far as they were not delivered, come after it. Half of the window is kept for the buckets evenly: a key whose
// handler is stuck does not take all of it.
//
// # Failures
//
// When a process dies or hangs, others take its buckets after [Config.LeaseTTL] and deliver again what it had not acked. A
// process that was only stopped for so long finds out by its own clock, ends the contexts of its deliveries, and
// whatever it acks deletes nothing, for its epochs are over. When a subscription ends in order, others go on at once.
// While the database cannot be reached, subscriptions wait and go on by themselves; an ack that could not be stored until the lease
// was taken by another one is a redelivery. All of it is at least once: the inbox makes it once.
//
// Delivery.Count counts the deliveries that were given back, by nack, release or the end of a subscription, and this one. One that ended with
// its process is not counted.
//
// # Cost
//
// Rows are inserted and deleted, never updated. Ids are no cursor: a row that is committed late is delivered late, and not
// lost, and neither a long transaction nor an old snapshot of somebody else delays or slows the reading. Deletes are
// batched, one statement at a time for each subscription. NOTIFY is sent in transactions of its own, at most every
// 10 ms, because one in a business transaction would serialise all commits; polling, every 25 ms after messages came and
// less and less often down to once a second, finds what no notification told of. Through a pooler that shares
// sessions LISTEN does not work: set [Config.NoNotify].
//
// # Tables
//
// They are version 8 of stores/schema, see [Broker.Migrate]; a store's Migrate on the same schema makes them as well. Other programs may insert
// into headrace_broker_message: one row for each row of headrace_broker_group with the topic, and any bucket from 0 to 63 as long as it is
// the same for the same key. Metadata that cannot be decoded arrive as the header "metadata" of the delivery, with its DecodeError.
package postgres

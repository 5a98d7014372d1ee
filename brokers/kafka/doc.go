// Package kafka is the adapter for Apache Kafka, on franz-go. It hands out thousands of records un-acked at once,
// commits only what is complete, and lets go of a partition without losing or reordering anything.
// It judges no message: whatever is in a topic arrives, as the bytes that were stored.
//
// # Order and budgets
//
// Records of a partition are handed over in the order of their offsets, but for one case: when a key has
// [Config.KeyBudget] deliveries un-acked, its further records wait and those of other keys go ahead, up to
// [Config.BufferRecords] records. So the order of a key, a tombstone's too, is always that of the topic; and a hot or a stuck key
// stalls its own partition at most. With brokers.Subscription.OwnKeys a partition is one key: nothing goes ahead. Half of the window is divided over the partitions that a subscription
// owns and kept for each; the other half goes to whoever asks first.
//
// The runtime takes messages by calls (brokers.Puller) and tells of what it has settled: the goroutine that has handled one message
// goes on with the next, and no other takes part. A stock router reads a channel, and its acks are found by looking.
//
// A delivery that is nacked or released comes again to the same subscription after a pause. Nothing of its key
// is handed over meanwhile, but what was handed over before may overtake it.
//
// # Commits
//
// A commit is next-to-read: the last offset up to which everything is acked, plus one. It never passes a record
// that is not acked, never exceeds the last acked one plus one, and never goes back. What is acked beyond the
// first gap goes into the commit's metadata, in a format of our own of at most 4,096 bytes, with leader epochs, so that the
// next owner does not run it again. The distance from the committed to the highest record that was handed over
// is bounded by [Config.MaxSpan].
//
// # Rebalance
//
// When the group takes a partition away, nothing more of it is handed over. Handlers get [Config.RevokeWait] to
// finish; what they acked is committed. The contexts of the others end with the cause [ErrRevoked], and
// what becomes of them is not told to the broker: the next owner gets these records. If the partition comes back to
// this process, the records of a key wait until the old deliveries of that key are settled or
// released. A partition that was lost (the member was expelled) is the same without the wait and the commit; the
// cause is [ErrLost]. Both are no failures of a handler. Fetching and heartbeats go on all the time.
//
// With kgo.ServerSideBalancer (KIP-848) on Kafka before 4.3 the last commit of a partition that moves can be refused, and
// the next owner repeats what it would have held.
//
// A process that was frozen for longer than the session timeout can finish handlers whose partitions another process
// has by then. No consumer of Kafka can prevent that; the inbox makes it one effect.
//
// # Topics that are made anew
//
// A topic that was deleted, or deleted and made anew, under a subscription ends it, with an error in the log: the client reads the
// first one only. A pattern goes on where a topic was deleted for good. A publisher goes on after it has failed once or twice.
//
// # On the wire
//
// Metadata are record headers of the same name, which is CloudEvents' Kafka binding for the ce_ keys. The UUID is the
// header _watermill_message_uuid, as watermill-kafka writes it. The record's key is the
// event's (event.KeyOf), else none; see [Config.Key], [WithKey] and [WithHeaders]. A nil payload is a
// tombstone. Of headers with one name the last is the metadata; Delivery.Headers then has them all.
//
// Transactions are not offered: they end at Kafka's border, and an inbox does what they do for any effect. Records
// of aborted transactions are not read.
package kafka

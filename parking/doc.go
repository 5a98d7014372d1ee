// Package parking keeps the order of a key whose message failed for good: the message and all later ones of its
// key are parked in the inbox database, in order, until an operator has fixed the cause and releases the key.
// Other keys are not touched. It owns the protocol, the contract with the databases ([Ledger], which stores/*
// implement), and the source of what was released ([Source]).
//
// It refuses to decide that a message has failed: package poison does. It parks nothing without a key or an
// id, and nothing of a consumer whose effects are not in an inbox database: without that transaction neither
// order nor exactly one effect could be kept.
//
// # The protocol
//
// A key has a row for as long as messages of it are parked, and whoever adds, runs or removes one locks that
// row until the end of the transaction.
//
//   - Live: in the transaction of the inbox, after the claim, lock the key's row. If there is one, the message is
//     appended behind the others instead of being handled. If there is none, it is handled.
//   - Park: a message that failed for good is claimed; the row is made, unless it is there; the message is
//     appended. Its dead letter was stored before that. So if the process dies in between, the message
//     is handled again, and a dead letter that says the same is recognised by its id.
//   - Drain, of a released key, in any replica: lock the row; then, in a statement that began after that, take
//     the first message; handle it and delete it in the same transaction, and the row with the last one.
//
// A live message that waits for the row while the last one is drained finds no row and is handled after it. One
// that was appended while a drainer waited is counted in the row, which the drainer reads under its lock. Without
// the lock such a message would be left without a row, and lost. The explorer in model_test.go walks through
// every interleaving of two consumers, two drainers, an operator, crashes and a lost partition, and finds a
// violation in each variant without the lock.
//
// A released message that fails again stays the first, and its key is parked again. Claims keep redeliveries and
// redrives of parked messages from having an effect; see [Redrive] for what a redrive has to do instead. The
// transaction of the drain makes the message's claim anew, so that the inbox remembers it from its effect on, however long it
// was parked.
//
// # Use
//
// runtime does all of it for a consumer with ConsumerConfig.Park. On a router of your own: give the store that
// [Wrap] returns to inbox.Handler, the Parker's Park to poison.Config, its Middleware to the router between
// poison and retry, and subscribe a [Source] as a second handler with the same middleware.
//
// # Bounds
//
// A key holds at most Policy.MaxPerKey messages and a consumer MaxMessages. What comes beyond that is held,
// un-acked, and with it its lane, until there is room or its key was released: see [Hold] and [DeadLetter].
package parking

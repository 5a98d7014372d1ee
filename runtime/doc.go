// Package runtime puts the stages together: it assembles a stock Watermill router and the middleware of
// this module in the one right order, and owns start, drain and stop.
//
//	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker})
//	orders := rt.Consumer("billing.orders", "orders")
//	runtime.Handle(orders, "order.placed", notifyWarehouse)        // func(ctx, OrderPlaced) error
//	runtime.HandleTx(orders, "order.cancelled", store, refund)     // func(ctx, pgx.Tx, OrderCancelled) error
//	err = rt.Run(ctx)                                              // blocks; drains when ctx ends
//
// A message passes, outermost first: intake (package ordering), trace and metrics (telemetry),
// correlation (middleware), the broker's hard limit, settle (here), dead letters (poison), retry and breaker (middleware); then for
// each attempt: the crash ledger, if there is one, recovery of panics, the check for a receipt, the user's own middleware, the time limit, decoding (event),
// the inbox, and the handler.
//
// # Guarantees
//
//   - A delivery is acked only when its effect is committed, its dead letter is confirmed stored, a plain
//     handler returned nil, its type is ignored by policy, or its error is classified as Drop.
//   - Deliveries of equal keys run one at a time, in order of arrival, retries and dead letters included.
//   - With [HandleTx] a message takes effect once, however often it is delivered, for as long as the inbox
//     remembers it ([Config].InboxRetention).
//   - An outage of what the handlers depend on empties nothing into the dead letters: an exhausted failure that may
//     pass is one only if another key has succeeded since.
//   - Shutdown is never a failure: nothing is dead-lettered and no attempt is counted because of it.
//
// # Not guaranteed
//
//   - [Handle] is at-least-once. Its handler gets the message's id (event.MessageID) for a key of its own.
//   - There is no order between keys, and none between processes beyond what the broker gives.
//   - A dependency that fails for some messages and works for others at the same time (a disk that is nearly
//     full) is not told from bad messages: what succeeds vouches against what fails. Raise
//     Retry.MaxAttempts and MaxElapsed where that can last. See middleware.Breaker.
//
// It knows no broker and no database driver: a program compiles only those it imports.
package runtime

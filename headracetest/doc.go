// Package headracetest tests an application's handlers: it runs the application's own wiring on a broker in memory, does to
// it what happens in production, and tells in words which guarantee does not hold.
//
//	func TestTransfers(t *testing.T) {
//		store := sqlitetest.Open(t, tables)
//		headracetest.Consumer(t, headracetest.Spec{
//			Service: func(b brokers.Broker) (*runtime.Runtime, error) { return service(b, store) },
//			Topic:   "transfers",
//			Event: func(ctx context.Context, key string, n int) (*message.Message, error) {
//				return event.New(ctx, "transfer.requested", TransferRequested{From: key, Cents: 100}, event.WithKey(key))
//			},
//			State:  func(ctx context.Context, key string) (string, error) { return balance(ctx, store, key) },
//			Outbox: store.Outbox(),
//		})
//	}
//
// [Consumer] checks the standard set: see [Guarantee]. [Run] plays one scenario and returns what came of it, for tests of your
// own: given these events, delivered twice, in two processes at once, killed on the way, with this error on attempt n.
//
// Nothing is imitated but the broker and the end of the process. The handlers, middleware, decoders, retries, inbox and outbox are
// the application's, on its own database: SQLite in memory (headracetest/sqlitetest), or any other that it has. A kill cuts the
// process off its broker, cancels its handlers, rolls back what was not committed, and goes on in a new runtime that Spec.Service makes.
// What the application keeps in the test's own process beyond that survives. Waits between attempts are cut to a
// millisecond; what the handlers themselves wait for is not.
//
// The sub-packages are for others: brokertest, readersuite, inboxsuite, outboxsuite, deadlettersuite, parkingsuite and
// ledgersuite hold the conformance tests that those run who write an adapter for a broker or a store for a database.
package headracetest

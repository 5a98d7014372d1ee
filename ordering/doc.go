// Package ordering decides which delivery may run, and when: a lane per key in order of arrival, a
// bounded window of deliveries that are held, pause, and drain.
//
// It owns two things. An [Intake] stands between a Watermill subscriber and a Watermill router, and
// settles what comes back. A [Tracker] finds the offset that a partition may be committed up to.
//
// It refuses to judge errors, to retry and to log per message: an error that reaches the intake is a
// nack, and a message that was nacked has lost its place in its lane. Retry inside of the intake's
// middleware if order must survive a failure.
//
// # A pair
//
// The intake is a subscriber decorator and a middleware, and works only as both:
//
//	intake, err := ordering.New(ordering.Config{Consumer: "billing.orders"})
//	...
//	router.AddSubscriberDecorators(intake.Decorate) // the last decorator
//	router.AddMiddleware(intake.Middleware)         // the first middleware
//
// The decorator takes the lane before the router starts a goroutine, since goroutines do not keep an
// order; the return of the middleware gives it back. The router and the handlers get a view of the
// message, whose Ack and Nack have no effect on the broker.
//
// # Lanes
//
// A lane is a topic, a partition where the broker has any, and a key; at most one of its deliveries
// runs at once, over all subscriptions of the intake. Deliveries without a key share the lane of their
// partition; on a broker without partitions nothing orders them, and each runs as soon as it can.
// A handler that never returns keeps its lane for ever, and [Intake.Drain] names it.
package ordering

// Package middleware owns the stages that stand around a handler: [Retry], [Timeout], [Recover] and
// [Correlation]; and the [Breaker], which Retry asks whether there is an outage. Each stage is a plain Watermill
// message.HandlerMiddleware that works by itself on any router; the runtime puts them together with the others in
// the one right order.
//
// It judges no error: classify does. It stores nothing and acks nothing: a stage tells its outcome by the
// error that it returns ([Recover] says what it does where nobody is left to return to). It starts no
// goroutine; an open Breaker has a timer.
//
// # Order on a plain router
//
// The first that is added is the outermost:
//
//	router.AddMiddleware(
//		middleware.Recover(),               // guards the stages below, and makes Goexit an error
//		middleware.Correlation(...),
//		deadLetters.Middleware,            // poison.Poison
//		retry,                             // middleware.Retry
//		middleware.Recover(),               // a panic of an attempt becomes its error
//		middleware.Timeout(30*time.Second), // per attempt
//	)
//
// # What ends with the message
//
// A message whose own context ends (shutdown, the delivery was taken away) has not failed: Retry returns
// its error marked by classify.Stop, counts no attempt, and nobody dead-letters it. A context that a stage
// further in made, as Timeout does, is the attempt's alone.
package middleware

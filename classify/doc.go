// Package classify judges errors: from an error it gives a [Verdict], which tells the runtime what to do
// with the message, and a short name for telemetry, which comes from a bounded set.
//
// It owns the marks that a handler puts on an error ([Permanent], [Transient], [RetryAfter], [Drop],
// [Stop]), the rules that judge the errors that bear no mark ([Standard], and an application's own), and
// the way in which the parts of a wrapped or joined error are weighed. It acts on nothing: it has no clock,
// does no I/O, writes no log, keeps no state, and knows no other package of Headrace and no driver.
// Errors of databases and of RPC systems are known by their methods, see [Standard].
//
// # How an error is judged
//
// The tree of an error (Unwrap() error, Unwrap() []error) is walked from the outside.
//
//   - A mark decides for everything that it wraps, whatever is below it and whatever a rule says. Of two
//     marks the outer one decides.
//   - Else the application's rules are asked in order, then [Standard], then the rules of
//     [Classifier.Fallback]; the first that answers decides.
//   - The branches of a joined error are judged one by one and the worst verdict wins:
//     Stop > Poison > RetryAfter > Retry > Drop. Of two RetryAfter the longer delay wins. A branch that
//     nothing knows counts as Retry, so a Drop never takes an unknown error along.
//   - Rules of the application are also asked about a joined error as a whole, unless there is a mark in it;
//     their answer counts as that of one more branch. Those of Fallback are asked so only if no branch is known.
//   - An error that nothing knows is retried.
//
// So wrapping by %w never changes a verdict, and joining never makes one weaker.
//
// # What can go wrong
//
// [Classifier.Classify] never panics and always ends. A method of an error or a rule that panics counts as
// having said nothing. A typed nil inside a non-nil error is an error like any other. The walk looks at no
// more than 1,000 errors and goes no deeper than 100; a chain that leads back to itself ends there, and what
// lies beyond counts as unknown, and no rule is asked about the whole, as errors.Is might not end.
package classify

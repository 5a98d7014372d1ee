// Command chaos runs the same system on several brokers side by side, troubles all of it at once for a time, and judges what is left:
// nothing lost, no effect doubled, each key in order, and dead letters of exactly what cannot be handled.
//
//	go run ./integration/chaos [-duration 3m] [-seed N] [-brokers kafka,redis-one,...] [-actions kill,freeze-relay] [-cluster] [-plan] [-keep]
//
// Each broker has a pipeline of processes, which are copies of this program. Redis and NATS have two, with several members, of whom no order is
// asked, and with one, whose order must hold through crashes:
//
//	producer    changes rows and adds events to the outbox, in one transaction
//	relays      publish them from the outbox to the broker, in order per key
//	consumers   the full runtime with its defaults: HandleTx on Postgres, and a consumer of the dead letters
//
// All pipelines share one Postgres and have a schema each. The servers are the run's own, started by integration/servers. Processes reach
// them through TCP proxies in the controlling process, see package proxy; those to one pipeline fail by themselves.
//
// # What happens
//
// A plan is drawn from the seed: for each pipeline, and for what all share, a sequence of actions with time to recover between
// two. It is the same whenever seed, duration, brokers and actions are. The processes' interleaving is the machine's, so a seed repeats
// the plan of a run and not the run; where an action takes longer than planned, those that follow come later.
//
// Leases are kept in Postgres and compared with its clock alone, and a process measures its own part of a lease with a monotonic clock that no
// setting of the time moves. So the clock that can jump is the database's: the processes' search path has a
// clock_timestamp() of ours before the system's, see schema.go. What a monotonic clock can do, stand still, SIGSTOP does.
//
// # The verdict
//
// When the plan is done everything is healed, the producers stop, and each event must have its outcome and the outbox be empty, for as long as there
// is progress. Then all processes are stopped in order; they must exit with 0 within their drain limit. The tables are judged by SQL, and by package history
// together with what the consumers wrote: effects with the times at which the server committed them, attempts, skips, dead
// letters, and acks. The exit code is 1 if a promise was broken.
//
// -sabotage breaks the consumers on purpose, to see the verdict fail.
package main

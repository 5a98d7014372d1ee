// Package ledger finds the message whose handling kills the process: out of memory, os.Exit, a fatal signal, a
// panic in a goroutine that nobody can recover. It owns the record of starts and the judgement over them; the
// databases are in stores/*, and ledger/file is a directory for services without one.
//
// # The protocol
//
// Each process registers a run: a lease that a heartbeat prolongs, removed by a clean stop. As long as every run
// of the service ends cleanly, nothing is written for a message.
//
// A run that is found without a clean stop, its lease run out or its instance name taken by a later one, has
// died. From then on, within a horizon, the start of each attempt is committed before the handler runs and
// removed when it returns, at full concurrency. Starts that a dead run leaves behind name exactly the attempts
// that it died with: these messages are suspects.
//
// A suspect runs alone: it waits until all other attempts of the process have ended, every other attempt waits
// for it, and its start is committed as one that was alone. If it succeeds it is cleared. If the process dies,
// that death is its own: nothing else ran. After two such deaths it is not started again; its attempt fails
// with a [*CrashLoopError] that is permanent, and the dead-letter stage does the rest.
//
// # What that costs, and bounds
//
// The normal path is an atomic load of the state and two additions to a counter, which tells what runs when a
// suspect wants to be alone.
//
// A killer among n attempts in flight is started at most four times by one process, whatever n is: once without
// the ledger, once recorded, twice alone. With replicas, each one that has not yet heard of the first death
// (heartbeats are TTL/3 apart) may be killed once more, so five for two replicas. Every death while the
// process has announced that it stops is one more, since it does not count. This holds when the message is
// delivered again within the horizon; each unclean end that had nothing recorded doubles the next one.
//
// Deaths that are not the message's: a process that announced its stop (Run drains, a deploy) counts none. A kill
// from outside (kill -9, a lost node, memory that the rest of the process uses) convicts nobody while messages
// run side by side, however often it happens. To convict an innocent message it has to be in flight in
// a process that dies after another one had died, and then two more kills have to hit the very time in which
// this one message runs alone. With a mean time of T between kills and a handler that takes d that is a chance
// of about (d/T)² for each suspect: one in a million for 100 ms and a kill every 100 s. Such a message is not
// lost: its dead letter names the starts, and it can be redriven. A process that loses its database for longer
// than TTL is taken for dead; it takes back what was counted when it returns.
//
// # What it does not see
//
// Alone means alone among the attempts that go through one Ledger: use one in a process. A goroutine that a
// handler leaves behind can kill the process after its message was done. Code outside of the attempts (key and id
// functions, relays, servers) is nobody's start. A handler that waits for another message of the same
// process to be handled cannot succeed while it is alone.
//
// # Without history
//
// Where a service has no ledger yet, there is nothing that tells of deaths before. Then, for the first
// horizon, a message that the broker has delivered three times or more is taken for a suspect: it runs alone, and
// that is all, for brokers count deploys and lost connections too. Only deaths while alone convict.
//
// # When the ledger's database is away
//
// Nothing waits for it beyond one timeout. The ledger is off then: messages run unrecorded, known suspects run alone
// but uncounted. It says so once in the log, and in [Ledger.Stats], and comes back by itself.
package ledger

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
// A message that another process has, as far as is known, waits until that one has returned it or is taken for
// dead, at most twice the TTL; it does not begin a second time beside it.
//
// What is known of a message is removed some time after its dead letter was stored ([Ledger.Forget]), since the ack
// can still be lost and the message come back. A message that is redriven is another one to the ledger.
//
// # Costs
//
// The normal path is an atomic load of the state and two additions to a counter, which tells what still runs when
// a suspect wants to be alone. After an unclean end each start is a row written and removed, many in one
// transaction. A suspect costs two transactions and the rest of the process's time while it runs: up to a window
// of them, one after the other, each once if it succeeds.
//
// # Bounds
//
// A killer among n attempts in flight is started at most four times by one process, whatever n is: once without
// the ledger, once recorded, twice alone. Each further replica that has not yet heard of the first death
// (heartbeats are TTL/3 apart) may be killed once more by it, so it is five for two replicas. A deploy that it
// dies in is one more, since such a death does not count. This holds when the message is delivered again within
// the horizon; each unclean end that had nothing recorded doubles the next one. The tests walk every interleaving
// of three messages and every place to die.
//
// Deaths that are nobody's: those of a process that had announced its stop, as Run does when it drains. So a
// deploy convicts nobody, however long its handlers take.
//
// A kill from outside (kill -9, a lost node, memory that the rest of the process uses) convicts nobody while
// messages run side by side, however often it happens. Two of them can convict an innocent message if both hit
// it alone: it has to be in flight when a process dies shortly after another one had died, and then two
// more kills have to hit the very time in which this one message runs alone: at least four unclean ends, two of
// them within its own handling. With a mean time T between kills and a handler that takes d that is a chance of
// about (d/T)² for each suspect: one in a million for 100 ms and a kill every 100 s. Such a message is not lost:
// its dead letter names the starts, and it can be redriven. A process that loses its database for longer than TTL
// is taken for dead; what was counted is taken back when it returns.
//
// If many messages kill the process only together, by the memory that they use at once, none of them is
// convicted: each succeeds alone.
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

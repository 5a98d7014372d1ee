// Package crash kills a system of processes in every way it knows while events go through it, and judges from the
// tables that are left whether each event took effect once and in order. It owns the processes, the chaos and the
// judgement; it has a Postgres of its own, which integration/servers starts, and touches no other process.
//
// The system is what a service with only Postgres runs:
//
//	producers   change a row and outbox.Add events in one transaction; some roll back
//	relays      outbox.Relay publishes them into brokers/postgres
//	consumers   the full runtime on pgxstore: HandleTx, HandleTx in group transactions, HandleBatch, in turns
//
// Every role has several processes, each a copy of the program that calls [Run]. A dead
// letter counts as broken. The settings of the runtime are its defaults, but for short leases.
//
// One seed draws the order of all actions and their choices. The interleaving of the processes is the machine's, so a
// seed repeats the plan of a run and not the run.
package crash

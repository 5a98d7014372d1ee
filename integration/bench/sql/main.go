// Command sql measures the inbox and the outbox on a real Postgres, beside what one would write by hand. Each
// part runs its subjects in turns, in one process against one server, so that a noisy machine disturbs all alike;
// medians are printed, and what counts are the ratios.
//
//	integration/servers start postgres
//	eval "$(integration/servers env postgres)"
//	go run ./integration/bench/sql inbox  [flags]  # HandleTx, Grouped and HandleBatch beside a hand-written loop
//	go run ./integration/bench/sql growth [flags]  # the claim beside 1 million and 20 million older ones, and under pruning
//	go run ./integration/bench/sql relay  [flags]  # the outbox: relay, cost of the insert, latency
//
// Each takes -json for JSON lines instead of a table, and -h for the rest.
package main

import (
	"fmt"
	"log"
	"os"
)

// parts are the benchmarks; each reads its flags from os.Args.
var parts = map[string]func(){"inbox": inboxMain, "growth": growthMain, "relay": relayMain}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "want one of: inbox, growth, relay; see go doc ./integration/bench/sql")
		os.Exit(2)
	}
	run := parts[os.Args[1]]
	os.Args = append([]string{os.Args[0] + " " + os.Args[1]}, os.Args[2:]...)
	run()
}

// postgresURL is where the real server is.
func postgresURL() string {
	url := os.Getenv("HEADRACE_POSTGRES_URL")
	if url == "" {
		log.Fatal("HEADRACE_POSTGRES_URL is not set: run integration/servers start postgres")
	}
	return url
}

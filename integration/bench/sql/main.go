// Command sql measures the inbox and the outbox on a real Postgres, beside what one would write by hand. Each
// part runs its subjects in turns, in one process against one server, so that a noisy machine disturbs all alike;
// medians are printed, and what counts are the ratios.
//
//	integration/servers start postgres
//	eval "$(integration/servers env postgres)"
//	go run ./integration/bench/sql inbox  [flags]  # HandleTx, Grouped and HandleBatch beside a hand-written loop
//	go run ./integration/bench/sql growth [flags]  # the claim beside 1 million and 20 million older ones, and under pruning
//	go run ./integration/bench/sql relay  [flags]  # the outbox: relay, cost of the insert, latency
//	go run ./integration/bench/sql sqlite [flags]  # the inbox on SQLite, which needs no server
//
// Each prints a table and JSON lines; -format chooses one of them, and -h tells the rest.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/headrace-go/headrace/integration/bench/internal/pace"
)

// parts are the benchmarks; each reads its flags from os.Args.
var parts = map[string]func(){"inbox": inboxMain, "growth": growthMain, "relay": relayMain, "sqlite": sqliteMain}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 || parts[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "want one of: inbox, growth, relay, sqlite; see go doc ./integration/bench/sql")
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

// formatFlag is the flag for emit.
func formatFlag() *string { return flag.String("format", "both", "table, json (lines), or both") }

// emit prints results in a format of formatFlag.
func emit[R any](w io.Writer, format string, results []R, table func(io.Writer, []R) error) error {
	switch format {
	case "table":
		return table(w, results)
	case "json":
		return pace.Lines(w, results)
	case "both":
		if err := table(w, results); err != nil {
			return err
		}
		return pace.Lines(w, results)
	}
	return fmt.Errorf("-format is %q: want both, table or json", format)
}

// Command full is the long crash test: at least 200,000 events while everything is killed, see package crash.
//
//	go run ./integration/crash/full [-events 200000] [-seed N] [-rounds 2] [-keep]
//
// It prints the seed, each action and the counts. It exits with 0 if everything was survived. As root the disk fills up
// too.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/headrace-go/headrace/integration/crash"
)

func main() {
	crash.Child()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run() error {
	events := flag.Int64("events", 200_000, "at least so many events")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "draws the plan")
	rounds := flag.Int("rounds", 2, "each kind of trouble comes at least so many times")
	keep := flag.Bool("keep", false, "keep the logs and the records of a run that survived")
	flag.Parse()
	dir, err := os.MkdirTemp("", "headrace-crash-")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server's user must be able to see it
		return err
	}
	fmt.Println("logs and records:", dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	report, err := crash.Run(ctx, crash.Config{
		Servers: "integration/servers", Dir: dir, Seed: *seed, Events: *events, Keys: 400, Producers: 2, Relays: 2, Consumers: 3,
		Rounds: *rounds, Lease: 2 * time.Second, CalmMin: 200 * time.Millisecond, CalmMax: 2 * time.Second, Backlog: 10_000, DiskMiB: 1024,
		Patience: 2 * time.Minute, Log: os.Stdout,
	})
	if err != nil {
		return err
	}
	fmt.Print(report)
	if len(report.Broken) > 0 {
		return fmt.Errorf("%d promises are broken", len(report.Broken))
	}
	if *keep {
		return nil
	}
	return os.RemoveAll(dir)
}

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	child()
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

func command() error {
	duration := flag.Duration("duration", 3*time.Minute, "how long there is trouble")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "draws the plan")
	brokers := flag.String("brokers", strings.Join(kinds, ","), "the pipelines' brokers")
	actions := flag.String("actions", "", "only these `kinds`, or what begins with them: kill,freeze-relay; default all")
	cluster := flag.Bool("cluster", false, "Kafka is a cluster of three, whose leaders change (2 GB)")
	sabotaged := flag.String("sabotage", "", fmt.Sprintf("break the consumers on purpose: one of %v", sabotages))
	rate := flag.Int("rate", 100, "events of each pipeline in a second")
	planOnly := flag.Bool("plan", false, "print the plan and do nothing")
	patience := flag.Duration("patience", time.Minute, "how long nothing may move in the end")
	keep := flag.Bool("keep", false, "keep logs, records and the servers' files")
	script := flag.String("servers", "integration/servers", "the script that starts the servers")
	flag.Parse()
	c := config{
		Servers: *script, Seed: *seed, Duration: *duration, Pipelines: map[string]string{}, Sabotaged: map[string]sabotage{},
		Rate: *rate, Backlog: int64(*rate) * 10, Relays: 2, Consumers: 2, Patience: *patience, Keep: *keep, Log: os.Stdout,
	}
	if *rate < 1 || *rate > 10_000 {
		return fmt.Errorf("-rate is %d: want 1 to 10000", *rate)
	}
	if s := sabotage(*sabotaged); s != "" && !slices.Contains(sabotages, s) {
		return fmt.Errorf("-sabotage is %q: want one of %v", s, sabotages)
	}
	for name := range strings.SplitSeq(*brokers, ",") {
		if !slices.Contains(kinds, name) {
			return fmt.Errorf("-brokers has %q: want some of %v", name, kinds)
		}
		c.Pipelines[name], c.Sabotaged[name] = name, sabotage(*sabotaged)
		if name == kafka && *cluster {
			c.Pipelines[name] = kafkaCluster
		}
	}
	var err error
	if c.Wanted, err = kindsWanted(*actions); err != nil {
		return err
	}
	if *planOnly {
		for _, a := range plan(c.Seed, c.Duration, c.Pipelines, c.Wanted) {
			fmt.Printf("%8.3f  %v\n", a.At.Seconds(), a)
		}
		return nil
	}
	return perform(c)
}

// perform does a run, with a directory of its own, and prints its report.
func perform(c config) (err error) {
	if c.Servers, err = filepath.Abs(c.Servers); err != nil {
		return err
	}
	if c.Dir, err = os.MkdirTemp("", "headrace-chaos-"); err != nil {
		return err
	}
	if err := os.Chmod(c.Dir, 0o755); err != nil { // the servers' users must be able to see it
		return err
	}
	fmt.Println("logs and records:", c.Dir)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := chaos(ctx, c)
	if err != nil {
		return fmt.Errorf("seed %d: %w; logs and records: %s", c.Seed, err, c.Dir)
	}
	fmt.Print("\n", r)
	if !r.OK() {
		return fmt.Errorf("promises are broken; logs and records: %s; the same plan again: -seed %d", c.Dir, c.Seed)
	}
	if c.Keep {
		return nil
	}
	return os.RemoveAll(c.Dir)
}

// Command soak runs a service for an hour at a steady load and tells whether anything grows or drifts: memory, goroutines, open
// files, latency, the tables. The service is what money would run on: a producer, a consumer with an inbox and an outbox on
// Postgres, a relay, and a second consumer, over Kafka. Some messages come twice, some fail before they succeed, some are poison.
//
//	integration/servers start postgres kafka
//	eval "$(integration/servers env postgres kafka)"
//	go run ./integration/soak [-duration 1h] [-rate 0] [-every 10s] [-csv soak.csv] [-svg soak.svg]
//
// A rate of 0 finds out in the first minute what fits the machine, and takes three quarters of it. Everything that was published is
// accounted for at the end; the exit code is 1 if something was lost or doubled, or if anything grew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type options struct {
	duration, every time.Duration
	rate            float64
	keys            int
	csv, svg        string
}

func main() {
	var o options
	flag.DurationVar(&o.duration, "duration", time.Hour, "how long the load lasts, after the search for its rate")
	flag.DurationVar(&o.every, "every", 10*time.Second, "the time between two samples")
	flag.Float64Var(&o.rate, "rate", 0, "messages per second; 0: three quarters of what fits the machine")
	flag.IntVar(&o.keys, "keys", 2_000, "the keys that the messages are spread over")
	flag.StringVar(&o.csv, "csv", "", "write the samples to this file")
	flag.StringVar(&o.svg, "svg", "", "draw them into this file")
	flag.Parse()
	if err := o.check(); err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := soak(ctx, o); err != nil {
		log.Fatal(err)
	}
}

func (o options) check() error {
	switch {
	case o.every <= 0 || o.duration < 10*o.every:
		return fmt.Errorf("-duration is %v and -every is %v: want at least 10 samples", o.duration, o.every)
	case o.rate < 0:
		return fmt.Errorf("-rate is %v: want at least 0", o.rate)
	case o.keys < 1:
		return fmt.Errorf("-keys is %d: want at least 1", o.keys)
	}
	return nil
}

func soak(ctx context.Context, o options) error {
	s, err := open(ctx, o.keys)
	if err != nil {
		return err
	}
	defer s.close()
	served := make(chan error, 1)
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	go func() { served <- s.run(work) }()

	if o.rate == 0 {
		if o.rate, err = s.search(ctx); err != nil {
			return err
		}
	}
	log.Printf("%.0f messages/s for %v", o.rate, o.duration)
	load, stop := context.WithTimeout(ctx, o.duration)
	defer stop()
	produced := make(chan error, 1)
	go func() { produced <- s.produce(load, o.rate) }()
	samples, err := watch(load, s, o.every)
	err = errors.Join(err, <-produced, s.settle(ctx))
	end()
	err = errors.Join(err, <-served)

	err = errors.Join(err, keep(o, samples), s.balance(context.WithoutCancel(ctx)))
	for _, v := range judge(samples, o.rate) {
		fmt.Println(v)
		if !v.ok {
			err = errors.Join(err, fmt.Errorf("%s", v))
		}
	}
	return err
}

// keep writes the samples where they were asked for.
func keep(o options, samples []sample) error {
	var errs []error
	for path, write := range map[string]func(*os.File) error{
		o.csv: func(f *os.File) error { return writeCSV(f, samples) },
		o.svg: func(f *os.File) error { return draw(f, samples) },
	} {
		if path == "" {
			continue
		}
		f, err := os.Create(path)
		if err == nil {
			err = errors.Join(write(f), f.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

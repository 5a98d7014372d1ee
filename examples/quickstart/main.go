// Command quickstart runs two event-driven services on real webhooks of GitHub and then checks its own books.
// It needs nothing but Go: JetStream and SQLite run in the process.
//
//	go run ./examples/quickstart          # a table at the end
//	go run ./examples/quickstart -crash   # killed half-way, gone on with in a second process
//	go run ./examples/quickstart -trace   # and a few traces, over both services
//
// The input is 329 deliveries as GitHub sent them. Mixed in, and marked as injected, are duplicates, versions that
// are older than what was sent before, twenty messages that nobody can read, and a remote directory that fails now
// and then. The tracker keeps a table of issues and pull requests and publishes each change through its outbox;
// the notifier hears of it.
//
// Where to read first: tracker.go and notifier.go are the services, job.go puts them together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	data    string
	json    bool
	crash   bool
	trace   bool
	verbose bool
	timeout time.Duration

	killAt   int      // end this process by SIGKILL at so many effects; 0: never
	first    int      // how much of the input there is; 0: all of it. Like the next one a test's
	withhold []string // the UUIDs of messages that are lost on the way
}

const usage = `Usage: quickstart [flags]

Runs two services on real webhooks and checks the books. It ends with 1 if they do not balance.
The numbers are those of the first service, the tracker, and of this invocation: a second run with the
same -data sends the whole input again and has no effects, only duplicates.

`

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage); flags.PrintDefaults() }
	flags.StringVar(&o.data, "data", "", "`directory` that keeps the streams and databases; default: a temporary one, removed at the end")
	flags.BoolVar(&o.json, "json", false, "print one line of JSON instead of the table")
	flags.BoolVar(&o.crash, "crash", false, "kill the process with SIGKILL when half of the effects are committed, and go on in a second one;\n"+
		"the numbers are those of both, but for deliveries, duplicates and retries that the first had no time to tell")
	flags.BoolVar(&o.trace, "trace", false, "print a few traces, to standard error if there is -json")
	flags.BoolVar(&o.verbose, "v", false, "print the logs")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Minute, "give up after that `time`, telling what was waited for")
	flags.IntVar(&o.killAt, "kill-at", 0, "what -crash gives its first process: the `effects` at which it kills itself")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	switch {
	case flags.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.timeout <= 0:
		err = fmt.Errorf("-timeout is %v: want a positive time", o.timeout)
	case o.killAt < 0:
		err = fmt.Errorf("-kill-at is %d: want a positive number", o.killAt)
	case o.crash && o.killAt > 0:
		err = errors.New("-crash sets -kill-at itself")
	}
	return o, err
}

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "quickstart:", err)
		return 2
	}
	return execute(ctx, o, stdout, stderr)
}

func execute(ctx context.Context, o options, stdout, stderr io.Writer) int {
	if o.data == "" {
		dir, err := os.MkdirTemp("", "headrace-quickstart-")
		if err != nil {
			fmt.Fprintln(stderr, "quickstart:", err)
			return 1
		}
		defer func() {
			if err := os.RemoveAll(dir); err != nil {
				fmt.Fprintln(stderr, "quickstart: remove the temporary directory:", err)
			}
		}()
		o.data = dir
	}
	work := runJob
	if o.crash {
		work = supervise
	}
	report, err := work(ctx, o, stdout, stderr)
	if report != nil {
		write := report.writeTable
		if o.json {
			write = report.writeJSON
		}
		err = errors.Join(err, write(stdout))
	}
	if err != nil {
		fmt.Fprintln(stderr, "quickstart:", err)
		return 1
	}
	return 0
}

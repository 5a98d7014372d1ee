package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/deadletter"
)

// The exit codes; main.go tells what they mean. Scripts depend on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNothing     = 3
	exitPartly      = 4
	exitCanary      = 5
	exitUnconfirmed = 6
	exitUnwell      = 7
	exitInterrupted = 130
)

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func exit(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// usage marks what the user has to write otherwise.
func usage(format string, args ...any) error { return exit(exitUsage, format, args...) }

var errNothing = exit(exitNothing, "nothing was found")

// app is one run of the command.
type app struct {
	in       *bufio.Reader
	out, err io.Writer
	getenv   func(string) string
	log      *slog.Logger

	brokerURL, databaseURL, schema, prefix string
	output, actor                          string
	yes                                    bool
	deadline                               time.Duration
	cancel                                 context.CancelFunc
}

// run is main with everything that it touches as an argument.
func run(ctx context.Context, args []string, getenv func(string) string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: bufio.NewReader(in), out: out, err: errs, getenv: getenv}
	a.log = slog.New(slog.NewTextHandler(errs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	root := a.command()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	a.cancel = func() {}
	defer func() { a.cancel() }()
	err := root.ExecuteContext(ctx)
	code := codeOf(ctx, err)
	if err != nil {
		fmt.Fprintln(errs, "headrace:", err)
	}
	return code
}

func codeOf(ctx context.Context, err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.Is(err, deadletter.ErrCanary):
		return exitCanary
	case errors.Is(err, deadletter.ErrNotFound), errors.Is(err, brokers.ErrNoTopic):
		return exitNothing
	case errors.Is(err, deadletter.ErrBusy):
		return exitPartly
	}
	return exitFailed
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "headrace",
		Short:         "Work dead letters, parked keys, outbox and inbox of services on Headrace",
		Long:          "Work dead letters, parked keys, outbox and inbox of services on Headrace.\n\n" + exitHelp,
		Args:          args(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&a.brokerURL, "broker", "", "broker: kafka://, nats://, embedded:DIR, amqp://, redis:// or postgres:// (default $HEADRACE_BROKER)")
	flags.StringVar(&a.databaseURL, "database", "", "database: postgres://, mysql:// or sqlite:FILE (default $HEADRACE_DATABASE)")
	flags.StringVar(&a.schema, "schema", "", "Postgres schema of Headrace's tables (default: the connection's own)")
	flags.StringVar(&a.prefix, "table-prefix", "", "prefix of the tables' names (default headrace_)")
	flags.StringVarP(&a.output, "output", "o", "text", "text or json")
	flags.StringVar(&a.actor, "actor", "", "who does it, for the trail (default $USER)")
	flags.BoolVarP(&a.yes, "yes", "y", false, "do it without asking")
	flags.DurationVar(&a.deadline, "timeout", 0, "give up after this time (default: never)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) }
	root.AddCommand(a.dltCommand(), a.outboxCommand(), a.inboxCommand(), a.parkCommand(), a.replayCommand(), a.doctorCommand())
	return root
}

const exitHelp = `Exit codes: 0 done; 1 failed; 2 the command line makes no sense; 3 nothing was found; 4 done in part;
5 a canary stopped the redrive; 6 not confirmed; 7 doctor found something wrong; 130 interrupted.`

func (a *app) prepare(cmd *cobra.Command) error {
	if a.output != "text" && a.output != "json" {
		return usage("--output is %q: want text or json", a.output)
	}
	if a.deadline < 0 {
		return usage("--timeout is %v: want more than 0", a.deadline)
	}
	if a.deadline > 0 {
		ctx, cancel := context.WithTimeout(cmd.Context(), a.deadline)
		a.cancel = cancel
		cmd.SetContext(ctx)
	}
	a.brokerURL = first(a.brokerURL, a.getenv("HEADRACE_BROKER"))
	a.databaseURL = first(a.databaseURL, a.getenv("HEADRACE_DATABASE"))
	a.actor = first(a.actor, a.getenv("USER"), a.getenv("LOGNAME"))
	return nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// group is a command that only has others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: args(cobra.NoArgs), RunE: func(cmd *cobra.Command, _ []string) error {
		return usage("%s: name one of its commands; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}}
	c.AddCommand(commands...)
	return c
}

// args checks the number of arguments.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usage("%w", err)
		}
		return nil
	}
}

func (a *app) isJSON() bool { return a.output == "json" }

// writeJSON writes v as one document.
func (a *app) writeJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// confirm asks unless --yes was given.
func (a *app) confirm(format string, args ...any) error {
	if a.yes {
		return nil
	}
	fmt.Fprintf(a.err, format+" [y/N] ", args...)
	answer, err := a.in.ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return exit(exitUnconfirmed, "not confirmed: nothing was done")
}

// by is who does something, and why.
func (a *app) by(reason string) (deadletter.By, error) {
	switch {
	case strings.TrimSpace(reason) == "":
		return deadletter.By{}, usage("--reason is empty: it goes into the trail, a ticket's number for instance")
	case strings.TrimSpace(a.actor) == "":
		return deadletter.By{}, usage("--actor is empty, and so is $USER: it goes into the trail")
	}
	return deadletter.By{Actor: a.actor, Reason: reason}, nil
}

// isTerminal tells whether w is looked at by somebody.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// bar draws how far something is, on a terminal.
type bar struct {
	w     io.Writer
	of    int64
	drawn bool
}

func (a *app) newBar(of int64) *bar {
	if a.isJSON() || !isTerminal(a.err) {
		return &bar{}
	}
	return &bar{w: a.err, of: of}
}

func (b *bar) at(n int64) {
	if b.w == nil || b.of <= 0 {
		return
	}
	const width = 40
	done := int(min(n, b.of) * width / b.of)
	fmt.Fprintf(b.w, "\r[%s%s] %d of %d", strings.Repeat("#", done), strings.Repeat(".", width-done), n, b.of)
	b.drawn = true
}

func (b *bar) end() {
	if b.drawn {
		fmt.Fprintln(b.w)
	}
}

// plural is "1 dead letter", "2 dead letters".
func plural[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

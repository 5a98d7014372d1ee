// Command mutants breaks the program on purpose, one fault at a time, and tells whether the tests notice.
//
//	go run ./integration/mutants [-run REGEXP] [-list] [-v]
//
// The faults are the files in testdata, at least two for each invariant of DESIGN.md; the tests are those of the packages, as
// they are. It needs no server. It exits with 1 if a fault survives, or if there is one about which nothing is known: one that
// does not apply or compile any more, or whose tests fail without it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// limit is what a suite may take longer than four times as long as without a fault.
const limit = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer) error {
	which := flag.String("run", "", "only those whose names match `regexp`")
	list := flag.Bool("list", false, "list the mutants and run nothing")
	verbose := flag.Bool("v", false, "print what the tests say")
	flag.Parse()
	matches, err := regexp.Compile(*which)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	all, err := load(filepath.Join(root, "integration", "mutants", "testdata"))
	if err != nil {
		return err
	}
	var chosen []mutant
	for _, m := range all {
		if matches.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("-run %q: no mutant has such a name", *which)
	}
	if *list {
		for _, m := range chosen {
			fmt.Fprintf(w, "%s\n\t%s\n", m.name, m.fault)
		}
		return nil
	}
	temp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	return errors.Join(tryAll(ctx, w, newRunner(root, temp, limit), chosen, *verbose), os.RemoveAll(temp))
}

// tryAll prints a line for each mutant, and the sum. Its error tells how many were not caught.
func tryAll(ctx context.Context, w io.Writer, r *runner, mutants []mutant, verbose bool) error {
	began := time.Now()
	n := map[outcome]int{}
	for _, m := range mutants {
		res := r.try(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n[res.outcome]++
		fmt.Fprintf(w, "%-4s %-44s %-18s %6.1fs  %s\n", m.invariant, strings.TrimPrefix(m.name, m.invariant+"-"), res.outcome, res.took.Seconds(), res.by)
		switch {
		case res.outcome == broken:
			fmt.Fprintf(w, "     %v\n", res.err)
		case res.outcome == survived:
			fmt.Fprintf(w, "     %s\n", m.fault)
		}
		if verbose {
			fmt.Fprintln(w, tail(res.output))
		}
	}
	fmt.Fprintf(w, "caught %d of %d, %d of them by timeout, in %v\n",
		n[caught]+n[timedOut], len(mutants), n[timedOut], time.Since(began).Round(time.Second))
	if n[survived]+n[broken] > 0 {
		return fmt.Errorf("%d survived, of %d nothing is known", n[survived], n[broken])
	}
	return nil
}

// moduleRoot is the directory of the module that the command is run in.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Check judges the history of a run of a consumer runtime: lost messages, doubled effects, order inverted per
// key, acks before outcomes.
//
//	go run ./integration/history/check -drained -all run/*.jsonl
//
// It exits with 0 if no promise was broken, 1 if one was, 2 if a log cannot be read. Package history has the
// form of the records and the rules.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/headrace-go/headrace/integration/history"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(stderr)
	all := flags.Bool("all", false, "every consumer's effects happen once")
	once := flags.String("once", "", "consumers whose effects happen once, with commas between")
	unordered := flags.String("unordered", "", "consumers without order per key, with commas between")
	drained := flags.Bool("drained", false, "everything published was to be handled: what has no outcome is lost")
	limit := flags.Int("limit", 20, "violations to print of each rule")
	asJSON := flags.Bool("json", false, "print the verdict as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	records, err := read(flags.Args(), stdin)
	if err != nil {
		fmt.Fprintln(stderr, "check:", err)
		return 2
	}
	v := history.Check(records, history.Options{
		All: *all, Once: list(*once), Unordered: list(*unordered), Drained: *drained, Limit: *limit,
	})
	if err := report(stdout, v, *asJSON); err != nil {
		fmt.Fprintln(stderr, "check:", err)
		return 2
	}
	if !v.OK() {
		return 1
	}
	return 0
}

// read reads the named files, or stdin where none is named.
func read(names []string, stdin io.Reader) ([]history.Record, error) {
	if len(names) == 0 {
		return history.Read(stdin)
	}
	logs := make([]io.Reader, len(names))
	for i, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		logs[i] = bytes.NewReader(text)
	}
	return history.Read(logs...)
}

func report(w io.Writer, v history.Verdict, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	for _, violation := range v.Violations {
		fmt.Fprintln(w, violation)
	}
	for _, rule := range history.Rules {
		if n := v.Broken[rule]; n > 0 {
			fmt.Fprintf(w, "%s: %d\n", rule, n)
		}
	}
	_, err := fmt.Fprintf(w, "%d published, %d effects, %d dead letters, %d second attempts explained; %d promises broken\n",
		v.Counts[history.Published], v.Counts[history.Effect], v.Counts[history.Dead], v.Explained, len(v.Broken))
	return err
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

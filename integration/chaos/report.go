package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// report is what a run survived, or did not.
type report struct {
	Seed     uint64
	Took     time.Duration
	Done     map[string]map[kind]int // actions by lane
	Missed   int                     // actions that would have ended too late
	Verdicts []verdict
}

// OK tells that no promise was broken.
func (r report) OK() bool {
	return !slices.ContainsFunc(r.Verdicts, func(v verdict) bool { return len(v.Broken) > 0 })
}

// String gives the report as Markdown: what was done, what went through, and the verdict.
func (r report) String() string {
	var b strings.Builder
	names := make([]string, 0, len(r.Verdicts)+1)
	for _, v := range r.Verdicts {
		names = append(names, v.Pipeline)
	}
	names = append(names, shared)
	total := 0
	line := func(cells ...any) {
		for _, c := range cells {
			fmt.Fprintf(&b, "| %v ", c)
		}
		b.WriteString("|\n")
	}
	head := func(first string, names []string) {
		line(append([]any{first}, anys(names)...)...)
		b.WriteString("| --- " + strings.Repeat("| --: ", len(names)) + "|\n")
	}
	head("actions", names)
	for _, t := range troubles {
		cells, n := []any{t.kind}, 0
		for _, name := range names {
			done := r.Done[name][t.kind]
			n += done
			if done == 0 {
				cells = append(cells, "")
			} else {
				cells = append(cells, done)
			}
		}
		if n > 0 {
			line(cells...)
		}
		total += n
	}
	b.WriteString("\n")
	head("pipelines", names[:len(names)-1])
	var made, broken int64
	for _, row := range []struct {
		name string
		of   func(verdict) any
	}{
		{"events", func(v verdict) any { return v.Made }},
		{"effects", func(v verdict) any { return v.Effects }},
		{"poison events", func(v verdict) any { return v.Poison }},
		{"dead letters", func(v verdict) any { return v.Dead }},
		{"attempts", func(v verdict) any { return v.Attempts }},
		{"failed attempts", func(v verdict) any { return v.Failed }},
		{"copies skipped", func(v verdict) any { return v.Copies }},
		{"acks", func(v verdict) any { return v.Acks }},
		{"processes", func(v verdict) any { return v.Counts.processes }},
		{"of these could not begin", func(v verdict) any { return v.Counts.notBegun }},
		{"stopped in order", func(v verdict) any { return v.Counts.stops }},
		{"the slowest of these", func(v verdict) any { return v.Counts.slowest.Round(10 * time.Millisecond) }},
		{"promises broken", func(v verdict) any { return len(v.Broken) }},
	} {
		cells := []any{row.name}
		for _, v := range r.Verdicts {
			cells = append(cells, row.of(v))
		}
		line(cells...)
	}
	b.WriteString("\n")
	for _, v := range r.Verdicts {
		made += v.Made
		broken += int64(len(v.Broken))
		for _, what := range v.Broken {
			fmt.Fprintf(&b, "BROKEN: %s: %s\n", v.Pipeline, what)
		}
	}
	verdict := "nothing lost, nothing doubled, every key in order, dead letters of exactly the poison"
	if broken > 0 {
		verdict = fmt.Sprintf("%d PROMISES BROKEN", broken)
	}
	fmt.Fprintf(&b, "seed %d: %d actions (%d left out), %d events in %v: %s\n", r.Seed, total, r.Missed, made, r.Took.Round(time.Second), verdict)
	return b.String()
}

func anys[T any](of []T) []any {
	all := make([]any, len(of))
	for i, x := range of {
		all[i] = x
	}
	return all
}

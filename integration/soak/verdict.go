package main

import (
	"fmt"
	"slices"
)

// verdict is whether one measure stayed what it was.
type verdict struct {
	what        string
	early, late float64
	limit       float64
	ok          bool
}

func (v verdict) String() string {
	word := "flat"
	if !v.ok {
		word = "NOT FLAT"
	}
	return fmt.Sprintf("%-20s %-8s early %.1f, late %.1f (limit %.1f)", v.what, word, v.early, v.late, v.limit)
}

// allowed is how much a measure may differ between the second fifth of the run and the last: a part of what it was, and
// something beside, for what is small. The first fifth does not count: pools and caches fill up.
var allowed = []struct {
	what       string
	of         func(sample) float64
	part, more float64
}{
	{"live heap, MiB", func(s sample) float64 { return s.heap }, 0.10, 2},
	{"memory, MiB", func(s sample) float64 { return s.memory }, 0.15, 8},
	{"goroutines", func(s sample) float64 { return s.goroutines }, 0.05, 10},
	{"open files", func(s sample) float64 { return s.files }, 0.10, 5},
	{"waiting", func(s sample) float64 { return s.waiting }, 0.50, 500},
	{"p99, ms", func(s sample) float64 { return s.p99 }, 0.50, 50},
}

// judge compares the second fifth of the samples with the last, by their medians, and the rate with the one that was wanted.
func judge(samples []sample, rate float64) []verdict {
	n := len(samples)
	if n < 5 {
		return []verdict{{what: "samples", late: float64(n), limit: 5}}
	}
	early, late := samples[n/5:2*n/5], samples[4*n/5:]
	var all []verdict
	for _, a := range allowed {
		v := verdict{what: a.what, early: median(early, a.of), late: median(late, a.of)}
		v.limit = v.early*(1+a.part) + a.more
		v.ok = v.late <= v.limit
		all = append(all, v)
	}
	perSecond := func(s sample) float64 { return s.perSecond }
	v := verdict{what: "messages/s", early: median(early, perSecond), late: median(late, perSecond), limit: 0.95 * rate}
	v.ok = v.late >= v.limit
	return append(all, v)
}

func median(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

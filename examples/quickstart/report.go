package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// report is what -json prints. Its names are what other programs read.
type report struct {
	Published       int64 `json:"published"`
	Deliveries      int64 `json:"deliveries"`
	Effects         int64 `json:"effects"`
	Duplicates      int64 `json:"duplicates"`
	Stale           int64 `json:"stale"`
	Retries         int64 `json:"retries"`
	DeadLettered    int64 `json:"dead_lettered"`
	OrderViolations int   `json:"order_violations"`
	Lost            int   `json:"lost"`
	ElapsedMS       int64 `json:"elapsed_ms"`
}

func (r report) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

func (r report) writeTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range []struct {
		name, means string
		value       any
	}{
		{"published", "confirmed by JetStream", r.Published},
		{"deliveries", "settled by the tracker", r.Deliveries},
		{"effects", "committed, each once", r.Effects},
		{"duplicates", "recognised by their id, no effect", r.Duplicates},
		{"stale", "older than what was applied, no effect", r.Stale},
		{"retries", "after the directory had failed", r.Retries},
		{"dead-lettered", "distinct, stored with the original bytes", r.DeadLettered},
		{"order violations", "within a key", r.OrderViolations},
		{"lost", "published and in no table", r.Lost},
		{"elapsed", "", (time.Duration(r.ElapsedMS) * time.Millisecond).String()},
	} {
		if _, err := fmt.Fprintf(t, "%s\t%v\t%s\n", row.name, row.value, row.means); err != nil {
			return err
		}
	}
	return t.Flush()
}

// Package history decides from a log of what happened whether a consumer runtime kept its promises: nothing
// lost, no effect doubled, each key in order, no ack before its outcome. It is a pure library, it knows no
// runtime and no broker: whoever writes [Record] lines, in any language, can have a run judged.
//
// A log can only show what was logged. A record of something that others must be able to rely on (an
// effect, an outcome) is written after it is certain, a record of something that begins (a start, a kill)
// before it begins. The history of several processes is their logs merged by time; clocks of one machine
// are good enough for all rules but those about the inside of one process, which need no clock.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Kind says what happened.
type Kind string

// The kinds of records, and the fields that each needs besides Kind.
const (
	// Published: a producer's publish was confirmed. ID, Key, Seq (the message's number within its key,
	// from 1). A second record of one ID is a duplicate by the producer.
	Published Kind = "published"
	// Start: an attempt began. Process, Consumer, ID, Key. End: it ended, with an effect or not.
	Start Kind = "start"
	End   Kind = "end"
	// Failed: the attempt that runs has failed; another one of the same message is explained.
	Failed Kind = "failed"
	// Effect: the effect is certain (committed). Process, Consumer, ID, Key.
	Effect Kind = "effect"
	// Skipped: the message was recognised as a duplicate or as stale, or its type is ignored. It is an
	// outcome that allows the ack, and no effect. Process, Consumer, ID, Key.
	Skipped Kind = "skipped"
	// Ack: the broker was told that the delivery is done. Process, Consumer, ID, Key.
	Ack Kind = "ack"
	// Dead: the dead letter is stored. Process, Consumer, ID, Key.
	Dead Kind = "dead"
	// Redrive: an operator sent a dead letter to its consumer again. Consumer, ID, Key.
	Redrive Kind = "redrive"
	// Park: the message waits behind a failed one of its key. Unpark: it left the parking place, to be
	// handled. Consumer, ID, Key.
	Park   Kind = "park"
	Unpark Kind = "unpark"
	// Discard: an operator gave the message up. Consumer, ID, Key.
	Discard Kind = "discard"
	// Assign and Revoke: a partition was given to a process and taken away; Revoke is written when the
	// process has agreed to it. Process, Consumer, Partition.
	Assign Kind = "assign"
	Revoke Kind = "revoke"
	// Release: a delivery was given back without a verdict, which explains another one.
	// Process, Consumer, ID, Key.
	Release Kind = "release"
	// Crash: the process was ended, or lost its connections, at some time after this record. Process.
	// Every message that it had in work or had not acked may come again.
	Crash Kind = "crash"
)

// Record is one line of a history. Unused fields are empty.
type Record struct {
	// Time in nanoseconds since any fixed moment. Read sorts by it; records of one time keep their order.
	Time int64 `json:"t"`
	Kind Kind  `json:"kind"`
	// Process names one run of one program: a restarted program is another process.
	Process  string `json:"process,omitempty"`
	Consumer string `json:"consumer,omitempty"`
	ID       string `json:"id,omitempty"`
	// Key is the unit of order, "" is none. Seq is the message's place in it, of Published only.
	Key       string `json:"key,omitempty"`
	Seq       int64  `json:"seq,omitempty"`
	Partition string `json:"partition,omitempty"`
}

// Read reads records in JSON lines, one object a line, from all logs and merges them by time. Its error
// names the log's number, the line and what is wrong with it. A last line that was cut off, as a killed
// process leaves it, is passed over.
func Read(logs ...io.Reader) ([]Record, error) {
	var all []Record
	for i, log := range logs {
		records, err := readOne(log)
		if err != nil {
			return nil, fmt.Errorf("log %d: %w", i+1, err)
		}
		all = append(all, records...)
	}
	slices.SortStableFunc(all, func(a, b Record) int {
		switch {
		case a.Time < b.Time:
			return -1
		case a.Time > b.Time:
			return 1
		}
		return 0
	})
	return all, nil
}

func readOne(log io.Reader) ([]Record, error) {
	var records []Record
	in := bufio.NewReader(log)
	for line := 1; ; line++ {
		text, err := in.ReadString('\n')
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		last := err == io.EOF
		if strings.TrimSpace(text) != "" {
			var r Record
			switch why := decode(text, &r); {
			case why == nil:
				records = append(records, r)
			case !last:
				return nil, fmt.Errorf("line %d: %w", line, why)
			}
		}
		if last {
			return records, nil
		}
	}
}

func decode(line string, r *Record) error {
	d := json.NewDecoder(strings.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return fmt.Errorf("%q is no record: %w", line, err)
	}
	return r.check()
}

// needs tells the fields that a kind cannot do without.
var needs = map[Kind]string{
	Published: "id", Start: "process consumer id", End: "process consumer id", Failed: "process consumer id",
	Effect: "consumer id", Skipped: "consumer id", Ack: "process consumer id", Dead: "consumer id",
	Redrive: "consumer id", Park: "consumer id key", Unpark: "consumer id key", Discard: "consumer id",
	Assign: "process consumer partition", Revoke: "process consumer partition",
	Release: "process consumer id", Crash: "process",
}

func (r *Record) check() error {
	fields, ok := needs[r.Kind]
	if !ok {
		return fmt.Errorf("kind is %q: there is no such kind", r.Kind)
	}
	value := map[string]string{"process": r.Process, "consumer": r.Consumer, "id": r.ID, "key": r.Key, "partition": r.Partition}
	for f := range strings.FieldsSeq(fields) {
		if value[f] == "" {
			return fmt.Errorf("a record of kind %s has no %s", r.Kind, f)
		}
	}
	return nil
}

package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/poison"
)

// filterFlags are the flags that select dead letters.
type filterFlags struct {
	filter       deadletter.Filter
	states       []string
	since, until string
	topics       []string // dead-letter topics, without a database
}

func (f *filterFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.filter.IDs, "id", nil, "ids of dead letters")
	flags.StringSliceVar(&f.states, "state", nil, "states: new, redriving, redriven, resolved, discarded")
	flags.StringVar(&f.filter.Consumer, "consumer", "", "who could not handle it")
	flags.StringVar(&f.filter.Topic, "topic", "", "where it was read")
	flags.StringVar(&f.filter.Key, "key", "", "the message's key")
	flags.StringVar(&f.filter.Type, "type", "", "the event's type")
	flags.StringVar(&f.filter.ErrorType, "error-type", "", "the kind of error")
	flags.StringVar(&f.filter.Fingerprint, "fingerprint", "", "failures of one kind, see dlt groups")
	flags.StringVar(&f.filter.Subject, "subject", "", "whose data it is")
	flags.StringVar(&f.filter.MessageID, "message-id", "", "the message's id in the inbox")
	flags.StringVar(&f.filter.CorrelationID, "correlation-id", "", "the conversation")
	flags.StringVar(&f.filter.Batch, "failed-in", "", "the redrive that it failed in again")
	flags.StringVar(&f.filter.Text, "text", "", "text in the error, the key, an id or the beginning of the payload")
	flags.IntVar(&f.filter.MinDeaths, "min-deaths", 0, "how often it died at least")
	flags.StringVar(&f.since, "since", "", "failed at this time or later: 2h, 3d, 2026-01-31 or RFC 3339")
	flags.StringVar(&f.until, "until", "", "failed before this time")
	flags.StringSliceVar(&f.topics, "dlt", nil, "dead-letter topics, without a database (default: --topic and .DLT)")
}

// parse returns the filter. otherwise are the states if none were named.
func (f *filterFlags) parse(otherwise ...deadletter.State) (deadletter.Filter, error) {
	filter := f.filter
	filter.States = nil
	for _, name := range f.states {
		s, err := deadletter.ParseState(name)
		if err != nil {
			return filter, usage("--state: %w", err)
		}
		filter.States = append(filter.States, s)
	}
	if len(filter.States) == 0 {
		filter.States = otherwise
	}
	var err error
	if filter.Since, err = parseTime(f.since, time.Now()); err != nil {
		return filter, usage("--since: %w", err)
	}
	if filter.Until, err = parseTime(f.until, time.Now()); err != nil {
		return filter, usage("--until: %w", err)
	}
	if err := filter.Validate(); err != nil {
		return filter, usage("%w", err)
	}
	return filter, nil
}

// deadTopics are the dead-letter topics to read where there is no database.
func (f *filterFlags) deadTopics() ([]string, error) {
	if len(f.topics) > 0 {
		return f.topics, nil
	}
	if f.filter.Topic != "" {
		return []string{f.filter.Topic + poison.Suffix}, nil
	}
	return nil, usage("without a database name the dead-letter topics with --dlt, or the topic that was consumed with --topic")
}

// parseTime reads a time, or how long before now it was. "" is the zero time.
func parseTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, time.DateOnly, "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return t, nil
		}
	}
	d, err := parseAgo(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("%.64q: want a time (2026-01-31, 2026-01-31T15:04:05Z) or how long ago (90s, 2h, 3d, 1w)", text)
	}
	return now.Add(-d), nil
}

// maxAgo keeps times within what every database can tell.
const maxAgo = 100 * 365 * 24 * time.Hour

func parseAgo(text string) (time.Duration, error) {
	unit := time.Duration(0)
	number, isDays := strings.CutSuffix(text, "d")
	if isDays {
		unit = 24 * time.Hour
	} else if n, isWeeks := strings.CutSuffix(text, "w"); isWeeks {
		number, unit = n, 7*24*time.Hour
	}
	var d time.Duration
	if unit == 0 {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			return 0, err
		}
	} else {
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || math.IsNaN(n) || n < 0 || n*float64(unit) > float64(maxAgo) {
			return 0, fmt.Errorf("%q is no number of days or weeks", number)
		}
		d = time.Duration(n * float64(unit))
	}
	if d < 0 || d > maxAgo {
		return 0, fmt.Errorf("%v is out of range", d)
	}
	return d, nil
}

package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxIDs bounds [Filter.IDs].
const MaxIDs = 1000

// maxDeaths is the largest MinDeaths: every database has integers of that size.
const maxDeaths = 1 << 30

// maxFilterText bounds a text of a filter, in bytes.
const maxFilterText = 1024

// Filter selects letters: those for which everything that is set holds. The zero Filter selects all.
type Filter struct {
	// IDs are dead letters' own ids.
	IDs []string
	// States are the states they are in.
	States []State

	Consumer, Topic, Type, ErrorType, Fingerprint, MessageID, CorrelationID, Subject string

	// Key is the broker's key as text.
	Key string

	// Batch is the redrive that they failed in.
	Batch string

	// Since and Until bound the time of the last failure: at Since or later, before Until.
	Since, Until time.Time

	// Text is a part of the error's text, the key, the type, an id or the beginning of the payload, in any case of letters.
	Text string

	// MinDeaths is how often the message died at least.
	MinDeaths int
}

// IsZero tells whether f selects everything.
func (f *Filter) IsZero() bool {
	return len(f.IDs) == 0 && len(f.States) == 0 && f.Since.IsZero() && f.Until.IsZero() && f.MinDeaths == 0 &&
		!slices.ContainsFunc(f.texts(), func(t namedText) bool { return t.value != "" })
}

type namedText struct{ field, value string }

func (f *Filter) texts() []namedText {
	return []namedText{
		{"Consumer", f.Consumer},
		{"Topic", f.Topic},
		{"Type", f.Type},
		{"ErrorType", f.ErrorType},
		{"Fingerprint", f.Fingerprint},
		{"MessageID", f.MessageID},
		{"CorrelationID", f.CorrelationID},
		{"Subject", f.Subject},
		{"Key", f.Key},
		{"Batch", f.Batch},
		{"Text", f.Text},
	}
}

// Validate names the first field that makes no sense, and its value.
func (f *Filter) Validate() error {
	if len(f.IDs) > MaxIDs {
		return fmt.Errorf("filter: %d ids: want at most %d", len(f.IDs), MaxIDs)
	}
	for _, id := range f.IDs {
		if id == "" {
			return errors.New(`filter: an id is ""`)
		}
		if err := checkText("id", id); err != nil {
			return err
		}
	}
	for _, s := range f.States {
		if _, err := ParseState(string(s)); err != nil {
			return fmt.Errorf("filter: %w", err)
		}
	}
	for _, t := range f.texts() {
		if err := checkText(t.field, t.value); err != nil {
			return err
		}
	}
	switch {
	case f.MinDeaths < 0 || f.MinDeaths > maxDeaths:
		return fmt.Errorf("filter: MinDeaths is %d: want 0 to %d", f.MinDeaths, maxDeaths)
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return fmt.Errorf("filter: Since is %s, not before Until, %s", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	}
	return nil
}

func checkText(field, value string) error {
	switch {
	case len(value) > maxFilterText:
		return fmt.Errorf("filter: %s has %d bytes: want at most %d", field, len(value), maxFilterText)
	case !utf8.ValidString(value):
		return fmt.Errorf("filter: %s is %.64q: want UTF-8", field, value)
	case strings.IndexByte(value, 0) >= 0:
		return fmt.Errorf("filter: %s is %.64q: it has a NUL byte", field, value)
	}
	return nil
}

// Match tells whether row is one of those that f selects. It is what a [Table] does in SQL.
func (f *Filter) Match(row *Row) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, row.ID)) &&
		(len(f.States) == 0 || slices.Contains(f.States, row.State)) &&
		is(f.Consumer, row.Consumer) && is(f.Topic, row.Topic) && is(f.Type, row.Type) && is(f.ErrorType, row.ErrorType) &&
		is(f.Fingerprint, row.Fingerprint) && is(f.MessageID, row.MessageID) && is(f.CorrelationID, row.CorrelationID) &&
		is(f.Subject, row.Subject) && is(f.Key, row.Key) && is(f.Batch, row.Batch) &&
		(f.Since.IsZero() || !row.FailedAt.Before(f.Since.Truncate(time.Microsecond))) &&
		(f.Until.IsZero() || row.FailedAt.Before(f.Until.Truncate(time.Microsecond))) &&
		row.Deaths >= f.MinDeaths &&
		(f.Text == "" || strings.Contains(row.Search, Fold(f.Text)))
}

// Fold is how a text is compared with [Row.Search]: in small letters.
func Fold(text string) string { return strings.ToLower(text) }

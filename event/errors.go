package event

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headrace-go/headrace/classify"
)

// ErrNoData says that a message holds no data (a tombstone: a nil payload, a structured event without
// data, or JSON null) where the Go type asked for has no nil to stand for it.
var ErrNoData = errors.New("no data")

// Error tells what is wrong with a message, or with what [New] was given. It is permanent to classify.
type Error struct {
	// Field is a metadata key ("ce_time"), a member of a structured event ("time"), "id" for a
	// message that cannot be identified, "payload" for the body as a whole, or "data".
	// Like Value it is cut to about 64 bytes.
	Field string

	// Value is what the field holds; for data its size and content type,
	// since a payload does not belong in a log. Empty when there is none.
	Value string

	// Err says why it is wrong. It is never nil.
	Err error
}

// Error names the field, the value and the reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("event: ")
	b.WriteString(e.Field)
	if e.Value != "" {
		b.WriteByte(' ')
		b.WriteString(strconv.Quote(e.Value))
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err, marked as permanent.
func (e *Error) Unwrap() error { return classify.Permanent(e.Err) }

const maxErrorValue = 64

func invalid(field, value string, err error) *Error {
	return &Error{Field: bounded(field), Value: bounded(value), Err: err}
}

// bounded cuts s at a rune and clones it, so that an error that is kept does not keep a whole payload.
func bounded(s string) string {
	if len(s) <= maxErrorValue {
		return strings.Clone(s)
	}
	cut := maxErrorValue
	for cut > maxErrorValue-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

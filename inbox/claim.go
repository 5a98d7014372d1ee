package inbox

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/headrace-go/headrace/classify"
)

// MaxNameBytes is the longest consumer, id or entity that a store keeps, in bytes.
const MaxNameBytes = 255

// NameError says that a consumer, an id or an entity cannot be kept. It is permanent: the same message
// fails again.
type NameError struct {
	// Field is "consumer", "id" or "entity".
	Field string
	// Value is what was given, cut to MaxNameBytes.
	Value string
	// Reason tells what is wrong with it.
	Reason string
}

// Error names the field, the reason and the value.
func (e *NameError) Error() string {
	return fmt.Sprintf("inbox: %s %s (%q)", e.Field, e.Reason, e.Value)
}

// Validate reports whether the claim can be kept: both names from 1 to [MaxNameBytes] bytes of UTF-8
// without a NUL, which is what every database keeps unchanged. Stores call it first. Its error wraps a
// *[NameError] and is permanent.
func (c Claim) Validate() error {
	if err := validateName("consumer", c.Consumer); err != nil {
		return err
	}
	return validateName("id", c.ID)
}

// ValidateEntity checks what a store's Advance gets, as [Claim.Validate] does for Once.
func ValidateEntity(consumer, entity string) error {
	if err := validateName("consumer", consumer); err != nil {
		return err
	}
	return validateName("entity", entity)
}

func validateName(field, value string) error {
	var reason string
	switch {
	case value == "":
		reason = "is empty"
	case len(value) > MaxNameBytes:
		reason = fmt.Sprintf("has %d bytes, more than %d", len(value), MaxNameBytes)
	case !utf8.ValidString(value):
		reason = "is not UTF-8"
	case strings.IndexByte(value, 0) >= 0:
		reason = "contains a NUL byte"
	default:
		return nil
	}
	return classify.Permanent(&NameError{Field: field, Value: value[:min(len(value), MaxNameBytes)], Reason: reason})
}

// ErrTxEnded is returned by Once when the handler itself committed or rolled back the transaction.
// That is a mistake in the handler: the store ends the transaction, together with the claim. Stores mark
// it permanent, for the handler would do it again.
var ErrTxEnded = errors.New("inbox: the handler ended the transaction itself; return nil to commit and an error to roll back")

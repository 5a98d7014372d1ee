package poison

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// In bytes.
const (
	maxText      = 8 << 10 // what is read of an error's text
	maxKind      = 512     // what the fingerprint is made of, of the text
	slimError    = 256     // an error's text where room is short
	maxErrorType = 64
	maxClean     = 255 // a value that is short enough for any header
)

// textOf returns err's text, also if its method panics.
func textOf(err error) (text string) {
	defer func() {
		if value := recover(); value != nil {
			text = fmt.Sprintf("%T, whose Error method panicked: %v", err, value)
		}
	}()
	return err.Error()
}

// readable makes s fit for a header: valid UTF-8, and no control characters but those of layout.
func readable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r // of an invalid byte this is U+FFFD
	}, s)
}

// isClean tells whether s can be written into a header and be read back as it is.
func isClean(s string) bool {
	return len(s) <= maxClean && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// cut shortens s to at most n bytes, whole characters, with "..." where something is missing.
func cut(s string, n int) string {
	const mark = "..."
	if len(s) <= n {
		return s
	}
	if n <= len(mark) {
		return ""
	}
	end := n - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

var (
	uuids  = regexp.MustCompile(`[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	hexes  = regexp.MustCompile(`[0-9a-fA-F]{8,}`)
	digits = regexp.MustCompile(`[0-9]+`)
)

// normalise takes out of an error's text what differs from one failure to the next of its kind: UUIDs,
// hexadecimal ids and numbers.
func normalise(text string) string {
	text = uuids.ReplaceAllLiteralString(text, "#")
	text = hexes.ReplaceAllStringFunc(text, func(word string) string {
		if strings.ContainsAny(word, "0123456789") {
			return "#"
		}
		return word
	})
	return digits.ReplaceAllLiteralString(text, "#")
}

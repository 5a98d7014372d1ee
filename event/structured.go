package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	structuredPrefix = "application/cloudevents"
	structuredJSON   = "application/cloudevents+json"
)

var (
	errNotObject = errors.New("a structured event is one JSON object")
	errFormat    = errors.New("not supported: of the event formats only " + structuredJSON + " is, one event per message")
	errTwice     = errors.New("given more than once")
	errBothData  = errors.New("data and data_base64 exclude each other")
	errDataText  = errors.New("data that is not JSON must be a string, or data_base64")
	errBase64    = errors.New("not a string in base64")
	errSurrogate = errors.New("has half of a surrogate pair")
	errNoString  = errors.New("must be a string")
	errValueKind = errors.New("not an attribute value: those are strings, true, false and whole numbers")
)

func isStructured(contentType string) bool {
	contentType = strings.TrimLeft(contentType, " \t")
	return len(contentType) >= len(structuredPrefix) &&
		strings.EqualFold(contentType[:len(structuredPrefix)], structuredPrefix)
}

func checkFormat(contentType string) *Error {
	if t := mediaType(contentType); t != structuredJSON && t != structuredPrefix {
		return invalid(MetaContentType, contentType, errFormat)
	}
	return nil
}

// readStructured reads an event in the JSON format. The payload is checked as a whole first; then one
// walk over its members takes the attributes and leaves the data where it is.
func (e *Envelope) readStructured(payload []byte) *Error {
	if err := checkFormat(e.ContentType); err != nil {
		return err
	}
	e.ContentType = ""
	if !json.Valid(withoutBOM(payload)) {
		// Only now is it worth finding out what is wrong.
		err := json.Unmarshal(withoutBOM(payload), &json.RawMessage{})
		return invalid("payload", sizeOf(payload, structuredJSON), err)
	}
	m, ok := membersOf(payload)
	if !ok {
		return invalid("payload", sizeOf(payload, structuredJSON), errNotObject)
	}

	var have attribute
	var data, data64 []byte
	for {
		name, value, ok := m.next()
		if !ok {
			break
		}
		switch name {
		case "data":
			if data != nil {
				return invalid(name, "", errTwice)
			}
			data = value
			continue
		case "data_base64":
			if data64 != nil {
				return invalid(name, "", errTwice)
			}
			data64 = value
			continue
		}
		a := attributeOf(name)
		if _, ok := e.Extensions[name]; ok || a&have != 0 {
			return invalid(name, excerpt(value), errTwice)
		}
		text, err := attributeText(value)
		if err == nil && a&required != 0 && value[0] != '"' && value[0] != 'n' {
			err = errNoString
		}
		if err == nil && text != "" {
			err = e.set(a, name, text)
		}
		if err != nil {
			if text == "" {
				text = excerpt(value)
			}
			return invalid(name, text, err)
		}
		if text != "" {
			have |= a
		} else if a&required != 0 && string(value) != "null" {
			return invalid(name, "", errEmpty)
		}
	}
	if name := firstMissing(have); name != "" {
		return invalid(name, "", errMissing)
	}
	return e.readData(data, data64)
}

// readData finds the data, without a copy unless it is escaped or in base64.
func (e *Envelope) readData(data, data64 []byte) *Error {
	if string(data64) == "null" {
		data64 = nil
	}
	switch {
	case data != nil && data64 != nil:
		return invalid("data_base64", "", errBothData)
	case data64 != nil:
		text, err := stringBytes(data64)
		if err != nil {
			return invalid("data_base64", "", errBase64)
		}
		decoded := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
		n, err := base64.StdEncoding.Decode(decoded, text)
		if err != nil {
			return invalid("data_base64", "", fmt.Errorf("%w: %w", errBase64, err))
		}
		e.Data = decoded[:n]
	case data == nil:
		e.Data = nil
	case isJSON(e.ContentType):
		e.Data = data
	case string(data) == "null":
		e.Data = nil
	default:
		text, err := stringBytes(data)
		if err != nil {
			return invalid("data", sizeOf(data, e.ContentType), err)
		}
		e.Data = text
	}
	return nil
}

// attributeText gives the canonical string of an attribute's value; "" for null.
// Numbers are kept as they are written.
func attributeText(value []byte) (string, error) {
	switch value[0] {
	case '"':
		text, err := stringBytes(value)
		return string(text), err
	case 't', 'f':
		return string(value), nil
	case 'n':
		return "", nil
	case '{', '[':
		return "", errValueKind
	}
	if bytes.ContainsAny(value, ".eE") {
		return "", errValueKind
	}
	return string(value), nil
}

// stringBytes gives the text of a JSON string, which is part of value itself when nothing is escaped.
func stringBytes(value []byte) ([]byte, error) {
	if len(value) < 2 || value[0] != '"' {
		return nil, errDataText
	}
	if !utf8.Valid(value) {
		return nil, errUTF8
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return value[1 : len(value)-1 : len(value)-1], nil
	}
	var text string
	if err := json.Unmarshal(value, &text); err != nil {
		return nil, err
	}
	// encoding/json replaces half a surrogate pair: two ids could become one.
	if strings.ContainsRune(text, utf8.RuneError) && bytes.Contains(bytes.ToLower(value), []byte(`\ud`)) {
		return nil, errSurrogate
	}
	return []byte(text), nil
}

// structuredType finds the type of an event in the JSON format. It stops there.
func structuredType(contentType string, payload []byte) (string, *Error) {
	if err := checkFormat(contentType); err != nil {
		return "", err
	}
	m, ok := membersOf(payload)
	if !ok {
		return "", invalid("payload", sizeOf(payload, structuredJSON), errNotObject)
	}
	for {
		name, value, ok := m.next()
		if !ok {
			return "", nil
		}
		if name != "type" {
			continue
		}
		if value[0] != '"' {
			return "", invalid("type", excerpt(value), errNoString)
		}
		text, err := attributeText(value)
		if err != nil {
			return "", invalid("type", excerpt(value), err)
		}
		return text, nil
	}
}

// scanTwo finds two attributes of an event in the JSON format and stops when it has both. What is missing or malformed
// is "": of these only an extension may be other than a string.
func scanTwo(payload []byte, first, second string) (a, b string) {
	m, ok := membersOf(payload)
	for ok && (a == "" || b == "") {
		var name string
		var value []byte
		if name, value, ok = m.next(); !ok {
			break
		}
		if name != first && name != second || value[0] != '"' && name != "partitionkey" {
			continue
		}
		text, err := attributeText(value)
		switch {
		case err != nil:
		case name == first && a == "":
			a = text
		case name == second && b == "":
			b = text
		}
	}
	return a, b
}

// members walks the members of a JSON object. It finds them in a valid object; on anything else it
// ends early, but never goes out of bounds.
type members struct {
	b []byte
	i int
}

func membersOf(payload []byte) (members, bool) {
	m := members{b: withoutBOM(payload)}
	m.space()
	if m.peek() != '{' {
		return m, false
	}
	m.i++
	return m, true
}

// next returns a member's name and the bytes of its value, which are at least one.
func (m *members) next() (name string, value []byte, ok bool) {
	m.space()
	if m.peek() == ',' {
		m.i++
		m.space()
	}
	start := m.i
	if m.peek() != '"' || !m.skipString() {
		return "", nil, false
	}
	key := m.b[start:m.i]
	m.space()
	if m.peek() != ':' {
		return "", nil, false
	}
	m.i++
	m.space()
	start = m.i
	if !m.skipValue() || m.i == start {
		return "", nil, false
	}
	// Nothing that is appended to the value may run into what comes after it.
	return memberName(key), m.b[start:m.i:m.i], true
}

// memberName gives the name without an allocation when it is one that is looked for.
func memberName(key []byte) string {
	switch string(key) {
	case `"id"`:
		return "id"
	case `"source"`:
		return "source"
	case `"specversion"`:
		return "specversion"
	case `"type"`:
		return "type"
	case `"time"`:
		return "time"
	case `"subject"`:
		return "subject"
	case `"data"`:
		return "data"
	case `"datacontenttype"`:
		return "datacontenttype"
	}
	if name, err := stringBytes(key); err == nil {
		return string(name)
	}
	return string(key) // no attribute name either way: checkName says so
}

func (m *members) peek() byte {
	if m.i < len(m.b) {
		return m.b[m.i]
	}
	return 0
}

func (m *members) space() {
	for m.i < len(m.b) {
		switch m.b[m.i] {
		case ' ', '\t', '\r', '\n':
			m.i++
		default:
			return
		}
	}
}

// skipString goes behind the string that begins here.
func (m *members) skipString() bool {
	for i := m.i + 1; i < len(m.b); i++ {
		switch m.b[i] {
		case '\\':
			i++
		case '"':
			m.i = i + 1
			return true
		}
	}
	return false
}

// skipValue goes behind the value that begins here.
func (m *members) skipValue() bool {
	switch m.peek() {
	case '"':
		return m.skipString()
	case '{', '[':
		for depth := 0; m.i < len(m.b); {
			switch m.b[m.i] {
			case '"':
				if !m.skipString() {
					return false
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			m.i++
			if depth == 0 {
				return true
			}
		}
		return false
	}
	for m.i < len(m.b) {
		switch m.b[m.i] {
		case ',', '}', ']', ' ', '\t', '\r', '\n':
			return true
		}
		m.i++
	}
	return false
}

// withoutBOM drops the mark that some producers put before UTF-8, which JSON does not allow for but
// lets a reader ignore.
func withoutBOM(b []byte) []byte { return bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")) }

// excerpt is as much of value as an error shows, and a byte more, so that it is seen to be cut.
func excerpt(value []byte) string { return string(value[:min(len(value), maxErrorValue+1)]) }

// sizeOf describes data in an error, where its content does not belong.
func sizeOf(data []byte, contentType string) string {
	s := strconv.Itoa(len(data)) + " bytes"
	if contentType != "" {
		s += " of " + contentType
	}
	return s
}

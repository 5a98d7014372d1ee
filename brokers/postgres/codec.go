package postgres

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// encode returns the columns uuid and metadata of m, see the schema.
func encode(m *message.Message) (uuid, metadata string) {
	if !isText(m.UUID) {
		return encodeBinary(m)
	}
	if len(m.Metadata) == 0 {
		return m.UUID, "{}"
	}
	size := 2
	for k, v := range m.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return encodeBinary(m)
		}
		size += len(k) + len(v) + 6
	}
	b := make([]byte, 0, size+size/8)
	b = append(b, '{')
	for k, v := range m.Metadata {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = appendString(b, v)
	}
	return m.UUID, string(append(b, '}'))
}

// isText tells whether Postgres can hold s as text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// appendString appends s, which is valid UTF-8, as JSON.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// encodeBinary keeps bytes that are not text. The column uuid is then for people only.
func encodeBinary(m *message.Message) (uuid, metadata string) {
	list := make([][]byte, 0, 1+2*len(m.Metadata))
	list = append(list, []byte(m.UUID))
	for k, v := range m.Metadata {
		list = append(list, []byte(k), []byte(v))
	}
	b := []byte{'['}
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, s)
		b = append(b, '"')
	}
	return strings.ReplaceAll(strings.ToValidUTF8(m.UUID, "?"), "\x00", "?"), string(append(b, ']'))
}

// decode fills m from the columns. With an error m has the column uuid and no metadata.
func decode(m *message.Message, uuid, metadata string) error {
	m.UUID = uuid
	if simple(m.Metadata, metadata) {
		return nil
	}
	clear(m.Metadata)
	if err := decodeAny(m, metadata); err != nil {
		m.UUID = uuid
		clear(m.Metadata)
		return fmt.Errorf("postgres: metadata %.80q: %w", metadata, err)
	}
	return nil
}

// simple reads an object of strings without white space and escapes, which is most of them. It reports
// whether metadata is one.
func simple(into message.Metadata, metadata string) bool {
	if len(metadata) < 2 || metadata[0] != '{' || metadata[len(metadata)-1] != '}' ||
		strings.IndexByte(metadata, '\\') >= 0 {
		return false
	}
	rest := metadata[1 : len(metadata)-1]
	if rest == "" {
		return true
	}
	for {
		var key, value string
		var ok bool
		if key, rest, ok = quoted(rest); !ok || rest == "" || rest[0] != ':' {
			return false
		}
		if value, rest, ok = quoted(rest[1:]); !ok {
			return false
		}
		into[key] = value
		if rest == "" {
			return true
		}
		if rest[0] != ',' {
			return false
		}
		rest = rest[1:]
	}
}

// quoted cuts the quoted string at the beginning of s, which has no escapes.
func quoted(s string) (text, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	text, rest, ok = strings.Cut(s[1:], `"`)
	for i := range len(text) {
		if text[i] < 0x20 { // JSON wants it escaped
			return "", "", false
		}
	}
	return text, rest, ok
}

func decodeAny(m *message.Message, metadata string) error {
	if !strings.HasPrefix(strings.TrimLeft(metadata, " \t\r\n"), "[") {
		var object map[string]*string
		if err := json.Unmarshal([]byte(metadata), &object); err != nil {
			return err
		}
		if object == nil {
			return errors.New("null, want a JSON object of strings")
		}
		for k, v := range object {
			if v == nil {
				return fmt.Errorf("the value of %q is null, want a string", k)
			}
			m.Metadata[k] = *v
		}
		return nil
	}
	var list [][]byte
	if err := json.Unmarshal([]byte(metadata), &list); err != nil {
		return err
	}
	if len(list)%2 == 0 {
		return fmt.Errorf("an array of %d strings, want a uuid and pairs of key and value", len(list))
	}
	m.UUID = string(list[0])
	for i := 1; i < len(list); i += 2 {
		m.Metadata[string(list[i])] = string(list[i+1])
	}
	return nil
}

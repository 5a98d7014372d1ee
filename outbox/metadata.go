package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// EncodeMetadata returns metadata as the JSON object that the stores keep. Nil and empty are "{}".
// The strings must be valid UTF-8, which [Add] checks.
func EncodeMetadata(metadata map[string]string) (string, error) {
	if len(metadata) == 0 {
		return "{}", nil
	}
	if text, ok := encodePlain(metadata); ok {
		return text, nil
	}
	text, err := json.Marshal(metadata)
	if err != nil {
		return "", fmt.Errorf("outbox: encode metadata: %w", err)
	}
	return string(text), nil
}

// encodePlain encodes strings of printable ASCII without characters to escape, which nearly all are.
func encodePlain(metadata map[string]string) (string, bool) {
	size := 1
	for k, v := range metadata {
		if !plain(k) || !plain(v) {
			return "", false
		}
		size += len(k) + len(v) + len(`"":"",`)
	}
	text := make([]byte, 1, size)
	text[0] = '{'
	for k, v := range metadata {
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = append(text, '"')
		text = append(text, k...)
		text = append(text, `":"`...)
		text = append(text, v...)
		text = append(text, '"')
	}
	return string(append(text, '}')), true
}

func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// DecodeMetadata is the inverse of [EncodeMetadata]. The result is never nil, and keeps nothing of text.
func DecodeMetadata(text []byte) (map[string]string, error) {
	if metadata, ok := decodePlain(text); ok {
		return metadata, nil
	}
	metadata := map[string]string{}
	if err := json.Unmarshal(text, &metadata); err != nil {
		return nil, fmt.Errorf("outbox: decode metadata %.80q: %w", text, err)
	}
	return metadata, nil
}

// decodePlain decodes what EncodeMetadata makes of strings without characters to escape, which is nearly all
// of it, and gives up on the rest. All strings share one copy of text.
func decodePlain(text []byte) (map[string]string, bool) {
	if len(text) < 2 || text[0] != '{' || bytes.IndexByte(text, '\\') >= 0 {
		return nil, false
	}
	rest := string(text[1:])
	metadata := make(map[string]string, bytes.Count(text, []byte(`":"`)))
	for rest != "}" {
		key, after, ok := quoted(rest)
		if !ok || after == "" || after[0] != ':' {
			return nil, false
		}
		value, after, ok := quoted(after[1:])
		if !ok || after == "" || after[0] != ',' && after != "}" {
			return nil, false
		}
		metadata[key] = value
		if rest = after; rest[0] == ',' {
			if rest = rest[1:]; rest == "}" {
				return nil, false
			}
		}
	}
	return metadata, true
}

// quoted takes a string off the front of text. Control characters and bytes that are not ASCII are left to
// encoding/json.
func quoted(text string) (s, rest string, ok bool) {
	if text == "" || text[0] != '"' {
		return "", "", false
	}
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return text[1:i], text[i+1:], true
		case c < ' ' || c > '~':
			return "", "", false
		}
	}
	return "", "", false
}

package event

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Codec turns Go values into data and back. It is safe for concurrent use.
type Codec interface {
	// ContentType is the media type that the codec writes and that it is chosen by.
	ContentType() string

	// Marshal encodes v. The result is the caller's.
	Marshal(v any) ([]byte, error)

	// Unmarshal decodes data into v, a pointer to the type that [Decode] was asked for. data is the
	// message's own: Unmarshal neither changes nor keeps it. It is never nil, but it may be empty.
	// Where it stands for no value, Unmarshal returns [ErrNoData].
	Unmarshal(data []byte, v any) error
}

// AliasCodec is a [Codec] that also reads other media types than the one it writes.
type AliasCodec interface {
	Codec
	ContentTypes() []string
}

// JSON is the default codec: encoding/json, so unknown fields are passed over, and a number in an any
// becomes a float64. Beyond encoding/json it refuses data that is not UTF-8, which would be altered
// without notice; it passes over a byte order mark; and null at the top is [ErrNoData], where
// encoding/json would leave a struct as it is and let nothing pass for an event full of zeroes.
var JSON AliasCodec = jsonCodec{}

type jsonCodec struct{}

const jsonType = "application/json"

func (jsonCodec) ContentType() string { return jsonType }

func (jsonCodec) ContentTypes() []string { return []string{"text/json"} }

func (jsonCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec) Unmarshal(data []byte, v any) error {
	data = withoutBOM(data)
	if text := bytes.TrimSpace(data); len(text) == 0 || string(text) == "null" {
		return ErrNoData
	}
	if !utf8.Valid(data) {
		return errUTF8
	}
	return json.Unmarshal(data, v)
}

// mediaType gives a content type without its parameters, in lower case.
func mediaType(contentType string) string {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// isJSON tells whether data of the content type is JSON, which it is if there is none.
func isJSON(contentType string) bool {
	switch t := mediaType(contentType); t {
	case "", jsonType, "text/json":
		return true
	default:
		return strings.HasSuffix(t, "+json")
	}
}

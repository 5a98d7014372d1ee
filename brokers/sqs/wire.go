package sqs

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// The message attributes and fields of our own. The wire format is a contract; doc.go describes it.
const (
	attrUUID = "_watermill_message_uuid"
	attrWire = "headrace_wire"

	fieldUUID = "uuid"
	fieldBody = "body"
	fieldMeta = "m."

	bodyNil    = "nil"
	bodyEmpty  = "empty"
	bodyBase64 = "base64"
	bodyAbsent = "-" // for SQS takes no empty body
)

// attribute is a message attribute. A binary one has its bytes.
type attribute struct{ name, value string }

// typeString is the data type of all attributes that we send.
const typeString = "String"

// encode returns m's body and attributes, and how much SQS will count them.
func encode(m *message.Message) (body string, attributes []attribute, size int) {
	wire := url.Values{}
	switch {
	case m.Payload == nil:
		body = bodyAbsent
		wire.Set(fieldBody, bodyNil)
	case len(m.Payload) == 0:
		body = bodyAbsent
		wire.Set(fieldBody, bodyEmpty)
	case isText(string(m.Payload)):
		body = string(m.Payload)
	default:
		body = base64.StdEncoding.EncodeToString(m.Payload)
		wire.Set(fieldBody, bodyBase64)
	}
	if m.UUID != "" && isText(m.UUID) {
		attributes = append(attributes, attribute{attrUUID, m.UUID})
	} else {
		wire.Set(fieldUUID, m.UUID)
	}
	for k, v := range m.Metadata {
		if v != "" && isText(v) && isAttributeName(k) {
			attributes = append(attributes, attribute{k, v})
		} else {
			wire.Set(fieldMeta+k, v)
		}
	}
	if room := maxAttributes - min(1, len(wire)); len(attributes) > room {
		// Events keep their own attributes, by which queues can be filtered.
		slices.SortFunc(attributes, func(a, b attribute) int {
			if x, y := rank(a.name), rank(b.name); x != y {
				return x - y
			}
			return strings.Compare(a.name, b.name)
		})
		room = maxAttributes - 1
		for _, a := range attributes[room:] {
			wire.Set(fieldMeta+a.name, a.value)
		}
		attributes = attributes[:room]
	}
	if len(wire) > 0 {
		attributes = append(attributes, attribute{attrWire, wire.Encode()})
	}
	size = len(body)
	for _, a := range attributes {
		size += len(a.name) + len(typeString) + len(a.value)
	}
	return body, attributes, size
}

func rank(name string) int {
	switch {
	case name == attrUUID:
		return 0
	case strings.HasPrefix(name, "ce_"):
		return 1
	}
	return 2
}

// decode returns the message of a body and its attributes. fallbackID is the id of a message that says none. It cannot
// fail: with an error the payload is the body as it came.
func decode(body string, attributes []attribute, fallbackID string) (*message.Message, error) {
	m := message.NewMessage(fallbackID, message.Payload(body))
	m.Metadata = make(message.Metadata, len(attributes))
	packed := ""
	for _, a := range attributes {
		switch a.name {
		case attrUUID:
			m.UUID = a.value
		case attrWire:
			packed = a.value
		default:
			m.Metadata[a.name] = a.value
		}
	}
	if packed == "" {
		return m, nil
	}
	wire, err := url.ParseQuery(packed)
	if err != nil {
		m.Metadata[attrWire] = packed
		return m, fmt.Errorf("sqs: attribute %s is %.100q: %w", attrWire, packed, err)
	}
	for field, values := range wire {
		if key, ok := strings.CutPrefix(field, fieldMeta); ok {
			m.Metadata[key] = values[0]
		}
	}
	if wire.Has(fieldUUID) {
		m.UUID = wire.Get(fieldUUID)
	}
	switch how := wire.Get(fieldBody); how {
	case "":
	case bodyNil:
		m.Payload = nil
	case bodyEmpty:
		m.Payload = message.Payload{}
	case bodyBase64:
		payload, err := base64.StdEncoding.DecodeString(body)
		if err != nil {
			return m, fmt.Errorf("sqs: the body is not base64, as %s says: %w", attrWire, err)
		}
		m.Payload = payload
	default:
		return m, fmt.Errorf("sqs: attribute %s says that the body is %q: want %s, %s or %s", attrWire, how, bodyNil, bodyEmpty, bodyBase64)
	}
	return m, nil
}

// isText tells whether SQS takes s for text: the characters of XML 1.0.
func isText(s string) bool {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' && c != '\t' && c != '\n' && c != '\r' {
				return false
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == 0xFFFE || r == 0xFFFF {
			return false
		}
		i += n
	}
	return true
}

const maxAttributeName = 256 // bytes

// isAttributeName tells whether a metadata key can be an attribute of its own.
func isAttributeName(k string) bool {
	if k == "" || len(k) > maxAttributeName || k == attrUUID || k == attrWire ||
		k[0] == '.' || k[len(k)-1] == '.' || strings.Contains(k, "..") {
		return false
	}
	for _, reserved := range []string{"aws.", "amazon."} {
		if len(k) >= len(reserved) && strings.EqualFold(k[:len(reserved)], reserved) {
			return false
		}
	}
	for _, r := range k {
		if r != '.' && !isNameRune(r) {
			return false
		}
	}
	return true
}

// TooLargeError is the error of a message that no queue takes. Nothing of its call was sent.
type TooLargeError struct {
	UUID        string
	Size, Limit int // bytes, attributes included; Limit is Config.MaxMessageBytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("message %q has %d bytes with its attributes, Config.MaxMessageBytes is %d", e.UUID, e.Size, e.Limit)
}

var errNoNotification = errors.New("sqs: the body is no SNS notification, and Config.Envelope is wrapped")

package pulsar

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
)

// The properties of our own. The wire format is a contract; doc.go describes it.
const (
	propertyUUID  = "_watermill_message_uuid"
	propertyWire  = "headrace-wire"
	propertyDelay = "headrace-delay"

	reservedPrefix = "headrace-"
)

// What is in the form of propertyWire.
const (
	wirePayload = "payload"
	wireUUID    = "uuid"
	wireMeta    = "m." // and the key
	payloadNil  = "nil"
)

// reserved tells whether a property of this name is something else than metadata.
func reserved(name string) bool {
	return name == propertyUUID || strings.HasPrefix(name, reservedPrefix)
}

// encode returns m for the wire, as a copy. The error tells what Pulsar cannot carry.
func encode(m *message.Message, key string, most int) (*pulsarclient.ProducerMessage, error) {
	form := url.Values{}
	properties := make(map[string]string, len(m.Metadata)+2)
	if utf8.ValidString(m.UUID) {
		properties[propertyUUID] = m.UUID
	} else {
		form.Set(wireUUID, m.UUID)
	}
	for k, v := range m.Metadata {
		if reserved(k) || k == "" || !utf8.ValidString(k) || !utf8.ValidString(v) {
			form.Set(wireMeta+k, v)
		} else {
			properties[k] = v
		}
	}
	if m.Payload == nil {
		form.Set(wirePayload, payloadNil)
	}
	if len(form) > 0 {
		properties[propertyWire] = form.Encode()
	}
	out := &pulsarclient.ProducerMessage{Payload: append([]byte{}, m.Payload...), Properties: properties, Key: key}
	if !utf8.ValidString(key) {
		// The partition key is text. The ordering key is bytes, and the one that the server looks at.
		out.Key, out.OrderingKey = base64.StdEncoding.EncodeToString([]byte(key)), key
	}
	if size := sizeOf(out); size > most {
		return nil, fmt.Errorf("it has %d bytes with its key, id and metadata, which count twice: want at most %d, see Config.MaxMessageBytes", size, most)
	}
	return out, nil
}

// propertyOverhead is more than a property takes beyond its key and value.
const propertyOverhead = 16

// sizeOf is the size of m as the only message of a batch, whose own metadata have the key and the properties again.
func sizeOf(m *pulsarclient.ProducerMessage) int {
	size := len(m.Key) + len(m.OrderingKey)
	for k, v := range m.Properties {
		size += len(k) + len(v) + propertyOverhead
	}
	return len(m.Payload) + 2*size
}

var (
	errContradiction = fmt.Errorf("pulsar: the property %q says that there is no payload, and there is one", propertyWire)
	errEncrypted     = errors.New("pulsar: the message is encrypted, and could not be decrypted")
)

// decode returns what came over the wire; nothing of it is shared with in. It cannot fail: an error tells of a message that contradicts
// itself; its payload is what came.
func decode(in pulsarclient.Message) (m *message.Message, err error) {
	m = message.NewMessage("", append([]byte{}, in.Payload()...))
	properties := in.Properties()
	m.UUID = properties[propertyUUID]
	text, encoded := properties[propertyWire]
	form, parsed := parseForm(text)
	switch {
	case in.GetEncryptionContext() != nil:
		err = errEncrypted
	case encoded && !parsed:
		err = fmt.Errorf("pulsar: the property %q is no form as this adapter makes them: %.100q", propertyWire, text)
	case form.Get(wirePayload) == payloadNil && len(m.Payload) > 0:
		err = errContradiction
	}
	for k, v := range properties {
		if k != propertyUUID && (k != propertyWire || err != nil) {
			m.Metadata[k] = v
		}
	}
	if err != nil {
		return m, err
	}
	for name, values := range form {
		key, isMeta := strings.CutPrefix(name, wireMeta)
		switch {
		case isMeta:
			m.Metadata[key] = values[0]
		case name == wireUUID:
			m.UUID = values[0]
		case name == wirePayload:
			m.Payload = nil
		}
	}
	return m, nil
}

// parseForm parses what encode has written.
func parseForm(text string) (url.Values, bool) {
	form, err := url.ParseQuery(text)
	if err != nil {
		return nil, false
	}
	for name, values := range form {
		ours := name == wireUUID || name == wirePayload && values[0] == payloadNil || strings.HasPrefix(name, wireMeta)
		if !ours || len(values) != 1 {
			return nil, false
		}
	}
	return form, true
}

// keyOf is the message's key, or nil.
func keyOf(in pulsarclient.Message) []byte {
	switch {
	case in.OrderingKey() != "":
		return []byte(in.OrderingKey())
	case in.Key() != "":
		return []byte(in.Key())
	}
	return nil
}

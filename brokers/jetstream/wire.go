package jetstream

import (
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers"
)

// The headers of our own. The wire format is a contract; doc.go describes it.
const (
	headerUUID    = "_watermill_message_uuid" // as watermill-nats writes it
	headerOddUUID = "headrace-uuid"           // percent-encoded; for a UUID that headerUUID cannot hold
	headerOdd     = "headrace-meta"
	headerPayload = "headrace-payload"
	payloadNil    = "nil"

	headerEventContentType = "ce-datacontenttype"
	contentType            = "content-type"
)

// encode returns m as it goes over the wire.
func encode(topic string, m *message.Message) *nats.Msg {
	h := make(nats.Header, len(m.Metadata)+1)
	if m.UUID != "" {
		if plainValue(m.UUID) {
			h[headerUUID] = []string{m.UUID}
		} else {
			h[headerOddUUID] = []string{escape(m.UUID)}
		}
	}
	_, event := m.Metadata["ce_specversion"]
	for k, v := range m.Metadata {
		attribute, isAttribute := strings.CutPrefix(k, "ce_")
		switch {
		case k == contentType && event && !structured(v):
			h[headerEventContentType] = []string{escapeAttribute(v)}
		case k == contentType && plainValue(v):
			h[contentType] = []string{v}
		case isAttribute && isAttributeName(attribute):
			h["ce-"+attribute] = []string{escapeAttribute(v)}
		case plainKey(k) && plainValue(v):
			h[k] = []string{v}
		default:
			h[headerOdd] = append(h[headerOdd], escape(k)+"="+escape(v))
		}
	}
	slices.Sort(h[headerOdd])
	if m.Payload == nil {
		h[headerPayload] = []string{payloadNil}
	}
	return &nats.Msg{Subject: topic, Header: h, Data: m.Payload}
}

// decode returns what came over the wire. It never fails: with an error, the payload is what was received and the
// metadata what could be read. headers is nil where the metadata says it all.
func decode(in *nats.Msg) (m *message.Message, headers []brokers.Header, err error) {
	m = message.NewMessage("", in.Data)
	if m.Payload == nil {
		m.Payload = message.Payload{}
	}
	lossy := false
	set := func(key, value string) {
		if _, there := m.Metadata[key]; there {
			lossy = true
			return
		}
		m.Metadata[key] = value
	}
	isNil := false
	keys := slices.Sorted(maps.Keys(in.Header))
	for _, k := range keys {
		values := in.Header[k]
		if len(values) == 0 {
			continue
		}
		lossy = lossy || len(values) > 1 && k != headerOdd
		attribute, isAttribute := strings.CutPrefix(k, "ce-")
		switch {
		case k == headerUUID:
			m.UUID = values[0]
		case k == headerOddUUID:
			m.UUID = unescapeAttribute(values[0])
		case k == headerPayload && values[0] == payloadNil:
			isNil = true
		case k == headerOdd:
			for _, v := range values {
				key, value, e := unescapeEntry(v)
				if e != nil {
					err = errors.Join(err, fmt.Errorf("jetstream: header %s: %q: %w", headerOdd, v, e))
					continue
				}
				set(key, value)
			}
		case k == headerEventContentType:
			set(contentType, unescapeAttribute(values[0]))
		case isAttribute && isAttributeName(attribute):
			set("ce_"+attribute, unescapeAttribute(values[0]))
		case strings.EqualFold(k, contentType):
			set(contentType, values[0])
		default:
			set(k, values[0])
		}
	}
	if isNil {
		if len(in.Data) > 0 {
			err = errors.Join(err, fmt.Errorf("jetstream: header %s says that there is no payload, but it has %d bytes",
				headerPayload, len(in.Data)))
		} else {
			m.Payload = nil
		}
	}
	if lossy || err != nil {
		for _, k := range keys {
			for _, v := range in.Header[k] {
				headers = append(headers, brokers.Header{Key: k, Value: []byte(v)})
			}
		}
	}
	return m, headers, err
}

func structured(contentType string) bool {
	return strings.HasPrefix(strings.ToLower(contentType), "application/cloudevents")
}

// isAttributeName tells whether s can be the name of a CloudEvents attribute. datacontenttype has a key of its own.
func isAttributeName(s string) bool {
	return s != "" && s != "datacontenttype" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// plainKey tells whether the metadata key k can be a header as it is.
func plainKey(k string) bool {
	if k == "" {
		return false
	}
	for i := range len(k) {
		if c := k[i]; !isAlnum(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	lower := strings.ToLower(k)
	switch lower {
	case contentType, "status", "description", headerUUID:
		return false // they mean something to us or to clients
	}
	return !strings.HasPrefix(lower, "nats-") && !strings.HasPrefix(lower, "ce-") && !strings.HasPrefix(lower, "headrace-")
}

// plainValue tells whether a header brings v back as it is.
func plainValue(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(v) && textproto.TrimString(v) == v
}

func isAlnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// escape percent-encodes all but letters, digits and a few signs that stand between them.
func escape(s string) string {
	return percent(s, func(c byte) bool { return isAlnum(c) || c == '-' || c == '_' || c == '.' })
}

// escapeAttribute percent-encodes as CloudEvents' NATS and HTTP bindings want it: space, double quote, percent and all
// outside of printable ASCII.
func escapeAttribute(s string) string {
	return percent(s, func(c byte) bool { return '!' <= c && c <= '~' && c != '"' && c != '%' })
}

func percent(s string, keep func(byte) bool) string {
	const hex = "0123456789ABCDEF"
	i := 0
	for i < len(s) && keep(s[i]) {
		i++
	}
	if i == len(s) {
		return s
	}
	b := append(make([]byte, 0, len(s)+16), s[:i]...)
	for ; i < len(s); i++ {
		if c := s[i]; keep(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// unescapeAttribute undoes escapeAttribute, and leaves alone what is no percent-encoding.
func unescapeAttribute(s string) string {
	v, _ := unescape(s)
	return v
}

// unescape undoes percent-encoding. It reports whether all of it was well-formed.
func unescape(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, true
	}
	ok := true
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 < len(s) {
			hi, okHi := unhex(s[i+1])
			lo, okLo := unhex(s[i+2])
			if okHi && okLo {
				b = append(b, hi<<4|lo)
				i += 2
				continue
			}
		}
		ok = false
		b = append(b, '%')
	}
	return string(b), ok
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

var errEntry = errors.New(`not "key=value" in percent-encoding`)

func unescapeEntry(s string) (key, value string, err error) {
	k, v, found := strings.Cut(s, "=")
	key, okKey := unescape(k)
	value, okValue := unescape(v)
	if !found || !okKey || !okValue {
		return "", "", errEntry
	}
	return key, value, nil
}

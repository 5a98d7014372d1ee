package jetstream

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/headrace-go/headrace/classify"
)

// maxName is the longest name of a stream or durable that the server takes.
const maxName = 255

// checkTopic tells whether topic can be a subject.
func checkTopic(topic string) error {
	refuse := func(why string) error {
		return classify.Permanent(fmt.Errorf("jetstream: topic %q cannot be a NATS subject: %s", topic, why))
	}
	switch {
	case topic == "":
		return refuse("it is empty")
	case !utf8.ValidString(topic):
		return refuse("it is not UTF-8")
	case strings.HasPrefix(topic, "$") || strings.HasPrefix(topic, "_"):
		return refuse("subjects that begin with $ or _ are NATS's own")
	case strings.ContainsAny(topic, "*>"):
		return refuse("it has a wildcard (* or >)")
	case strings.HasPrefix(topic, ".") || strings.HasSuffix(topic, ".") || strings.Contains(topic, ".."):
		return refuse("it has an empty token between dots")
	case strings.ContainsFunc(topic, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return refuse("it has a space or a control character")
	case len(topic) > maxName:
		return refuse(fmt.Sprintf("it has %d bytes, more than %d", len(topic), maxName))
	}
	return nil
}

// assetName writes name, which is that of a kind of thing, as a stream or a durable can be named.
func assetName(kind, name string) (string, error) {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r == utf8.RuneError || unicode.IsSpace(r) || unicode.IsControl(r) || r == '*' || r == '>':
			return "", fmt.Errorf("jetstream: %s %q: a NATS name cannot have the character %q", kind, name, r)
		case r == '.' || r == '/' || r == '\\':
			b.WriteByte('_')
		default:
			b.WriteRune(r)
		}
	}
	if b.Len() > maxName {
		return "", fmt.Errorf("jetstream: %s %q: the name has %d bytes, more than %d", kind, name, b.Len(), maxName)
	}
	return b.String(), nil
}

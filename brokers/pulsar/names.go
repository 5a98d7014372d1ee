package pulsar

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// delaySuffix ends the names of the topics of delayed messages. They are a contract: other versions find them by it.
const delaySuffix = "-headrace-delay"

// maxName bounds the names of topics and consumers: the server has them in paths of its metadata store.
const maxName = 1024

// delayTopic keeps consumers and topics apart whatever is in their names: the consumer's part has no "-" and no "/".
func delayTopic(topic, consumer string) string {
	return topic + "-" + strings.NewReplacer("%", "%25", "-", "%2D", "/", "%2F", ":", "%3A").Replace(consumer) + delaySuffix
}

func checkName(what, name string) error {
	switch {
	case name == "":
		return errors.New("the name of the " + what + " is empty")
	case len(name) > maxName:
		return fmt.Errorf("the name of the %s has %d bytes, %.60q...: want at most %d", what, len(name), name, maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Errorf("the name of the %s is %q: want UTF-8 without control characters", what, name)
	}
	return nil
}

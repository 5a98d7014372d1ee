package amqp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The names of what the broker declares. They are a contract: other versions find the same things by them.
const (
	maxName = 255 // AMQP's short strings

	unroutedSuffix = "/unrouted!"      // of a topic: the exchange and the queue of what nobody is bound to get
	lockPrefix     = "headrace.lock/"  // and a topic: an exclusive queue, while its backlog is handed over
	delayPrefix    = "headrace.delay." // and a level
)

// queueName keeps consumers and topics apart whatever is in their names: the consumer "a/b" of topic "c" is not the consumer
// "a" of topic "b/c". A "!" in the consumer's part is escaped as well, so that no queue has the name of a topic's backlog.
func queueName(consumer, topic string) string {
	escape := strings.NewReplacer("%", "%25", "/", "%2F", "!", "%21").Replace
	return escape(topic) + "/" + escape(consumer)
}

func unroutedName(topic string) string { return topic + unroutedSuffix }

func delayName(level int) string { return delayPrefix + strconv.Itoa(level) }

// checkTopic says why topic is no name for an exchange.
func checkTopic(topic string) error {
	switch {
	case topic == "":
		return errors.New("the topic is empty")
	case strings.HasPrefix(topic, "amq."):
		return fmt.Errorf(`the topic is %q: names that begin with "amq." are the server's`, topic)
	}
	return checkName("topic", topic, maxName-len(unroutedSuffix))
}

func checkName(what, name string, most int) error {
	switch {
	case name == "":
		return fmt.Errorf("the name of the %s is empty", what)
	case len(name) > most:
		return fmt.Errorf("the name of the %s has %d bytes, %.60q...: want at most %d", what, len(name), name, most)
	case !utf8.ValidString(name):
		return fmt.Errorf("the name of the %s is %q: want UTF-8", what, name)
	}
	return nil
}

// shortKey is a routing key for any key.
func shortKey(key string) string {
	if len(key) <= maxName {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

package sqs

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	maxName    = 80 // bytes of a queue's name, the suffix included
	fifoSuffix = ".fifo"
	hashLen    = 12 // hex digits of the hash in a name: 48 bits
)

// queueName is the default name of a queue: the topic's, or the consumer's and the topic's. Where that is no name it is
// made one, and a hash of what it was is appended.
func queueName(topic, consumer string, fifo bool) string {
	limit, suffix := maxName, ""
	if fifo {
		limit, suffix = maxName-len(fifoSuffix), fifoSuffix
		topic = strings.TrimSuffix(topic, fifoSuffix)
	}
	plain := topic
	if consumer != "" {
		plain = consumer + "-" + topic
	}
	name := strings.Map(func(r rune) rune {
		if isNameRune(r) {
			return r
		}
		return '-'
	}, plain)
	// A pair always has the hash: "a-b" of "c" and "a" of "b-c" would have one name without.
	if name == plain && len(name) <= limit && consumer == "" && name != "" {
		return name + suffix
	}
	sum := sha256.Sum256([]byte(consumer + "\x00" + topic))
	hash := hex.EncodeToString(sum[:])[:hashLen]
	return name[:min(len(name), limit-hashLen-1)] + "-" + hash + suffix
}

func isNameRune(r rune) bool {
	return r == '-' || r == '_' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
}

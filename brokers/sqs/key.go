package sqs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
)

// A message group is the key where that can be one. Groups of our own making begin with one of these.
const (
	groupNone   = "headrace-none-"   // and a random text: no key, so a group of its own
	groupHashed = "headrace-sha256-" // and the hash of a key that cannot be a group
	maxGroup    = 128                // bytes
)

// groupOf is the message group of a key.
func groupOf(key []byte) string {
	if key == nil {
		return groupNone + rand.Text()
	}
	if g := string(key); isGroup(g) && !strings.HasPrefix(g, groupNone) && !strings.HasPrefix(g, groupHashed) {
		return g
	}
	return groupHashed + hash(string(key))
}

// isGroup tells whether s can be a message group or a deduplication id.
func isGroup(s string) bool {
	if s == "" || len(s) > maxGroup {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// keyOf is the key of a message that came in a group. The one in the message is believed if it leads to that group.
func keyOf(group string, m *message.Message, key func(*message.Message) []byte) []byte {
	if group == "" || strings.HasPrefix(group, groupNone) {
		return nil
	}
	if k := key(m); k != nil && groupOf(k) == group {
		return k
	}
	return []byte(group)
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

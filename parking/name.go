package parking

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/headrace-go/headrace/inbox"
)

const hashed = "sha256:"

// Name is how a key is kept and listed: the key itself, or "sha256:" and its hash if it is longer than
// [inbox.MaxNameBytes], has anything but printable ASCII in it, or looks like such a hash. Different keys have
// different names. The form is frozen: it is in databases.
func Name(key string) string {
	if len(key) > inbox.MaxNameBytes || strings.HasPrefix(key, hashed) || !isPrintable(key) {
		sum := sha256.Sum256([]byte(key))
		return hashed + hex.EncodeToString(sum[:])
	}
	return key
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

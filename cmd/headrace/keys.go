package main

import (
	"encoding/base64"
	"strings"

	"github.com/headrace-go/headrace/deadletter"
)

// protection reads the keys of encrypted dead letters from HEADRACE_DEADLETTER_KEYS (ID=BASE64, the first one seals, with commas
// between) and HEADRACE_DEADLETTER_BLIND (BASE64). They are no flags: other users of the machine can see those.
func (a *app) protection() (deadletter.Protection, error) {
	keys, blind := a.getenv("HEADRACE_DEADLETTER_KEYS"), a.getenv("HEADRACE_DEADLETTER_BLIND")
	if keys == "" && blind == "" {
		return deadletter.Protection{}, nil
	}
	secret, err := base64.StdEncoding.DecodeString(blind)
	if err != nil {
		return deadletter.Protection{}, usage("HEADRACE_DEADLETTER_BLIND is not base64")
	}
	var list []deadletter.Key
	for entry := range strings.SplitSeq(keys, ",") {
		id, text, found := strings.Cut(entry, "=")
		if !found { // it may be a key
			return deadletter.Protection{}, usage("HEADRACE_DEADLETTER_KEYS: an entry is not ID=BASE64")
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return deadletter.Protection{}, usage("HEADRACE_DEADLETTER_KEYS: the key %q is not base64", id)
		}
		list = append(list, deadletter.Key{ID: id, Secret: key})
	}
	c, err := deadletter.NewCipher(secret, list...)
	if err != nil {
		return deadletter.Protection{}, usage("HEADRACE_DEADLETTER_KEYS, HEADRACE_DEADLETTER_BLIND: %w", err)
	}
	return deadletter.Protection{Cipher: c}, nil
}

package main

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/deadletter"
)

func TestEncryptedLettersAreWorkedWithTheirKeys(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.redriveTopic()
	s.env["HEADRACE_DEADLETTER_KEYS"] = "k-1=" + base64.StdEncoding.EncodeToString(deadletter.NewSecret())
	s.env["HEADRACE_DEADLETTER_BLIND"] = base64.StdEncoding.EncodeToString(deadletter.NewSecret())
	s.indexes()
	id := strings.Fields(strings.Split(s.must(exitDone, "dlt", "ls", "--key", "order-3").out, "\n")[1])[0]
	if got := s.must(exitDone, "dlt", "show", id, "--payload").out; got != `{"order_id":"3","cents":4990}` {
		t.Errorf("payload %q", got)
	}
	if r := s.run("dlt", "ls", "--text", "warehouse"); r.code == exitDone || !strings.Contains(r.err, "encrypted") {
		t.Errorf("a search for text: %d %s%s", r.code, r.out, r.err)
	}
	s.must(exitDone, "dlt", "redrive", "--key", "order-3", "--reason", "x", "--yes")
	s.must(exitDone, "dlt", "purge", "--subject", "customer-4", "--reason", "x", "--yes")
	keys := s.env["HEADRACE_DEADLETTER_KEYS"]
	for env, want := range map[string]string{"": "encrypted", "k-1=?": "not base64", "aGlkZGVu": "an entry is not ID=BASE64", "k-1=AAAA": "has 3 bytes"} {
		if s.env["HEADRACE_DEADLETTER_KEYS"] = env; env == "" {
			s.env["HEADRACE_DEADLETTER_BLIND"] = ""
		} else {
			s.env["HEADRACE_DEADLETTER_BLIND"] = base64.StdEncoding.EncodeToString(deadletter.NewSecret())
		}
		if r := s.run("dlt", "show", id); r.code == exitDone || !strings.Contains(r.err, want) || strings.Contains(r.err, keys[4:]) {
			t.Errorf("with the keys %q: %d %s; want %q", env, r.code, r.err, want)
		}
	}
}

package deadletter_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/poison"
)

// Card numbers were in dead letters, and so in everybody's browser.
func TestRedactedLetters(t *testing.T) {
	p := deadletter.Protection{Redact: func(r *poison.Record) {
		if r.ID == "dead-001" { // in place, and what may not be changed
			r.Payload[0], r.MessageID, r.Consumer = 'X', "", "another"
			delete(r.Metadata, "ce_subject")
		}
		r.Error = strings.ReplaceAll(r.Error, "4111", "****")
	}}
	s := newStore(t, openSQLite(t, "").DeadLetters(), p)
	records := []poison.Record{record(0, func(r *poison.Record) { r.Error = "card 4111 refused" }), record(1)}
	if _, err := s.Add(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	l, err := s.One(t.Context(), "dead-000")
	if err != nil || l.Redacted || l.Error != "card **** refused" || string(l.Payload) != `{"n":0}` {
		t.Errorf("redacted error: %+v, %v", l, err)
	}
	l, err = s.One(t.Context(), "dead-001")
	if err != nil || !l.Redacted || l.Consumer != "billing.orders" || l.MessageID != "ce:/shop e-1" || string(l.Payload) != `X"n":1}` || l.Subject != "" {
		t.Errorf("redacted message: %+v, %v", l, err)
	}
	if want := record(1); !reflect.DeepEqual(records[1], want) {
		t.Errorf("the caller's record was changed: %+v", records[1])
	}
	pub := &channel{}
	first := record(1)
	original := first.Original()
	tp := topic{"orders": {original, original, original}}
	report, err := redriver(t, s, pub, func(c *deadletter.RedriveConfig) { c.Original = deadletter.OriginalFrom(tp) }).Run(t.Context(), deadletter.Filter{})
	if err != nil || report.Redriven != 2 || string(pub.got[1].Payload) != `{"n":1}` {
		t.Errorf("redrive: %+v, %v", report, err)
	}
	if _, err := s.Edit(t.Context(), "dead-001", deadletter.Edit{Payload: []byte("x")}, deadletter.By{Actor: "a", Reason: "b"}); err == nil {
		t.Error("Edit of a redacted letter: no error")
	}
}

func TestCipher(t *testing.T) {
	blind, one, two := deadletter.NewSecret(), deadletter.NewSecret(), deadletter.NewSecret()
	old, err := deadletter.NewCipher(blind, deadletter.Key{ID: "2025", Secret: one})
	if err != nil {
		t.Fatal(err)
	}
	rotated, err := deadletter.NewCipher(blind, deadletter.Key{ID: "2026", Secret: two}, deadletter.Key{ID: "2025", Secret: one})
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := old.Seal("a", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := rotated.Open("a", sealed); err != nil || string(plain) != "secret" {
		t.Errorf("after a rotation: %q, %v", plain, err)
	}
	if again, _ := old.Seal("a", []byte("secret")); string(again) == string(sealed) {
		t.Error("two seals of one text are equal: the nonce is")
	}
	if plain, err := old.Open("b", sealed); err == nil {
		t.Errorf("moved to another letter it was opened: %q", plain)
	}
	for i := range sealed {
		bad := append([]byte(nil), sealed...)
		bad[i] ^= 1
		if _, err := old.Open("a", bad); err == nil {
			t.Errorf("byte %d was changed and nobody noticed", i)
		}
		if _, err := old.Open("a", sealed[:i]); err == nil {
			t.Errorf("cut to %d bytes and nobody noticed", i)
		}
	}
	if newer, _ := rotated.Seal("a", nil); newer != nil {
		if _, err := old.Open("a", newer); err == nil || !strings.Contains(err.Error(), `"2026"`) {
			t.Errorf("an unknown key: %v", err)
		}
		if plain, err := rotated.Open("a", newer); err != nil || plain == nil {
			t.Errorf("an empty text: %v, %v; want an empty slice", plain, err)
		}
	}
	if a, b := old.Blind("x"), rotated.Blind("x"); a != b || a == old.Blind("y") || len(a) > 255 {
		t.Errorf("blinded: %q and %q", a, b)
	}
	for want, make := range map[string]func() (deadletter.Cipher, error){
		"blinding has 3": func() (deadletter.Cipher, error) { return deadletter.NewCipher([]byte("abc")) },
		"no key":         func() (deadletter.Cipher, error) { return deadletter.NewCipher(blind) },
		`key id ""`:      func() (deadletter.Cipher, error) { return deadletter.NewCipher(blind, deadletter.Key{Secret: one}) },
		`key id "a b"`: func() (deadletter.Cipher, error) {
			return deadletter.NewCipher(blind, deadletter.Key{ID: "a b", Secret: one})
		},
		`key "a" has 0`: func() (deadletter.Cipher, error) { return deadletter.NewCipher(blind, deadletter.Key{ID: "a"}) },
		`two keys have th`: func() (deadletter.Cipher, error) {
			return deadletter.NewCipher(blind, deadletter.Key{ID: "a", Secret: one}, deadletter.Key{ID: "a", Secret: two})
		},
	} {
		if _, err := make(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestEditedCopyIsAMessageOfItsOwn(t *testing.T) {
	structured := func(id string) []byte {
		return []byte(`{"specversion":"1.0","id":"` + id + `","source":"/shop","type":"order.placed","data":{"n":1}}`)
	}
	by := deadletter.By{Actor: "ann", Reason: "typo"}
	for name, tc := range map[string]struct {
		change   func(*poison.Record)
		edit     deadletter.Edit
		wantID   string // prefix of the message id
		wantFrom string // causation
	}{
		"binary":             {func(*poison.Record) {}, deadletter.Edit{Payload: []byte("{}")}, "ce:/shop ", "e-0"},
		"metadata alone":     {func(*poison.Record) {}, deadletter.Edit{Metadata: map[string]string{"tenant": "b"}}, "ce:/shop ", "e-0"},
		"an id of their own": {func(*poison.Record) {}, deadletter.Edit{Metadata: map[string]string{"ce_id": "mine"}}, "ce:/shop mine", "e-0"},
		"plain":              {func(r *poison.Record) { r.Metadata = nil; r.MessageID = "uuid:orders u-0" }, deadletter.Edit{Payload: []byte("x")}, "uuid:orders ", "u-0"},
		"by position":        {func(r *poison.Record) { r.Metadata, r.UUID, r.MessageID = nil, "", "pos:orders i/0/1" }, deadletter.Edit{Payload: []byte("x")}, "uuid:orders ", "pos:orders i/0/1"},
		"undecodable":        {func(r *poison.Record) { r.DecodeError, r.Headers = "bad", []brokers.Header{{Key: "a"}} }, deadletter.Edit{Payload: []byte("{}")}, "ce:/shop ", "e-0"},
		"structured": {
			func(r *poison.Record) {
				r.Metadata, r.Payload = map[string]string{"content-type": "application/cloudevents+json"}, structured("e-0")
			},
			deadletter.Edit{Payload: []byte(`{"id":"e-0",`), Metadata: map[string]string{"x": "1"}},
			"", "",
		},
		"structured, repaired": {
			func(r *poison.Record) {
				r.Metadata, r.Payload = map[string]string{"content-type": "application/cloudevents+json"}, []byte(`{"id":"e-0"`)
			},
			deadletter.Edit{Payload: structured("e-0")},
			"ce:/shop ", "",
		},
	} {
		s := newStore(t, openSQLite(t, "").DeadLetters())
		if _, err := s.Add(t.Context(), record(0, tc.change)); err != nil {
			t.Fatal(err)
		}
		copied, err := s.Edit(t.Context(), "dead-000", tc.edit, by)
		if tc.wantID == "" {
			if err == nil {
				t.Errorf("%s: no error for a payload that is no event", name)
			}
			if l, err := s.One(t.Context(), "dead-000"); err != nil || l.State != deadletter.New {
				t.Errorf("%s: the original is %s, %v; want new", name, l.State, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !strings.HasPrefix(copied.MessageID, tc.wantID) || copied.MessageID == "ce:/shop e-0" || copied.MessageID == "uuid:orders u-0" {
			t.Errorf("%s: message id %q, want a new one that begins with %q", name, copied.MessageID, tc.wantID)
		}
		if got := copied.Metadata["ce_causationid"]; got != tc.wantFrom {
			t.Errorf("%s: caused by %q, want %q", name, got, tc.wantFrom)
		}
		if copied.DecodeError != "" || copied.Headers != nil {
			t.Errorf("%s: what could not be read is still there: %+v", name, copied)
		}
	}
}

func TestStructuredCopyNamesItsCause(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	before := `{"specversion":"1.0","id":"e-0","source":"/shop","type":"order.placed","data":{"html":"<b>","n":12345678901234567890}}`
	if _, err := s.Add(t.Context(), record(0, func(r *poison.Record) {
		r.Metadata, r.Payload = map[string]string{"content-type": "application/cloudevents+json"}, []byte(before)
	})); err != nil {
		t.Fatal(err)
	}
	copied, err := s.Edit(t.Context(), "dead-000", deadletter.Edit{Payload: []byte(strings.Replace(before, "<b>", "<i>", 1))}, deadletter.By{Actor: "a", Reason: "b"})
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		ID          string
		CausationID string
		Data        json.RawMessage
	}
	if err := json.Unmarshal(copied.Payload, &e); err != nil {
		t.Fatal(err)
	}
	if e.ID == "e-0" || e.ID == "" || e.CausationID != "e-0" || string(e.Data) != `{"html":"<i>","n":12345678901234567890}` {
		t.Errorf("copy: %s", copied.Payload)
	}
}

func TestEditRefusesWhatMakesNoSense(t *testing.T) {
	s := newStore(t, openSQLite(t, "").DeadLetters())
	if _, err := s.Add(t.Context(), record(0), record(1, func(r *poison.Record) { r.Reference, r.Payload, r.Metadata = true, nil, nil })); err != nil {
		t.Fatal(err)
	}
	by := deadletter.By{Actor: "ann", Reason: "typo"}
	for want, edit := range map[string]deadletter.Edit{
		"nothing was changed":   {Payload: []byte(`{"n":0}`)},
		"are not the message's": {Metadata: map[string]string{"headrace_id": "x"}},
	} {
		if _, err := s.Edit(t.Context(), "dead-000", edit, by); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Edit %+v: %v, want %q", edit, err, want)
		}
	}
	if _, err := s.Edit(t.Context(), "dead-001", deadletter.Edit{Payload: []byte("x")}, by); err == nil || !strings.Contains(err.Error(), "not in the store") {
		t.Errorf("Edit of a reference: %v", err)
	}
	if _, err := s.Edit(t.Context(), "none", deadletter.Edit{Payload: []byte("x")}, by); err == nil {
		t.Error("Edit of nothing: no error")
	}
	diff, err := s.Preview(t.Context(), "dead-000", deadletter.Edit{Payload: []byte(`{"n":9}`)})
	if err != nil || !strings.Contains(diff, `-  "n": 0`) || !strings.Contains(diff, `+  "n": 9`) {
		t.Errorf("Preview: %q, %v", diff, err)
	}
	if counts := states(t, s); counts[deadletter.New] != 2 {
		t.Errorf("states %v: a preview or a refused edit changed something", counts)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
)

// injection says why a message is in the input that GitHub did not send. It is also the message's CloudEvents
// extension "injected".
type injection string

const (
	duplicate injection = "duplicate" // a delivery again, with the same CloudEvents id
	stale     injection = "stale"     // an older version of an issue or pull request, after the newer one
	broken    injection = "broken"    // undecodable or invalid
)

const metaInjected = "ce_injected"

// How often each is injected.
const (
	duplicateEvery  = 5  // deliveries
	staleEvery      = 3  // deliveries of issues and pull requests
	brokenEvery     = 16 // deliveries; 329 make room for all of breakages
	duplicateBehind = 20 // every second duplicate comes that many deliveries late
)

// buildInput returns all messages in the order in which they are published, the same at each call.
func buildInput() ([]webhook, error) {
	deliveries, err := readWebhooks()
	if err != nil {
		return nil, err
	}
	var all, late []webhook
	items, breakage := 0, 0
	for i, w := range deliveries {
		all = append(all, w)
		n := i + 1
		if n%duplicateEvery == 0 {
			if again := duplicateOf(w); n%(2*duplicateEvery) == 0 {
				late = append(late, again)
			} else {
				all = append(all, again)
			}
		}
		if len(late) > 0 && n%duplicateBehind == 0 {
			all, late = append(all, late...), nil
		}
		if w.item != nil {
			if items++; items%staleEvery == 0 {
				old, err := staleOf(w)
				if err != nil {
					return nil, err
				}
				all = append(all, old)
			}
		}
		if n%brokenEvery == 0 && breakage < len(breakages) {
			all = append(all, brokenOf(w, breakage))
			breakage++
		}
	}
	all = append(all, late...)
	number(all)
	return all, nil
}

// number counts the messages of each key. The tracker checks that effects follow the count. A duplicate is
// the same event and has its number.
func number(all []webhook) {
	counts, numbers := map[string]int{}, map[string]string{}
	for _, w := range all {
		if w.injected == broken {
			continue
		}
		if numbers[w.id] == "" {
			counts[w.key]++
			numbers[w.id] = strconv.Itoa(counts[w.key])
		}
		w.message.Metadata.Set(event.MetaSequence, numbers[w.id])
	}
}

// duplicateOf is w as a sender repeats it that was not sure to have been heard. The event's id is the same, and
// by it the inbox knows the duplicate. The message's UUID is another one: a broker that drops what it was sent
// twice (JetStream can, by Nats-Msg-Id, for some minutes) must not spare the inbox its work.
func duplicateOf(w webhook) webhook {
	return w.copy(duplicate, w.message.UUID+"-again", w.id, w.message.Payload)
}

// staleOf is an event of its own about w's issue or pull request as it was a day before.
func staleOf(w webhook) (webhook, error) {
	old := *w.item
	old.UpdatedAt = old.UpdatedAt.Add(-24 * time.Hour)
	payload, err := withUpdatedAt(w.message.Payload, old.Kind, old.UpdatedAt)
	if err != nil {
		return webhook{}, fmt.Errorf("make a stale version of %s: %w", w.id, err)
	}
	c := w.copy(stale, w.id+"-stale", w.id+"-stale", payload)
	c.message.Metadata.Set(event.MetaCorrelationID, c.id)
	c.item = &old
	return c, nil
}

func withUpdatedAt(payload []byte, kind string, t time.Time) ([]byte, error) {
	var whole, part map[string]json.RawMessage
	if err := json.Unmarshal(payload, &whole); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(whole[kind], &part); err != nil {
		return nil, err
	}
	var err error
	if part["updated_at"], err = json.Marshal(t); err != nil {
		return nil, err
	}
	if whole[kind], err = json.Marshal(part); err != nil {
		return nil, err
	}
	return json.Marshal(whole)
}

// brokenOf is the breakage of that number, under the key of w: a dead letter must not hold up its key.
func brokenOf(w webhook, breakage int) webhook {
	id := fmt.Sprintf("broken-%02d", breakage+1)
	c := w.copy(broken, id, id, w.message.Payload)
	c.item = nil
	c.message.Metadata.Set("ce_breakage", breakages[breakage].name)
	breakages[breakage].apply(c.message)
	return c
}

// copy returns w as another message. Nothing of it is shared that anyone changes.
func (w webhook) copy(why injection, uuid, id string, payload []byte) webhook {
	m := message.NewMessage(uuid, payload)
	for k, v := range w.message.Metadata {
		m.Metadata.Set(k, v)
	}
	m.Metadata.Set(event.MetaID, id)
	m.Metadata.Set(metaInjected, string(why))
	w.message, w.id, w.injected = m, id, why
	return w
}

// breakages are twenty ways in which a message can be undecodable or invalid.
var breakages = []struct {
	name  string
	apply func(*message.Message)
}{
	{"JSON that ends half-way", func(m *message.Message) { m.Payload = m.Payload[:len(m.Payload)/2] }},
	{"bytes that are no JSON", func(m *message.Message) { m.Payload = []byte("\x00\x01\xfe\xff") }},
	{"empty payload", func(m *message.Message) { m.Payload = []byte{} }},
	{"no payload", func(m *message.Message) { m.Payload = nil }},
	{"JSON null", func(m *message.Message) { m.Payload = []byte(`null`) }},
	{"text that is not UTF-8", func(m *message.Message) { m.Payload = []byte("{\"action\":\"\xff\"}") }},
	{"repository is a number", func(m *message.Message) { m.Payload = []byte(`{"repository":5}`) }},
	{"number is a text", issue(`{"issue":{"number":"one"}}`)},
	{"issue without a number", issue(`{"issue":{"updated_at":"2019-05-15T15:20:18Z"},"repository":{"full_name":"Codertocat/Hello-World"}}`)},
	{"issue without a version", issue(`{"issue":{"number":1},"repository":{"full_name":"Codertocat/Hello-World"}}`)},
	{"media type that nobody reads", set(event.MetaContentType, "application/xml")},
	{"no id", remove(event.MetaID)},
	{"no type", remove(event.MetaType)},
	{"spec version 0.3", set(event.MetaSpecVersion, "0.3")},
	{"time that is none", set(event.MetaTime, "yesterday")},
	{"schema version that is no number", set(event.MetaSchemaVersion, "two")},
	{"structured event that ends half-way", structured("application/cloudevents+json", `{"specversion":"1.0","id":`)},
	{"structured event without an id", structured("application/cloudevents+json", `{"specversion":"1.0","source":"/x","type":"github.issues","data":{}}`)},
	{"batch of events", structured("application/cloudevents-batch+json", `[]`)},
	{"no CloudEvent", remove(event.MetaID, event.MetaSource, event.MetaType, event.MetaSpecVersion)},
}

func issue(payload string) func(*message.Message) {
	return func(m *message.Message) {
		m.Metadata.Set(event.MetaType, issuesType)
		m.Payload = []byte(payload)
	}
}

func set(key, value string) func(*message.Message) {
	return func(m *message.Message) { m.Metadata.Set(key, value) }
}

func remove(keys ...string) func(*message.Message) {
	return func(m *message.Message) {
		for _, k := range keys {
			delete(m.Metadata, k)
		}
	}
}

func structured(contentType, payload string) func(*message.Message) {
	return func(m *message.Message) {
		remove(event.MetaID, event.MetaSource, event.MetaType, event.MetaSpecVersion)(m)
		m.Metadata.Set(event.MetaContentType, contentType)
		m.Payload = []byte(payload)
	}
}

package poison_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/poison"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares the dead letter with testdata/name. The files are a wire contract: dead letters of that
// form are in topics, and must stay readable.
func golden(t *testing.T, name string, dead *message.Message) {
	t.Helper()
	payload := string(dead.Payload)
	if dead.Metadata[poison.MetaEncoding] != "" {
		var indented strings.Builder
		var v any
		if err := json.Unmarshal(dead.Payload, &v); err != nil {
			t.Fatal(err)
		}
		enc := json.NewEncoder(&indented)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
		payload = indented.String()
	} else {
		payload = fmt.Sprintf("%q\n", payload)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "uuid: %s\n", dead.UUID)
	for _, k := range slices.Sorted(maps.Keys(dead.Metadata)) {
		fmt.Fprintf(&b, "%s: %q\n", k, dead.Metadata[k])
	}
	b.WriteString("\n" + payload)
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", path, b.String(), want)
	}
}

// die dead-letters a message that is changed by change, and returns the dead letter.
func die(t *testing.T, err error, change func(*message.Message, *brokers.Delivery), config ...func(*poison.Config)) (*message.Message, poison.Record) {
	t.Helper()
	dlt := &dltPublisher{}
	msg := newMessage(t.Context())
	if change != nil {
		change(msg, flight.From(msg.Context()).Delivery)
	}
	if _, err := newPoison(t, dlt, config...).Middleware(fails(err))(msg); err != nil {
		t.Fatal(err)
	}
	return dlt.only(t)
}

func panicked(stack int) error {
	return gaveUp(classify.VerdictPoison, &classify.PanicError{Value: errDown, Stack: []byte("goroutine 7\n" + strings.Repeat("s", stack))})
}

func headerBytes(msg *message.Message) int {
	n := 0
	for k, v := range msg.Metadata {
		n += len(k) + len(v)
	}
	return n
}

func TestGoldenPlain(t *testing.T) {
	dead, _ := die(t, panicked(10), func(msg *message.Message, d *brokers.Delivery) {
		d.Headers = []brokers.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("\xff\x00")}, {Key: "b"}}
		d.Key = []byte("\xffkey")
		flight.From(msg.Context()).CorrelationID = "conv-7"
	})
	golden(t, "plain.golden", dead)
}

func TestGoldenEnvelope(t *testing.T) {
	dead, _ := die(t, panicked(10), func(msg *message.Message, d *brokers.Delivery) {
		d.Headers = []brokers.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("\xff\x00")}, {Key: "b"}}
		msg.Metadata["ce_partitionkey"] = "order-1"
		msg.Metadata["binary"] = "\xff\x00"
	}, func(c *poison.Config) { c.MaxHeaderBytes = 1024 })
	golden(t, "envelope.golden", dead)
}

// A stack trace in a header made the record too large to publish.
func TestD7HeadersAreBounded(t *testing.T) {
	const (
		standard = 32 << 10
		limit    = 8 << 10
	)
	bounded := func(c *poison.Config) { c.MaxHeaderBytes = limit }
	long := gaveUp(classify.VerdictPoison, errors.New(strings.Repeat("é", 100_000)))
	filled := func(n int) func(*message.Message, *brokers.Delivery) {
		return func(msg *message.Message, _ *brokers.Delivery) { msg.Metadata["filling"] = strings.Repeat("f", n) }
	}
	tests := []struct {
		name      string
		err       error
		change    func(*message.Message, *brokers.Delivery)
		config    func(*poison.Config)
		most      int    // bytes of metadata
		stack     [2]int // least and most bytes
		message   [2]int
		enveloped bool
	}{
		{"defaults", panicked(1 << 20), nil, func(*poison.Config) {}, standard, [2]int{4000, 4096}, [2]int{10, 1024}, false},
		{"own bounds", panicked(1 << 20), nil, func(c *poison.Config) { c.MaxStackBytes = 100 }, standard, [2]int{97, 100}, [2]int{10, 1024}, false},
		{"no stack", panicked(100), nil, func(c *poison.Config) { c.MaxStackBytes = poison.NoStack }, standard, [2]int{0, 0}, [2]int{10, 1024}, false},
		{"a long text", long, nil, bounded, limit, [2]int{0, 0}, [2]int{1020, 1024}, false},
		{"the stack is cut first", panicked(1 << 20), filled(limit - 2000), bounded, limit, [2]int{1, 1500}, [2]int{24, 24}, false},
		{"then the text", long, filled(limit - 1700), bounded, limit, [2]int{0, 0}, [2]int{256, 900}, false},
		{"and then it needs an envelope", long, filled(limit - 1000), bounded, limit, [2]int{0, 0}, [2]int{1020, 1024}, true},
		{"in which nothing is cut", panicked(1 << 20), filled(limit), bounded, limit, [2]int{4000, 4096}, [2]int{24, 24}, true},
		{"a huge key", panicked(10), func(_ *message.Message, d *brokers.Delivery) { d.Key = make([]byte, 1<<20) }, bounded, limit, [2]int{22, 22}, [2]int{24, 24}, true},
		{"many headers", panicked(10), func(_ *message.Message, d *brokers.Delivery) { d.Headers = make([]brokers.Header, 5000) }, bounded, limit, [2]int{22, 22}, [2]int{24, 24}, true},
		{"many long fields", panicked(10), func(msg *message.Message, d *brokers.Delivery) {
			d.Incarnation, msg.UUID = strings.Repeat("i", 250), strings.Repeat("u", 250)
			msg.Metadata[event.MetaPartitionKey] = strings.Repeat("p", 250)
		}, func(c *poison.Config) { c.MaxHeaderBytes = 1 << 10 }, 1 << 10, [2]int{22, 22}, [2]int{24, 24}, true},
		{"an id that no header can hold", panicked(10), func(msg *message.Message, _ *brokers.Delivery) { msg.UUID = "a\xff" }, bounded, limit, [2]int{22, 22}, [2]int{24, 24}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var before *message.Message
			dead, r := die(t, test.err, func(msg *message.Message, d *brokers.Delivery) {
				if test.change != nil {
					test.change(msg, d)
				}
				before = msg.Copy()
			}, test.config)
			if got := headerBytes(dead); got > test.most {
				t.Errorf("%d bytes of metadata, want at most %d", got, test.most)
			}
			if n := len(r.Stack); n < test.stack[0] || n > test.stack[1] {
				t.Errorf("stack of %d bytes, want %v", n, test.stack)
			}
			if n := len(r.Error); n < test.message[0] || n > test.message[1] {
				t.Errorf("error's text of %d bytes, want %v", n, test.message)
			}
			if got := dead.Metadata[poison.MetaEncoding] != ""; got != test.enveloped {
				t.Errorf("enveloped: %v, want %v", got, test.enveloped)
			}
			if dead.Metadata[poison.MetaConsumer] != "billing.orders" || dead.Metadata[poison.MetaErrorType] != "unavailable" {
				t.Errorf("metadata %v does not tell the consumer and the kind of error", dead.Metadata)
			}
			if !maps.Equal(r.Metadata, map[string]string(before.Metadata)) || string(r.Payload) != string(before.Payload) || r.UUID != before.UUID {
				t.Errorf("the original was changed")
			}
		})
	}
}

// What a broker can take, its publisher alone knows. A dead letter that was over its limit was refused for ever.
func TestD7ADeadLetterThatIsRefusedIsMadeSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dlt := &dltPublisher{refuse: func(msg *message.Message) error {
			if n := headerBytes(msg); n > 1500 {
				return fmt.Errorf("%w %d bytes", errRefuse, n)
			}
			return nil
		}}
		msg := newMessage(t.Context())
		var stored poison.Record
		p := newPoison(t, dlt, func(c *poison.Config) {
			c.OnStored = func(_ context.Context, r poison.Record) { stored = r }
		})
		if _, err := p.Middleware(fails(panicked(1 << 20)))(msg); err != nil || receipt(msg) != flight.DeadLettered {
			t.Fatalf("error %v, receipt %v: want it dead-lettered", err, receipt(msg))
		}
		_, r := dlt.only(t)
		if r.Stack != "" || !strings.Contains(r.Error, "warehouse") || string(r.Payload) != string(msg.Payload) {
			t.Errorf("stored %+v, want it without the stack", r)
		}
		if stored.Stack != "" {
			t.Error("OnStored was told of a stack that is not stored")
		}
	})
}

func TestKeysAreKept(t *testing.T) {
	for _, key := range [][]byte{nil, {}, []byte("order-1"), []byte("Straße"), []byte("a\nb"), {0}, {0xff, 0xfe}, []byte(strings.Repeat("k", 300))} {
		_, r := die(t, panicked(0), func(_ *message.Message, d *brokers.Delivery) { d.Key = key })
		if string(r.Key) != string(key) || (r.Key == nil) != (key == nil) {
			t.Errorf("key %q (nil %v) became %q (nil %v)", key, key == nil, r.Key, r.Key == nil)
		}
	}
}

// Whatever a message is made of, its dead letter gives it back, in either form.
func TestRecordsComeBackAsTheyWere(t *testing.T) {
	odd := []string{"", "a", "a\r\nb", "\xff", "\u2028<&>\"", strings.Repeat("x", 3000)}
	for i, s := range odd {
		for _, limit := range []int{1 << 10, 1 << 20} {
			var before *message.Message
			var delivery brokers.Delivery
			dead, r := die(t, gaveUp(classify.VerdictRetry, errDown), func(msg *message.Message, d *brokers.Delivery) {
				msg.UUID = s
				msg.Metadata["odd"+s] = s
				msg.Payload = []byte(s)
				d.Partition, d.Offset = int32(i)-1, int64(i)-1
				d.Key, d.Incarnation = []byte(s), s
				d.Headers = []brokers.Header{{Key: s, Value: []byte(s)}, {Key: "nil"}}
				before, delivery = msg.Copy(), *d
			}, func(c *poison.Config) { c.MaxHeaderBytes = limit })
			if got := headerBytes(dead); got > limit {
				t.Errorf("%.20q: %d bytes of metadata, want at most %d", s, got, limit)
			}
			want := poison.Record{
				ID: dead.UUID, Version: 1, Consumer: "billing.orders", Topic: "orders", Incarnation: s,
				Partition: delivery.Partition, Offset: delivery.Offset, Time: delivery.Time,
				Key: []byte(s), Payload: []byte(s), Metadata: before.Metadata, UUID: s, Headers: delivery.Headers,
				MessageID: "ce:/shop e-1", Attempts: 5, Deliveries: 2, Deaths: 1, Verdict: classify.VerdictRetry, ErrorType: "unavailable",
				Error: "warehouse is down", FirstFailure: r.FirstFailure, LastFailure: r.LastFailure, CorrelationID: "conv-7",
				TraceParent: before.Metadata["traceparent"], Fingerprint: r.Fingerprint,
			}
			if !reflect.DeepEqual(r, want) {
				t.Errorf("%.20q, limit %d: got\n%+v\nwant\n%+v", s, limit, r, want)
			}
			if took := r.LastFailure.Sub(r.FirstFailure); took.Milliseconds() != 1500 {
				t.Errorf("failures %v apart, want 1.5s", took)
			}
		}
	}
}

func TestFingerprintGroupsFailuresOfAKind(t *testing.T) {
	print := func(text string, change func(*message.Message, *brokers.Delivery)) string {
		_, r := die(t, gaveUp(classify.VerdictRetry, errors.New(text)), change)
		return r.Fingerprint
	}
	base := print("order 17: no stock at 10.0.0.1:5432", nil)
	if base != "c9c0c450dd0f62cf" {
		t.Errorf("fingerprint %q has changed: saved searches and alarms name it", base)
	}
	if got := print(strings.Repeat("long ", 200), nil); got != "7e4bd26ca5010e16" {
		t.Errorf("fingerprint of a long text %q has changed", got)
	}
	if text := "order 4711: no stock at 192.168.7.12:80"; print(text, nil) != base {
		t.Errorf("%q has fingerprint %s, want %s", text, print(text, nil), base)
	}
	if a, b := print("order 550e8400-e29b-41d4-a716-446655440000 of deadbeef01 failed", nil),
		print("order 6BA7B810-9DAD-11D1-80B4-00C04FD430C8 of 0badcafe failed", nil); a != b {
		t.Errorf("two texts that differ by ids have fingerprints %s and %s", a, b)
	}
	if a, b := print(strings.Repeat("1", 100)+strings.Repeat("x", 2000), nil), print(strings.Repeat("2", 900)+strings.Repeat("x", 2000), nil); a != b {
		t.Errorf("where a long text is cut depends on its numbers: %s and %s", a, b)
	}
	for name, other := range map[string]string{
		"another text": print("order 17: no price", nil),
		"another type": print("order 17: no stock at 10.0.0.1:5432", func(m *message.Message, _ *brokers.Delivery) { m.Metadata[event.MetaType] = "order.cancelled" }),
	} {
		if other == base {
			t.Errorf("%s has the same fingerprint", name)
		}
	}
}

func TestParseNamesWhatItCannotRead(t *testing.T) {
	tests := []struct {
		key, value string
		want       string
	}{
		{poison.MetaVersion, "2", "headrace_dlt_version is 2: this program reads versions 1 to 1"},
		{poison.MetaVersion, "0", "headrace_dlt_version is 0"},
		{poison.MetaVersion, "x", `headrace_dlt_version is "x"`},
		{poison.MetaEncoding, "zip", `headrace_dlt_encoding is "zip"`},
		{poison.MetaEncoding, "envelope", "the envelope: invalid character"},
		{poison.MetaPartition, "1e3", `headrace_dlt_partition is "1e3"`},
		{poison.MetaPartition, "99999999999", `headrace_dlt_partition is "99999999999"`},
		{poison.MetaOffset, "x", `headrace_dlt_offset is "x"`},
		{poison.MetaAttempts, "x", `headrace_dlt_attempts is "x"`},
		{poison.MetaVerdict, "meh", `headrace_dlt_verdict is "meh"`},
		{poison.MetaFirstFailure, "yesterday", `headrace_dlt_first_failure is "yesterday"`},
		{poison.MetaKeyEncoding, "rot13", `headrace_dlt_key_encoding is "rot13"`},
		{poison.MetaKeyEncoding, "base64", `headrace_dlt_key is "order-1"`},
		{poison.MetaHeaders, "[[null,null]]", "the key of header 0 is null"},
		{poison.MetaHeaders, strings.Repeat("x", 1000), `headrace_dlt_headers is "xxx`},
	}
	for _, test := range tests {
		dead, _ := die(t, panicked(0), nil)
		dead.Metadata[test.key] = test.value
		_, err := poison.Parse(dead)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), dead.UUID) {
			t.Errorf("%s = %.20q: error %v, want one with %q and the id", test.key, test.value, err, test.want)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%s: an error of %d bytes", test.key, len(err.Error()))
		}
	}
	if _, err := poison.Parse(message.NewMessage("1", nil)); !errors.Is(err, poison.ErrNotDeadLetter) {
		t.Errorf("error %v, want ErrNotDeadLetter", err)
	}
	future := message.NewMessage("1", []byte(`{"version":2}`))
	future.Metadata = message.Metadata{poison.MetaVersion: "1", poison.MetaEncoding: "envelope"}
	if _, err := poison.Parse(future); err == nil || !strings.Contains(err.Error(), "version of the envelope is 2") {
		t.Errorf("error %v, want one that names the envelope's version", err)
	}
}

package event_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/headrace-go/headrace/event"
)

func TestParseReadsStructuredMode(t *testing.T) {
	msg := structured(`{
		"specversion" : "1.0", "id" : "1", "source" : "/shop", "type" : "order.placed",
		"time" : "2026-02-03T04:05:06Z", "subject" : "s\u00e9", "dataschema" : null, "schemaversion" : 2,
		"partitionkey" : "7", "sequence" : 900719925474099312, "correlationid" : "c", "causationid" : "d",
		"flag" : true, "off" : false, "none" : null, "text" : "a\/b",
		"data" : {"amount": 12345678901234567890.123456789012345678, "s": "}\"{"}
	}`)
	msg.Metadata["ce_id"] = "not this one"
	got, err := event.Parse(msg)
	if err != nil {
		t.Fatal(err)
	}
	want := event.Envelope{
		ID: "1", Source: "/shop", Type: "order.placed", Time: got.Time, Subject: "sé", SchemaVersion: 2,
		PartitionKey: "7", Sequence: "900719925474099312", CorrelationID: "c", CausationID: "d",
		Extensions: map[string]string{"flag": "true", "off": "false", "text": "a/b"},
		Data:       []byte(`{"amount": 12345678901234567890.123456789012345678, "s": "}\"{"}`),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseFindsStructuredData(t *testing.T) {
	const head = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for name, tt := range map[string]struct {
		rest string
		want []byte // nil: no data
	}{
		"none":                          {`}`, nil},
		"null is JSON":                  {`,"data":null}`, []byte(`null`)},
		"an array":                      {`,"data":[1, 2]}`, []byte(`[1, 2]`)},
		"a JSON string stays JSON":      {`,"data":"a"}`, []byte(`"a"`)},
		"a number":                      {`,"data":-1.50e+3}`, []byte(`-1.50e+3`)},
		"JSON by suffix":                {`,"datacontenttype":"application/vnd.x+json; v=1","data":"a"}`, []byte(`"a"`)},
		"the content type after it":     {`,"data":"<a/>","datacontenttype":"text/xml"}`, []byte(`<a/>`)},
		"text that is escaped":          {`,"datacontenttype":"text/xml","data":"<a>\u00e9\n</a>"}`, []byte("<a>é\n</a>")},
		"text that is empty":            {`,"datacontenttype":"text/xml","data":""}`, []byte{}},
		"null text":                     {`,"datacontenttype":"text/xml","data":null}`, nil},
		"base64":                        {`,"datacontenttype":"application/x","data_base64":"AP8="}`, []byte("\x00\xff")},
		"base64 of JSON":                {`,"data_base64":"e30="}`, []byte(`{}`)},
		"base64 with escaped slashes":   {`,"data_base64":"\/\/\/\/"}`, []byte("\xff\xff\xff")},
		"base64 that is empty":          {`,"data_base64":""}`, []byte{}},
		"base64 null":                   {`,"data_base64":null}`, nil},
		"base64 null beside data":       {`,"data_base64":null,"data":1}`, []byte("1")},
		"a content type that is absent": {`,"datacontenttype":null,"data":{}}`, []byte("{}")},
	} {
		t.Run(name, func(t *testing.T) {
			for _, bom := range []string{"", "\xef\xbb\xbf"} {
				e, err := event.Parse(structured(bom + head + tt.rest))
				if err != nil || !reflect.DeepEqual(e.Data, tt.want) {
					t.Errorf("%s%s\n got %#v, %v\nwant %#v", head, tt.rest, e.Data, err, tt.want)
				}
			}
		})
	}
}

// A big payload is not copied: the data is that part of the message.
func TestParseDoesNotCopyStructuredData(t *testing.T) {
	for _, data := range []string{`,"data":{"a":1}}`, `,"datacontenttype":"text/plain","data":"abc"}`} {
		msg := structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t"` + data)
		e, err := event.Parse(msg)
		if err != nil {
			t.Fatal(err)
		}
		start := uintptr(unsafe.Pointer(unsafe.SliceData(msg.Payload)))
		if p := uintptr(unsafe.Pointer(unsafe.SliceData(e.Data))); p < start || p >= start+uintptr(len(msg.Payload)) {
			t.Errorf("%s: the data is a copy", data)
		}
		_ = append(e.Data, '!')
		if !bytes.HasSuffix(msg.Payload, []byte("}")) || bytes.Contains(msg.Payload, []byte("!")) {
			t.Errorf("%s: what was appended to the data went into the payload: %s", data, msg.Payload)
		}
	}
}

func TestParseRefusesAnInvalidStructuredEvent(t *testing.T) {
	const ok = `"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for name, tt := range map[string]struct{ payload, field, text string }{
		"nothing":                   {``, "payload", "unexpected end"},
		"no JSON":                   {`{"id":`, "payload", `"6 bytes of application/cloudevents+json": unexpected end`},
		"something after it":        {`{` + ok + `} {}`, "payload", "after top-level"},
		"an array":                  {`[{` + ok + `}]`, "payload", "one JSON object"},
		"null":                      {`null`, "payload", "one JSON object"},
		"an empty object":           {`{}`, "specversion", "missing"},
		"no id":                     {`{"specversion":"1.0","source":"/s","type":"t"}`, "id", "missing"},
		"a null id":                 {`{"specversion":"1.0","id":null,"source":"/s","type":"t"}`, "id", "missing"},
		"an empty id":               {`{"specversion":"1.0","id":"","source":"/s","type":"t"}`, "id", "empty"},
		"an id that is a number":    {`{"specversion":"1.0","id":5,"source":"/s","type":"t"}`, "id", `"5": must be a string`},
		"a type that is a truth":    {`{"specversion":"1.0","id":"1","source":"/s","type":true}`, "type", `"true": must be a string`},
		"another version":           {`{"specversion":"0.3","id":"1","source":"/s","type":"t"}`, "specversion", `"0.3": not supported`},
		"an id twice":               {`{` + ok + `,"id":"2"}`, "id", `"\"2\"": given more than once`},
		"an id twice, once escaped": {`{` + ok + `,"\u0069d":"2"}`, "id", "more than once"},
		"an extension twice":        {`{` + ok + `,"x":"1","x":"1"}`, "x", "more than once"},
		"data twice":                {`{` + ok + `,"data":1,"data":2}`, "data", "more than once"},
		"base64 twice":              {`{` + ok + `,"data_base64":"","data_base64":""}`, "data_base64", "more than once"},
		"data in two forms":         {`{` + ok + `,"data":1,"data_base64":""}`, "data_base64", "exclude"},
		"no base64":                 {`{` + ok + `,"data_base64":"***"}`, "data_base64", "base64"},
		"base64 that is a number":   {`{` + ok + `,"data_base64":5}`, "data_base64", "base64"},
		"data that is no text":      {`{` + ok + `,"datacontenttype":"text/xml","data":{}}`, "data", "must be a string"},
		"a nested extension":        {`{` + ok + `,"x":{}}`, "x", `"{}": not an attribute value`},
		"a list":                    {`{` + ok + `,"x":[]}`, "x", "not an attribute value"},
		"a fraction":                {`{` + ok + `,"x":1.5}`, "x", `"1.5": not an attribute value`},
		"an exponent":               {`{` + ok + `,"x":1e3}`, "x", "not an attribute value"},
		"a name in upper case":      {`{` + ok + `,"myExt":"a"}`, "myExt", "attribute name"},
		"an empty name":             {`{` + ok + `,"":"a"}`, "", "without a name"},
		"a wrong time":              {`{` + ok + `,"time":"noon"}`, "time", `"noon": not an RFC 3339`},
		"a time that is a number":   {`{` + ok + `,"time":5}`, "time", "RFC 3339"},
		"a wrong schema version":    {`{` + ok + `,"schemaversion":-1}`, "schemaversion", "whole number"},
		"half a surrogate pair":     {`{` + ok + `,"subject":"\uD800"}`, "subject", "surrogate"},
		"an escaped control":        {`{` + ok + `,"subject":"\u0000"}`, "subject", "control"},
		"bytes that are not UTF-8":  {`{` + ok + `,"subject":"` + "\xff" + `"}`, "subject", "UTF-8"},
		"text that is not UTF-8":    {`{` + ok + `,"datacontenttype":"text/plain","data":"` + "\xff" + `"}`, "data", "UTF-8"},
		"escaped text that is not":  {`{` + ok + `,"datacontenttype":"text/plain","data":"\n` + "\xff" + `"}`, "data", "UTF-8"},
		"a huge attribute":          {`{` + ok + `,"x":"` + strings.Repeat("a", event.MaxAttributeBytes+1) + `"}`, "x", "65537 bytes"},
		"a very huge attribute":     {`{` + ok + `,"x":"` + strings.Repeat("a", 1<<20) + `"}`, "x", "at most 65536"},
		"a huge name":               {`{` + ok + `,"` + strings.Repeat("A", 1<<20) + `":"a"}`, strings.Repeat("A", 64) + "...", "attribute name"},
		"nesting without end":       {strings.Repeat(`{"a":`, 1<<16), "payload", "depth"},
	} {
		t.Run(name, func(t *testing.T) {
			msg := structured(tt.payload)
			e, err := event.Parse(msg)
			wantError(t, tt.payload[:min(len(tt.payload), 200)], err, tt.field, tt.text)
			if string(e.Data) != tt.payload || e.ContentType != "application/cloudevents+json" {
				t.Errorf("got %d bytes of %q, want the payload as it was received", len(e.Data), e.ContentType)
			}
		})
	}
}

func TestParseRefusesAnUnknownEventFormat(t *testing.T) {
	for _, ct := range []string{"application/cloudevents+avro", "application/cloudevents-batch+json", "APPLICATION/CLOUDEVENTS+PROTOBUF; a=b"} {
		_, err := event.Parse(received("{}", "content-type", ct))
		wantError(t, ct, err, "content-type", "only application/cloudevents+json")
	}
}

func TestParseReadsCorrelationBesideAStructuredEvent(t *testing.T) {
	msg := structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t"}`)
	msg.Metadata["ce_correlationid"], msg.Metadata["ce_causationid"] = "c", "d"
	e, err := event.Parse(msg)
	if err != nil || e.CorrelationID != "c" || e.CausationID != "d" {
		t.Errorf("got %q and %q, %v, want c and d", e.CorrelationID, e.CausationID, err)
	}
}

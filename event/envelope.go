package event

import (
	"cmp"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/flight"
)

// Envelope is what a message says about itself, and its data. An absent attribute is the zero value;
// of a plain message all but ContentType, CorrelationID and Data may be absent.
//
// Its strings and Data may share memory with the message. Nobody changes them.
type Envelope struct {
	// ID, Source and Type are set together, or all absent in a plain message.
	// ID is unique within Source.
	ID, Source, Type string

	// Subject is what the event is about, within Source. DataSchema is a URI.
	Subject, DataSchema string

	// ContentType is the media type of Data. Absent means the decoder's default, JSON.
	ContentType string

	// PartitionKey is what the event is to be ordered by. Sequence orders the events of one source.
	PartitionKey, Sequence string

	// CorrelationID is common to all that follows from one cause; CausationID is the id of the
	// message that led to this one.
	CorrelationID, CausationID string

	// SchemaVersion is the version of the data's schema as it was sent; 1 when the message has none.
	SchemaVersion int

	// Time is when the event happened.
	Time time.Time

	// Extensions are the attributes beyond those above, by name without a prefix, in the canonical
	// string form of CloudEvents. nil: there are none.
	Extensions map[string]string

	// Data is the event's data as it was sent, before any upcaster. nil: there is none (a tombstone).
	// Of a structured event with JSON data it is that part of the payload, byte for byte.
	Data []byte
}

// Parse reads the envelope of msg:
//
//   - structured mode, if the content type begins with application/cloudevents in any case of letters.
//     Only the JSON format is supported, and no batches;
//   - binary mode, if there is any of the metadata keys ce_specversion, ce_id, ce_source, ce_type:
//     then all four must be right;
//   - else plain. Other ce_ attributes are read where they are, so that a plain message can carry a
//     correlation id or a partition key without having to be a CloudEvent.
//
// Every attribute is checked against the rules of CloudEvents 1.0. The error is an [*Error]; the envelope
// that comes with it holds what could be read, and the whole payload as Data.
func Parse(msg *message.Message) (Envelope, error) {
	var e Envelope
	err := e.parse(msg)
	return e, err
}

// parse is Parse into e, which spares the stack of a fresh goroutine three copies.
func (e *Envelope) parse(msg *message.Message) error {
	*e = Envelope{}
	e.SchemaVersion, e.ContentType, e.Data = 1, msg.Metadata[MetaContentType], msg.Payload
	if err := undecodable(msg); err != nil {
		return err
	}
	var err *Error
	if isStructured(e.ContentType) {
		err = e.readStructured(msg.Payload)
	} else {
		err = e.readMetadata(msg.Metadata)
	}
	e.readCorrelation(msg.Metadata)
	if err != nil {
		e.ContentType, e.Data = msg.Metadata[MetaContentType], msg.Payload
		return err
	}
	return nil
}

// TypeOf returns the event type of msg, or "" for a plain message. It reads as little as it can: an error
// of another attribute is left to [Parse]. It does not allocate in binary mode.
func TypeOf(msg *message.Message) (string, error) {
	if err := undecodable(msg); err != nil {
		return "", err
	}
	field, t := MetaType, msg.Metadata[MetaType]
	switch {
	case isStructured(msg.Metadata[MetaContentType]):
		var err *Error
		if t, err = structuredType(msg.Metadata[MetaContentType], msg.Payload); err != nil {
			return "", err
		}
		field = "type"
	case t == "" && isPlain(msg.Metadata):
		return "", nil
	}
	if t == "" {
		return "", invalid(field, "", errMissing)
	}
	if err := checkValue(t); err != nil {
		return "", invalid(field, t, err)
	}
	return t, nil
}

// KeyOf returns what the event is to be ordered by where the broker has no key of its own: its partition
// key, else its subject, else "". In binary mode these are the metadata ce_partitionkey and ce_subject, and it does not allocate. In
// structured mode they are the event's own, unless the metadata have ce_partitionkey, and those of the metadata where it has neither.
func KeyOf(msg *message.Message) string {
	if key := msg.Metadata[MetaPartitionKey]; key != "" {
		return key
	}
	if isStructured(msg.Metadata[MetaContentType]) {
		key, subject := scanTwo(msg.Payload, "partitionkey", "subject")
		if key = cmp.Or(key, subject); key != "" {
			return key
		}
	}
	return msg.Metadata[MetaSubject]
}

// undecodable reports the error of an adapter that could not make sense of what it received. The
// metadata may then be anything: without this, such a message could pass for one of an unknown type.
func undecodable(msg *message.Message) error {
	ctx := msg.Context()
	var d *brokers.Delivery
	if f := flight.From(ctx); f != nil { // the shorter way to the same
		d = f.Delivery
	} else {
		d = brokers.DeliveryOf(ctx)
	}
	if d != nil && d.DecodeError != nil {
		return invalid("payload", sizeOf(msg.Payload, ""), d.DecodeError)
	}
	return nil
}

const cePrefix = "ce_"

func isPlain(md message.Metadata) bool {
	for _, key := range [...]string{MetaSpecVersion, MetaID, MetaSource, MetaType} {
		if _, ok := md[key]; ok {
			return false
		}
	}
	return true
}

func (e *Envelope) readMetadata(md message.Metadata) *Error {
	var have, empty attribute
	var bad *Error
	var badKey string
	for key, value := range md {
		name, ok := strings.CutPrefix(key, cePrefix)
		if !ok {
			continue
		}
		a := attributeOf(name)
		if value == "" {
			empty |= a
			continue
		}
		have |= a
		// A map has no order. The error must not depend on it: dead letters are grouped by it.
		if err := e.set(a, name, value); err != nil && (bad == nil || key < badKey) {
			bad, badKey = invalid(key, value, err), key
		}
	}
	switch {
	case bad != nil:
		return bad
	case (have|empty)&required == 0:
		return nil
	}
	name := firstMissing(have)
	switch {
	case name == "":
		return nil
	case empty&attributeOf(name) != 0:
		return invalid(cePrefix+name, "", errEmpty)
	default:
		return invalid(cePrefix+name, "", errMissing)
	}
}

// readCorrelation reads the correlation that a middleware has put beside the envelope. It is not part
// of the envelope, so a bad value is left out and is no reason to refuse the message.
func (e *Envelope) readCorrelation(md message.Metadata) {
	first := func(keys ...string) string {
		for _, key := range keys {
			if v := md[key]; v != "" && checkValue(v) == nil {
				return v
			}
		}
		return ""
	}
	if e.CorrelationID == "" {
		e.CorrelationID = first(MetaCorrelationID, MetaWatermillCorrelationID)
	}
	if e.CausationID == "" {
		e.CausationID = first(MetaCausationID)
	}
}

// set checks an attribute's value, which is not empty, and takes it over.
func (e *Envelope) set(a attribute, name, value string) error {
	if a == extension {
		if err := checkName(name); err != nil {
			return err
		}
	}
	if err := checkValue(value); err != nil {
		return err
	}
	var err error
	switch a {
	case attrID:
		e.ID = value
	case attrSource:
		e.Source = value
	case attrSpecVersion:
		if value != specVersion {
			return errSpecVersion
		}
	case attrType:
		e.Type = value
	case attrTime:
		e.Time, err = parseTime(value)
	case attrSubject:
		e.Subject = value
	case attrDataSchema:
		e.DataSchema = value
	case attrContentType:
		// In binary mode the content type stands outside of the ce_ attributes.
		if e.ContentType == "" {
			e.ContentType = value
		}
	case attrSchemaVersion:
		var v int
		if v, err = parseVersion(value); err == nil {
			e.SchemaVersion = v
		}
	case attrPartitionKey:
		e.PartitionKey = value
	case attrSequence:
		e.Sequence = value
	case attrCorrelationID:
		e.CorrelationID = value
	case attrCausationID:
		e.CausationID = value
	default:
		if e.Extensions == nil {
			e.Extensions = make(map[string]string)
		}
		e.Extensions[name] = value
	}
	return err
}

const specVersion = "1.0"

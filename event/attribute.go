package event

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxAttributeBytes bounds one attribute's value. CloudEvents obliges nobody to carry an event above
// 64 KiB, so a longer attribute is a mistake or an attack, and would be copied into every event that
// the message causes.
const MaxAttributeBytes = 64 << 10

// attribute is a known attribute as one bit, so that a set of them is a number.
type attribute uint16

const (
	attrID attribute = 1 << iota
	attrSource
	attrSpecVersion
	attrType
	attrTime
	attrSubject
	attrDataSchema
	attrContentType
	attrSchemaVersion
	attrPartitionKey
	attrSequence
	attrCorrelationID
	attrCausationID

	extension attribute = 0
	// required are the attributes that every event has, and the ones that make a message an event.
	required = attrID | attrSource | attrSpecVersion | attrType
)

func attributeOf(name string) attribute {
	switch name {
	case "id":
		return attrID
	case "source":
		return attrSource
	case "specversion":
		return attrSpecVersion
	case "type":
		return attrType
	case "time":
		return attrTime
	case "subject":
		return attrSubject
	case "dataschema":
		return attrDataSchema
	case "datacontenttype":
		return attrContentType
	case "schemaversion":
		return attrSchemaVersion
	case "partitionkey":
		return attrPartitionKey
	case "sequence":
		return attrSequence
	case "correlationid":
		return attrCorrelationID
	case "causationid":
		return attrCausationID
	}
	return extension
}

// firstMissing returns the name of a required attribute that is not in have, or "".
func firstMissing(have attribute) string {
	switch missing := required &^ have; {
	case missing&attrSpecVersion != 0:
		return "specversion"
	case missing&attrID != 0:
		return "id"
	case missing&attrSource != 0:
		return "source"
	case missing&attrType != 0:
		return "type"
	}
	return ""
}

var (
	errMissing     = errors.New("missing; an event has specversion, id, source and type")
	errEmpty       = errors.New("empty")
	errName        = errors.New("not an attribute name: it has a character other than a-z and 0-9")
	errReserved    = errors.New("not an attribute name: data is reserved for the data itself")
	errSpecVersion = errors.New(`not supported, only "1.0" is`)
	errUTF8        = errors.New("not UTF-8")
	errCharacter   = errors.New("has a control character or another that CloudEvents forbids")
	errTime        = errors.New("not an RFC 3339 time such as 2006-01-02T15:04:05Z")
	errVersion     = errors.New("not a whole number from 1 to 2147483647")
)

// checkName checks the name of an extension.
func checkName(name string) error {
	if name == "" {
		return errors.New("an attribute without a name")
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return errName
		}
	}
	if name == "data" {
		return errReserved
	}
	return nil
}

// checkValue checks that s is a CloudEvents String of bounded size. It does not allocate for a good one.
func checkValue(s string) error {
	if len(s) > MaxAttributeBytes {
		return fmt.Errorf("%d bytes long, at most %d are allowed", len(s), MaxAttributeBytes)
	}
	ascii := true
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20 || c == 0x7f:
			return errCharacter
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(s) {
		return errUTF8
	}
	for _, r := range s {
		if r >= 0x80 && r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return errCharacter
		}
	}
	return nil
}

// parseTime reads an RFC 3339 time. RFC 3339 does not mind the case of its letters, which time.Time does,
// and does mind one-digit hours, commas and impossible zones, which time.Time does not (go.dev/issue/54580).
func parseTime(s string) (time.Time, error) {
	var t time.Time
	if err := t.UnmarshalText([]byte(strings.ToUpper(s))); err != nil {
		return time.Time{}, errTime
	}
	zone := s[len(s)-len("Z"):]
	if zone != "Z" && zone != "z" {
		zone = s[len(s)-len("+00:00"):]
		if zone[1:] > "23:59" || zone[4:] > "59" {
			return time.Time{}, errTime
		}
	}
	if s[len("2006-01-02T15")] != ':' || strings.Contains(s, ",") {
		return time.Time{}, errTime
	}
	return t, nil
}

func parseVersion(s string) (int, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 || n > math.MaxInt32 || s[0] == '+' {
		return 0, errVersion
	}
	return int(n), nil
}

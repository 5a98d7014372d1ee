package event

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
)

// MaxIDBytes bounds a message id. Longer ones are replaced by their hash.
const MaxIDBytes = 255

// Identify returns the id of msg within a consumer that reads topic. It is the same for each delivery of
// the message and differs from that of every other message. It takes the first of these that there is:
//
//	ce:<source> <id>                                        the CloudEvents id, unique within its source
//	uuid:<topic> <uuid>                                     the Watermill UUID
//	pos:<topic> <incarnation>/<partition>/<offset>          the broker's position
//	postime:<topic> <stored, Unix ns>/<partition>/<offset>  likewise, where the broker tells the time of
//	                                                        storing but not the incarnation
//
// A position alone is not enough: a topic that is deleted and made again counts from the start, and its
// messages would be taken for those of before. A payload says nothing about identity either: two equal
// payments are two payments. So without any of these the error, an [*Error], names what is missing.
//
// An id of more than [MaxIDBytes] bytes, or with anything but printable ASCII in it, which databases
// compare in ways of their own, becomes "sha256:" and its hash. The form is frozen: it is in inboxes.
//
// MetaFrozenID is not read, since anyone can send it: see [IdentifyRedriven].
func Identify(msg *message.Message, topic string) (string, error) {
	var source, id string
	if isStructured(msg.Metadata[MetaContentType]) {
		source, id = scanTwo(msg.Payload, "source", "id")
	} else {
		source, id = msg.Metadata[MetaSource], msg.Metadata[MetaID]
	}
	if source != "" && id != "" {
		return compose("ce:", source, id), nil
	}
	d := brokers.DeliveryOf(msg.Context())
	if msg.UUID != "" {
		if topic == "" && d != nil {
			topic = d.Topic
		}
		return compose("uuid:", topic, msg.UUID), nil
	}
	return identifyPosition(d, topic)
}

func identifyPosition(d *brokers.Delivery, topic string) (string, error) {
	var missing []string
	if d == nil {
		missing = append(missing, "brokers.Delivery")
	} else {
		if d.Topic != "" {
			topic = d.Topic
		}
		if d.Offset < 0 {
			missing = append(missing, "offset")
		}
		if d.Incarnation == "" && d.Time.IsZero() {
			missing = append(missing, "topic incarnation or time")
		}
	}
	if topic == "" {
		missing = append(missing, "topic")
	}
	if len(missing) > 0 {
		return "", invalid("id", "", errors.New(
			"none can be had: no ce_source with ce_id, no UUID, and for the position no "+strings.Join(missing, ", no ")))
	}
	kind, since := "pos:", d.Incarnation
	if since == "" {
		kind, since = "postime:", strconv.FormatInt(d.Time.UnixNano(), 10)
	}
	position := since + "/" + strconv.Itoa(int(d.Partition)) + "/" + strconv.FormatInt(d.Offset, 10)
	return compose(kind, topic, position), nil
}

// IdentifyRedriven is [Identify] for a channel that only Headrace writes to: a redrive topic or a delay
// topic. There a message has a new position, and its id of before is in the metadata, which is believed.
func IdentifyRedriven(msg *message.Message, topic string) (string, error) {
	id := msg.Metadata[MetaFrozenID]
	if id == "" {
		return Identify(msg, topic)
	}
	if len(id) > MaxIDBytes {
		return "", invalid(MetaFrozenID, id, errors.New("longer than 255 bytes: not an id of Identify"))
	}
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return "", invalid(MetaFrozenID, id, errors.New("not printable ASCII: not an id of Identify"))
		}
	}
	return id, nil
}

// NaturalID makes a message id of a natural key, which a function of the application found in the
// message: key:<key>, bounded as [Identify] does. An empty key is an error.
func NaturalID(key string) (string, error) {
	if key == "" {
		return "", invalid("id", "", errors.New("the natural key is empty"))
	}
	return compose("key:", "", key), nil
}

// compose joins the parts so that different parts never give the same id. A space separates them; where
// one of them has a space, or the id does not fit, it is hashed.
func compose(kind, scope, id string) string {
	if len(kind)+len(scope)+1+len(id) > MaxIDBytes || !isGraphic(scope) || !isGraphic(id) {
		return hashed(kind, scope, id)
	}
	if scope == "" {
		return kind + id
	}
	return kind + scope + " " + id
}

func isGraphic(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func hashed(parts ...string) string {
	var b []byte
	for _, p := range parts {
		b = appendPart(b, p)
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// appendPart puts the length before s, so that parts cannot run into each other.
func appendPart(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

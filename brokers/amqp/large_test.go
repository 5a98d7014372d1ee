package amqp_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/classify"
)

// A payload is cut into frames; a header is one frame, and one that is too large ends the connection, and with it all that is under way.
func TestLargeMessagesArriveOrAreNamed(t *testing.T) {
	b := open(t, amqp.Config{MaxMessageBytes: 2 << 20})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 8)
	payload := message.NewMessage("payload", bytes.Repeat([]byte{0, 255}, 1<<19))
	header := message.NewMessage("header", []byte("x"))
	header.Metadata["long"] = strings.Repeat("v", 64<<10)
	most := message.NewMessage("most", []byte("x"))
	most.Metadata["k"] = strings.Repeat("v", b.Capabilities().MaxHeaderBytes-1)
	tooLong := message.NewMessage("too long", nil)
	tooLong.Metadata["long"] = strings.Repeat("v", 128<<10)
	tooLarge := message.NewMessage("too large", make([]byte, 2<<20+1))
	err := adaptertest.Publisher(t, b).Publish(topic, payload, tooLong, header, tooLarge, most)
	failed, ok := errors.AsType[*brokers.PublishError](err)
	if !ok || len(failed.Failed) != 2 || failed.Failed[0].UUID != "too long" || failed.Failed[1].UUID != "too large" {
		t.Fatalf("Publish: %v; want errors of the messages that are too long and too large, and of no other", err)
	}
	for _, f := range failed.Failed {
		if r := (*classify.Classifier)(nil).Classify(f.Err); r.Verdict != classify.VerdictPoison {
			t.Errorf("the error of %q is judged %v, want %v: another try does not help", f.UUID, r.Verdict, classify.VerdictPoison)
		}
	}
	sent := map[string]*message.Message{"payload": payload, "header": header, "most": most}
	for count := range 2 { // the second time through the queues of a delay, where the server adds to the header
		for _, m := range adaptertest.Take(t, in, len(sent)) {
			if d := adaptertest.Delivery(t, m); !m.Equals(sent[m.UUID]) || d.Count != count+1 {
				t.Errorf("got message %q, delivery %d, with %d bytes of payload; want it as it was sent, delivery %d", m.UUID, d.Count, len(m.Payload), count+1)
			}
			if count == 1 {
				m.Ack()
			} else if !adaptertest.Delivery(t, m).Delay(1) {
				t.Error("Delay() = false")
			}
		}
	}
	adaptertest.Quiet(t, in, quiet)
}

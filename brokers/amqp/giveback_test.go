package amqp_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
)

// S5: what is given back goes to the queue after a pause, which grows with the deliveries of what is nacked. Others go on meanwhile.
func TestGivenBackDeliveryIsHeldBack(t *testing.T) {
	const pause = 150 * time.Millisecond
	b := open(t, amqp.Config{NackDelay: pause, MaxNackDelay: 2 * pause})
	topic := rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 2)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("", 0, 3)...)
	m := adaptertest.Next(t, in)
	for count, tt := range []struct {
		giveBack func(*message.Message)
		pause    time.Duration
	}{
		{func(m *message.Message) { m.Nack() }, pause},
		{func(m *message.Message) { m.Nack() }, 2 * pause},
		{func(m *message.Message) { m.Nack() }, 2 * pause}, // at most
		{func(m *message.Message) { adaptertest.Delivery(t, m).Release() }, pause},
	} {
		began := time.Now()
		tt.giveBack(m)
		if count == 0 {
			if got := adaptertest.Ack(t, in, 2); got[0] != "1" || got[1] != "2" {
				t.Errorf("got %q while 0 is held back, want 1 and 2", got)
			}
		}
		m = adaptertest.Next(t, in)
		if took, d := time.Since(began), adaptertest.Delivery(t, m); string(m.Payload) != "0" || took < tt.pause || d.Count != count+2 {
			t.Errorf("got %q, delivery %d, after %v; want 0, delivery %d, after %v", m.Payload, d.Count, took, count+2, tt.pause)
		}
	}
	m.Ack()
	adaptertest.Quiet(t, in, quiet)
}

package kafka

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Publish failed since the topic seemed to be unknown, and it is the same topic still. Where the producer forgets it for that, its sequence numbers
// begin again: the cluster takes what has them for sent twice, drops it, and Publish returns nil.
func TestTopicThatIsTheSameIsNotPurged(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := New(Config{Seeds: c.ListenAddrs(), Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		if err := p.Publish("topic", message.NewMessage("", nil)); err != nil {
			t.Fatal(err)
		}
		if ends, err := b.Ends(t.Context(), "topic"); err != nil || ends[0] != i+1 {
			t.Fatalf("after %d messages that were confirmed the topic ends at %v (%v)", i+1, ends, err)
		}
		b.unknown("topic")
	}
}

package brokertest

import (
	"crypto/rand"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// keys of any bytes arrive as they are, also where the broker has a key of its own.
func keys(t *T) {
	r := t.read("c", 1)
	for _, key := range []string{"", "a", " ", "\x00\xff\xfe", "Zoë/東京", strings.Repeat("k", 1000)} {
		t.publishAll([]*message.Message{numbered(1, key)})
		m := r.next()
		if got, there := m.Metadata["ce_partitionkey"]; got != key || !there {
			t.Errorf("ce_partitionkey is %.40q (there: %v), want %.40q", got, there, key)
		}
		if d := t.delivery(m); d.Key != nil && string(d.Key) != key {
			t.Errorf("Delivery.Key is %.40q, want %.40q, or none", d.Key, key)
		}
		m.Ack()
	}
}

// A header that comes twice arrives with all its values, in order, in Delivery.Headers, and with one of them in the metadata.
func duplicateHeaders(t *T) {
	if t.PublishHeaderTwice == nil {
		t.Skip("a message has one header of a name")
	}
	const name, first, second = "x-twice", "first", "second"
	r := t.read("c", 1)
	t.PublishHeaderTwice(t, t.broker, t.topic, name, first, second)
	m := r.next()
	d := t.delivery(m)
	if d.DecodeError != nil {
		t.Errorf("DecodeError is %v", d.DecodeError)
	}
	var got []string
	for _, h := range d.Headers {
		if h.Key == name {
			got = append(got, string(h.Value))
		}
	}
	if !slices.Equal(got, []string{first, second}) {
		t.Errorf("Delivery.Headers has %q for %s, want %q", got, name, []string{first, second})
	}
	if v := m.Metadata[name]; v != first && v != second {
		t.Errorf("metadata %s is %q, want %q or %q", name, v, first, second)
	}
	m.Ack()
}

// Messages of 1 MB, of bytes that no compression makes smaller, arrive or are refused for good; nothing else is lost.
func large(t *T) {
	m := message.NewMessage("large", make([]byte, 1_000_000))
	_, _ = rand.Read(m.Payload) // it gives no error
	m.Metadata["ce_partitionkey"] = "key"
	t.arrivesOrRefused(m, t.LargeIsRefused, "")
}

// A publisher is closed while others publish with it: what was confirmed arrives, what comes too late is an error, and nobody hangs.
func closeWhilePublishing(t *T) {
	const rounds, publishers, most = 3, 4, 200
	r := t.read("c", t.window(64))
	confirmed := make(map[int]bool)
	for round := range rounds {
		pub := t.publisher()
		var mu sync.Mutex
		var ended sync.WaitGroup
		begun := make(chan struct{}, publishers)
		for p := range publishers {
			ended.Go(func() {
				for i := range most {
					n := (round*publishers+p)*most + i
					if err := pub.Publish(t.topic, numbered(n, strconv.Itoa(p))); err != nil {
						return
					}
					mu.Lock()
					confirmed[n] = true
					mu.Unlock()
					if i == 2 {
						begun <- struct{}{}
					}
				}
			})
		}
		<-begun
		done := make(chan error, 1)
		go func() { done <- pub.Close() }()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Publisher.Close while others publish: %v", err)
			}
		case <-time.After(t.Wait):
			t.Fatalf("Publisher.Close hangs for %v while others publish", t.Wait)
		}
		ended.Wait()
		if err := pub.Publish(t.topic, numbered(0, "late")); err == nil {
			t.Error("Publish after Publisher.Close gave no error")
		}
	}
	for len(confirmed) > 0 {
		m := r.poll(t.Wait)
		if m == nil {
			t.Fatalf("%d messages were confirmed and did not come", len(confirmed))
		}
		delete(confirmed, number(m))
		m.Ack()
	}
}

package jetstream_test

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/jetstream"
)

// holed gives connections on which nothing arrives for a while once a member has asked for the others.
type holed struct{ nats.InProcessConnProvider }

func (h holed) InProcessConn() (net.Conn, error) {
	c, err := h.InProcessConnProvider.InProcessConn()
	return &holedConn{Conn: c, passes: make(chan struct{})}, err
}

type holedConn struct {
	net.Conn
	passes chan struct{} // closed when the hole is over

	mu   sync.Mutex
	hole bool
}

func (c *holedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	if !c.hole && bytes.Contains(b, []byte("PUB _HEADRACE.alive.")) {
		c.hole = true
		time.AfterFunc(time.Second, func() { close(c.passes) })
	}
	c.mu.Unlock()
	return c.Conn.Write(b)
}

func (c *holedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	hole := c.hole
	c.mu.Unlock()
	if hole {
		<-c.passes
	}
	return n, err
}

// A process was killed. Its successor asked for other members while the network let nothing pass, took the silence for a member that
// runs, and left what the dead one had held to come after AckWait, behind newer messages of the same keys.
func TestSilentNetworkIsNoMember(t *testing.T) {
	b := newBroker(t, jetstream.Config{})
	adaptertest.Publish(t, b, "orders", adaptertest.Numbered("key", 0, 10)...)
	crash(t, b, jetstream.Config{}, "c", "orders", 5)
	r, err := jetstream.New(jetstream.Config{Server: holed{b.Server()}, Logger: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	_, in := adaptertest.Subscribe(t, r, "c", "orders", 10)
	for i := range 10 {
		m := adaptertest.Next(t, in)
		if got, want := string(m.Payload), string(adaptertest.Numbered("key", i, 1)[0].Payload); got != want {
			t.Fatalf("message %d is %q, want %q", i, got, want)
		}
		m.Ack()
	}
}

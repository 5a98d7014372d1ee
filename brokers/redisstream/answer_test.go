package redisstream_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/redisstream"
)

// forgetful loses the first answer with entries in it, and its connection.
type forgetful struct {
	net.Conn
	lost *atomic.Bool
}

func (c forgetful) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if bytes.Contains(b[:n], []byte("payload")) && !c.lost.Swap(true) {
		_ = c.Close() // that is the point
		return 0, io.EOF
	}
	return n, err
}

// A connection was cut while the server answered a read. The client repeated the read, which gave newer entries; those of
// the lost answer stayed with the member, which lived and did not know of them, until it was restarted.
func TestEntriesOfALostAnswerComeFirst(t *testing.T) {
	var lost atomic.Bool
	o := options(t)
	o.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return forgetful{c, &lost}, err
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	topic := rand.Text()
	adaptertest.Publish(t, open(t, redisstream.Config{}), topic, adaptertest.Numbered("", 0, 20)...)
	_, in := adaptertest.Subscribe(t, open(t, redisstream.Config{Client: c}), "c", topic, 5)
	got := adaptertest.Ack(t, in, 20)
	if !lost.Load() {
		t.Fatal("no answer was lost")
	}
	var want []string
	for i := range 20 {
		want = append(want, strconv.Itoa(i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

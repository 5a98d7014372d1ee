package proxy_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/integration/chaos/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 10 * time.Second

// through returns a proxy to a server that sends back what it gets.
func through(t *testing.T) *proxy.Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			ended.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until either side ends
			})
		}
	})
	p, err := proxy.New(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), l.Close()); err != nil {
			t.Error(err)
		}
		ended.Wait()
	})
	return p
}

func dial(t *testing.T, p *proxy.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// read fails the test unless text comes within d.
func read(t *testing.T, c net.Conn, text string, d time.Duration) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("read %q, %v; want %q", got, err, text)
	}
}

// silent fails the test unless nothing comes for d, and the connection stays.
func silent(t *testing.T, c net.Conn, d time.Duration) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want silence", n, err)
	}
}

// ended fails the test unless the connection ends.
func ended(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
}

func TestBytesPass(t *testing.T) {
	c := dial(t, through(t))
	sent := bytes.Repeat([]byte("0123456789"), 1<<18) // more than is on its way at once
	var got []byte
	var reader sync.WaitGroup
	reader.Go(func() {
		got = make([]byte, len(sent))
		_, _ = io.ReadFull(c, got) // compared below
	})
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	reader.Wait()
	if !bytes.Equal(got, sent) {
		t.Fatalf("got %d bytes that are not those sent", len(got))
	}
}

func TestCutEndsConnectionsAndTakesNewOnes(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	write(t, c, "a")
	read(t, c, "a", limit)
	p.Cut()
	ended(t, c)
	c = dial(t, p)
	write(t, c, "b")
	read(t, c, "b", limit)
}

func TestHoleHoldsAndLosesNothing(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	write(t, c, "a")
	read(t, c, "a", limit)
	p.Hole(true)
	p.Hole(true)
	write(t, c, "bc")
	fresh := dial(t, p) // the system takes it; nobody serves it
	write(t, fresh, "d")
	silent(t, c, 50*time.Millisecond)
	silent(t, fresh, 50*time.Millisecond)
	p.Hole(false)
	read(t, c, "bc", limit)
	read(t, fresh, "d", limit)
}

func TestCutEndsAHeldConnection(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	p.Hole(true)
	write(t, c, "a")
	silent(t, c, 20*time.Millisecond)
	p.Cut()
	ended(t, c)
	p.Hole(false)
}

func TestSlowDelaysBothDirections(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	write(t, c, "a")
	read(t, c, "a", limit)
	const d = 50 * time.Millisecond
	p.Slow(d)
	began := time.Now()
	for range 10 {
		write(t, c, "b")
	}
	read(t, c, "bbbbbbbbbb", limit)
	if took := time.Since(began); took < 2*d {
		t.Errorf("there and back took %v, want at least %v", took, 2*d)
	}
	p.Slow(0)
	write(t, c, "c")
	read(t, c, "c", limit)
}

func TestAServerThatIsAwayEndsTheConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(away)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ended(t, dial(t, p))
}

func TestCloseEndsConnections(t *testing.T) {
	p := through(t)
	c := dial(t, p)
	p.Hole(true)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, c)
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("a connection was made after Close")
	}
}

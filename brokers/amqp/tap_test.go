package amqp_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/headrace-go/headrace/internal/testserver"
)

// tap is on the line between a broker and the real server. on sees what the broker sends before the server does.
type tap struct {
	mu     sync.Mutex
	on     func(sent string)
	frozen bool
}

// newTap returns a tap, and the URL that leads through it.
func newTap(t *testing.T) (line *tap, through string) {
	t.Helper()
	u, err := url.Parse(testserver.AMQP(t))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	line = &tap{}
	server := u.Host
	ctx, stop := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return // closed
			}
			ended.Go(func() { line.pass(ctx, in, server) })
		}
	})
	t.Cleanup(func() {
		stop()
		if err := listener.Close(); err != nil {
			t.Errorf("close the tap: %v", err)
		}
		ended.Wait()
	})
	u.Host = listener.Addr().String()
	return line, u.String()
}

// set has on called from now on, nil: nothing.
func (p *tap) set(on func(sent string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = on
}

// freeze lets nothing through any more, and tells nobody.
func (p *tap) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *tap) state() (on func(sent string), frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.on, p.frozen
}

func (p *tap) pass(ctx context.Context, in net.Conn, server string) {
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		_ = in.Close() // that says it
		return
	}
	end := func() { _ = errors.Join(in.Close(), out.Close()) } // the other way may have ended both
	defer end()
	defer context.AfterFunc(ctx, end)()
	var both sync.WaitGroup
	both.Go(func() { p.copy(out, in, true); end() })
	both.Go(func() { p.copy(in, out, false); end() })
	both.Wait()
}

func (p *tap) copy(to, from net.Conn, sees bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if on, _ := p.state(); sees && on != nil {
			on(string(buf[:n]))
		}
		if _, frozen := p.state(); frozen {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// The beginnings of some methods on the wire: class, method, a reserved short, names.
func declares(queue string) string { return "\x00\x32\x00\x0a\x00\x00" + short(queue) }

func binds(queue, exchange string) string {
	return "\x00\x32\x00\x14\x00\x00" + short(queue) + short(exchange)
}
func gets(queue string) string { return "\x00\x3c\x00\x46\x00\x00" + short(queue) }

func short(s string) string { return string([]byte{byte(len(s))}) + s }

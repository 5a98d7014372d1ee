package testserver

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy is a TCP proxy in this process, whose connections can be cut as those of a killed process are.
type Proxy struct {
	listener net.Listener
	target   string
	ended    sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[*net.TCPConn]bool
}

// NewProxy passes connections on to target, host:port, until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	return NewProxyAt(t, "127.0.0.1:0", target)
}

// NewProxyOf is NewProxy to the server of a URL. It also returns the URL that leads through the proxy.
func NewProxyOf(t testing.TB, server string) (*Proxy, string) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	p := NewProxy(t, u.Host)
	u.Host = p.Addr()
	return p, u.String()
}

// NewProxyAt is NewProxy at an address, host:port, that the server has told its clients.
func NewProxyAt(t testing.TB, addr, target string) *Proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, target: target, conns: map[*net.TCPConn]bool{}}
	ctx := t.Context()
	p.ended.Go(func() { p.accept(ctx) })
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
		p.Down()
		p.ended.Wait()
	})
	return p
}

// Addr is the proxy's own address, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut resets the connections that there are. Others can be made at once.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.SetLinger(0) // a reset, and no orderly end
		_ = c.Close()
	}
}

// Down resets the connections that there are, and lets no other through until Up.
func (p *Proxy) Down() {
	p.set(true)
	p.Cut()
}

// Up lets connections through again.
func (p *Proxy) Up() { p.set(false) }

func (p *Proxy) set(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.ended.Go(func() { p.pass(ctx, in) })
	}
}

// pass copies both ways until one side ends.
func (p *Proxy) pass(ctx context.Context, in net.Conn) {
	defer func() { _ = in.Close() }() // it may have been cut
	out, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.target)
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }() // it may have been cut
	if !p.note(true, in, out) {
		return
	}
	defer p.note(false, in, out)
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the end of either ends both
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
}

// note remembers connections to cut, or forgets them. It reports false while the proxy is down.
func (p *Proxy) note(open bool, conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if tcp, ok := c.(*net.TCPConn); ok && open && !p.down {
			p.conns[tcp] = true
		} else if ok {
			delete(p.conns, tcp)
		}
	}
	return !p.down
}

package failures_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy is a TCP proxy in this process whose connections can be cut.
type proxy struct {
	listener net.Listener
	target   string
	ended    sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

// newProxy passes connections on to target until its test ends.
func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.ended.Go(p.accept)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
		p.cut()
		p.ended.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.ended.Go(func() { p.pass(in) })
	}
}

// pass copies both ways until one side ends or the proxy is cut.
func (p *proxy) pass(in net.Conn) {
	defer in.Close() // it may have been cut
	out, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer out.Close() // it may have been cut
	if !p.keep(in, out) {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the end of either ends both
			_ = in.Close()
			_ = out.Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, in)
	delete(p.conns, out)
}

// keep remembers connections to cut. It reports false while the proxy is down.
func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if !p.down {
			p.conns[c] = true
		}
	}
	return !p.down
}

// cut ends all connections, and every new one at once.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.conns {
		_ = c.Close()
	}
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

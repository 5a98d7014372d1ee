// Package proxy is a TCP proxy in the process whose network can fail: connections are cut, bytes come late, or nothing
// passes for a while. As with TCP itself no byte is lost within a connection that goes on: what a black hole holds
// back arrives when it ends, or the connection is cut. (A proxy that drops bytes of a live connection makes failures that no
// network makes.)
package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	chunkBytes = 16 << 10
	// maxChunks bounds what is on its way in one direction of a connection. Behind that the sender waits.
	maxChunks = 64
)

// Proxy passes connections on to one address. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	ended    sync.WaitGroup

	mu      sync.Mutex
	latency time.Duration
	passes  chan struct{} // closed while bytes pass
	conns   map[*conn]struct{}
	closed  bool
}

// conn is a pair of connections: the client's and ours to the target.
type conn struct {
	context.Context
	end context.CancelFunc
	in  net.Conn
}

// New listens on a free port of the loopback interface and passes connections on to target, host:port.
func New(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		return nil, fmt.Errorf("proxy to %s: %w", target, err)
	}
	p := &Proxy{listener: l, target: target, passes: make(chan struct{}), conns: map[*conn]struct{}{}}
	close(p.passes)
	p.ended.Go(p.accept)
	return p, nil
}

// Addr is where it listens, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut ends all connections. New ones are taken at once.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.end()
	}
}

// Slow makes bytes that come from now on arrive after d, in both directions; 0 ends it.
func (p *Proxy) Slow(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = d
}

// Hole lets nothing pass while on: connections stay open and new ones are not made. When it is off, all goes on.
func (p *Proxy) Hole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := true
	select {
	case <-p.passes:
	default:
		open = false
	}
	switch {
	case on && open:
		p.passes = make(chan struct{})
	case !on && !open:
		close(p.passes)
	}
}

// Close ends all connections, takes no more, and waits for its goroutines.
func (p *Proxy) Close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
	p.ended.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client was quicker
		}
		ctx, end := context.WithCancel(context.Background())
		c := &conn{ctx, end, in}
		p.mu.Lock()
		if p.closed {
			c.end()
		}
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		p.ended.Go(func() {
			p.serve(c)
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, c)
		})
	}
}

// serve passes bytes both ways until one side ends or the connection is cut.
func (p *Proxy) serve(c *conn) {
	defer c.end()
	var both sync.WaitGroup
	defer both.Wait()
	both.Go(func() {
		<-c.Done()
		_ = c.in.Close() // reads and writes end with it
	})
	if !p.pass(c, time.Now()) {
		return
	}
	out, err := (&net.Dialer{}).DialContext(c, "tcp", p.target)
	if err != nil {
		c.end() // as if refused, a little later
		return
	}
	both.Go(func() {
		<-c.Done()
		_ = out.Close()
	})
	both.Go(func() { p.copy(c, out, c.in) })
	p.copy(c, c.in, out)
}

// chunk is what was read at once, and when it may arrive.
type chunk struct {
	bytes []byte
	due   time.Time
}

// copy passes one direction, until its source has ended and all of it has arrived, or c ends.
func (p *Proxy) copy(c *conn, to, from net.Conn) {
	chunks := make(chan chunk, maxChunks)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer c.end()
	reader.Go(func() {
		defer close(chunks)
		for {
			buffer := make([]byte, chunkBytes)
			n, err := from.Read(buffer)
			if n > 0 {
				select {
				case chunks <- chunk{buffer[:n], time.Now().Add(p.delay())}:
				case <-c.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for next := range chunks {
		if !p.pass(c, next.due) {
			return
		}
		if _, err := to.Write(next.bytes); err != nil {
			return
		}
	}
	// The end of a connection is a packet like others.
	p.pass(c, time.Now().Add(p.delay()))
}

func (p *Proxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latency
}

// pass waits until due, and until there is no hole. It reports false if c has ended.
func (p *Proxy) pass(c *conn, due time.Time) bool {
	if d := time.Until(due); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.Done():
			return false
		}
	}
	p.mu.Lock()
	passes := p.passes
	p.mu.Unlock()
	select {
	case <-passes:
		return c.Err() == nil
	case <-c.Done():
		return false
	}
}

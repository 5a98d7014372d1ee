package amqp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// writeTimeout is how long the server may not read before the connection is lost. A server that is short of memory or disk says so, and
// then nothing is written to it.
const writeTimeout = 30 * time.Second

// defaultFrameSize is what the client asks for, and RabbitMQ's default.
const defaultFrameSize = 131072

// ErrBlocked is what errors wrap if the server takes no messages for now, since it is short of memory or disk.
var ErrBlocked = errors.New("the server has blocked the connection")

// link keeps one connection, which it makes when it is asked for one. Publishing has a link of its own, since a server that is short
// of memory stops reading from connections that publish: acks on the same one would not arrive either.
type link struct {
	config *Config
	name   string
	turn   chan struct{} // capacity 1: taken by whoever dials
	wg     sync.WaitGroup

	mu        sync.Mutex
	conn      *amqp091.Connection
	socket    net.Conn // of conn
	closed    bool
	unblocked chan struct{} // not nil: blocked, closed when it is no more
	reason    string
}

func newLink(config *Config, use string) *link {
	return &link{config: config, name: config.Name + " " + use, turn: make(chan struct{}, 1)}
}

// channel opens a channel, on a new connection if there is none.
func (l *link) channel(ctx context.Context) (*amqp091.Channel, error) {
	conn, err := l.connection(ctx)
	if err != nil {
		return nil, err
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	return ch, nil
}

// do runs f, which asks the server, and returns its error; or that of ctx, when it ends before. Then f goes on by itself until it has its answer or
// the connection ends: the client's calls have no limit, and a server that is short of memory answers none on this link.
func (l *link) do(ctx context.Context, f func() error) error {
	if err := l.waitUnblocked(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	if !l.start(func() { done <- f() }) {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
}

// onChannel runs f as do does, with a channel of its own.
func (l *link) onChannel(ctx context.Context, f func(*amqp091.Channel) error) error {
	return l.do(ctx, func() error {
		ch, err := l.channel(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = ch.Close() }() // nothing is under way on it
		return f(ch)
	})
}

// start runs f in a goroutine that close waits for. It returns false after close.
func (l *link) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.wg.Go(f)
	return true
}

func (l *link) connection(ctx context.Context) (*amqp091.Connection, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect: %w", context.Cause(ctx))
	}
	defer func() { <-l.turn }()
	if conn, err := l.current(); conn != nil || err != nil {
		return conn, err
	}
	conn, socket, err := l.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close() // it was not used
		return nil, ErrClosed
	}
	l.conn, l.socket, l.unblocked = conn, socket, nil
	ended := conn.NotifyClose(make(chan *amqp091.Error, 1))
	blocks := conn.NotifyBlocked(make(chan amqp091.Blocking, 1))
	l.wg.Go(func() { l.watch(ended, blocks) })
	return conn, nil
}

// current returns the connection, nil if there is none that is open.
func (l *link) current() (*amqp091.Connection, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, ErrClosed
	case l.conn == nil || l.conn.IsClosed():
		return nil, nil
	}
	return l.conn, nil
}

// dial tries each node once.
func (l *link) dial(ctx context.Context) (*amqp091.Connection, net.Conn, error) {
	var errs []error
	n := len(l.config.URLs)
	first := rand.IntN(n)
	for i := range n {
		conn, socket, err := l.dialOne(ctx, l.config.URLs[(first+i)%n])
		if err == nil {
			return conn, socket, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, errors.Join(errs...)
}

func (l *link) dialOne(ctx context.Context, url string) (conn *amqp091.Connection, socket net.Conn, err error) {
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(l.name)
	config := amqp091.Config{Heartbeat: l.config.Heartbeat, Properties: properties, TLSClientConfig: l.config.TLS}
	finished := func() bool { return true }
	config.Dial = func(network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: l.config.DialTimeout}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := conn.SetDeadline(time.Now().Add(l.config.DialTimeout)); err != nil { // the client takes it off after the handshake
			return nil, errors.Join(err, conn.Close())
		}
		socket = conn
		finished = context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends the handshake
		return &impatient{conn}, nil
	}
	conn, err = amqp091.DialConfig(url, config)
	if !finished() && err == nil {
		_ = conn.Close() // its socket is closed
		return nil, nil, context.Cause(ctx)
	}
	return conn, socket, err
}

// watch follows a connection's state to its end.
func (l *link) watch(ended <-chan *amqp091.Error, blocks <-chan amqp091.Blocking) {
	for {
		select {
		case e := <-ended:
			if e != nil {
				l.config.Logger.Warn("amqp: the connection was lost", "connection", l.name, "error", e)
			}
			l.setBlocked(false, "")
			return
		case b, open := <-blocks:
			if !open {
				blocks = nil
				continue
			}
			l.setBlocked(b.Active, b.Reason)
		}
	}
}

func (l *link) setBlocked(blocked bool, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reason = reason
	switch {
	case blocked && l.unblocked == nil:
		l.unblocked = make(chan struct{})
		l.config.Logger.Warn("amqp: the server has blocked the connection", "connection", l.name, "reason", reason)
	case !blocked && l.unblocked != nil:
		close(l.unblocked)
		l.unblocked = nil
	}
}

// waitUnblocked waits while the connection is blocked.
func (l *link) waitUnblocked(ctx context.Context) error {
	for {
		l.mu.Lock()
		unblocked, reason := l.unblocked, l.reason
		l.mu.Unlock()
		if unblocked == nil {
			return nil
		}
		select {
		case <-unblocked:
		case <-ctx.Done():
			return fmt.Errorf("%w (%s): %w", ErrBlocked, reason, context.Cause(ctx))
		}
	}
}

// frameSize is the largest frame of the present or last connection.
func (l *link) frameSize() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.conn.Config.FrameSize <= 0 {
		return defaultFrameSize
	}
	return l.conn.Config.FrameSize
}

// cut ends the present connection without a word, and with it the calls that wait for the server.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil {
		_ = l.socket.Close() // an error says that it was lost before
	}
}

// close ends the connection for good. It is idempotent.
func (l *link) close() {
	l.mu.Lock()
	conn, socket := l.conn, l.socket
	l.closed, l.conn = true, nil
	l.mu.Unlock()
	if conn != nil {
		// The client's own limit is put off by its heartbeats, while a server that is short of memory does not answer.
		limit := time.AfterFunc(l.config.CloseTimeout, func() { _ = socket.Close() })
		_ = conn.Close() // an error says that it was lost before, or is by now
		limit.Stop()
	}
	l.wg.Wait()
}

// impatient is a connection whose writes have a limit: the client holds locks while it writes.
type impatient struct{ net.Conn }

func (c *impatient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Package embedded runs a NATS server with JetStream in this process, on a directory. A program needs no
// other server to begin with, keeps its messages across restarts, and grows by a change of one line, from this
// package to jetstream.New with a URL.
//
// It is a package of its own so that only its users compile the server.
package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/headrace-go/headrace/brokers/jetstream"
)

// DefaultSyncInterval is the default of [Config.SyncInterval].
const DefaultSyncInterval = time.Second

// startTimeout bounds the start, which recovers the streams from disk.
const startTimeout = 30 * time.Second

// Config configures a [Server].
type Config struct {
	// Dir is where the server keeps its streams. It is made if it is not there, and belongs to one server at a time:
	// another one is refused on Unix. Needed.
	Dir string

	// Listen is an address ("127.0.0.1:4222") where other processes can connect, without
	// authentication. Default: none; only this process can.
	Listen string

	// MaxBytes bounds the disk space of all streams. Default: three quarters of what is free, the server's own rule.
	MaxBytes int64

	// SyncInterval is how often written messages are forced to disk. A process that is killed loses nothing; a machine that
	// loses its power loses what was confirmed since. Default 1 s. SyncAlways forces each one before it is confirmed.
	SyncInterval time.Duration
	SyncAlways   bool

	// Logger gets the server's warnings and errors. Default slog.Default().
	Logger *slog.Logger
}

// Server is a running server. It is safe for concurrent use.
type Server struct {
	server *server.Server
	unlock func() error
	stop   sync.Once
	err    error
}

// Start starts a server and returns when it is ready.
func Start(config Config) (*Server, error) {
	if config.Dir == "" {
		return nil, errors.New("embedded: Config.Dir is empty")
	}
	if config.MaxBytes < 0 {
		return nil, fmt.Errorf("embedded: Config.MaxBytes is %d, want at least 0", config.MaxBytes)
	}
	if config.SyncInterval < 0 {
		return nil, fmt.Errorf("embedded: Config.SyncInterval is %v, want more than 0", config.SyncInterval)
	}
	if config.SyncInterval == 0 {
		config.SyncInterval = DefaultSyncInterval
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	options := &server.Options{
		ServerName:        "headrace-embedded",
		JetStream:         true,
		StoreDir:          config.Dir,
		JetStreamMaxStore: config.MaxBytes,
		SyncInterval:      config.SyncInterval,
		SyncAlways:        config.SyncAlways,
		DontListen:        config.Listen == "",
		NoSigs:            true,
	}
	if config.Listen != "" {
		addr, err := net.ResolveTCPAddr("tcp", config.Listen)
		if err != nil {
			return nil, fmt.Errorf("embedded: Config.Listen is %q: %w", config.Listen, err)
		}
		options.Host, options.Port = addr.IP.String(), addr.Port
		if addr.IP == nil {
			options.Host = "0.0.0.0"
		}
		if addr.Port == 0 {
			options.Port = server.RANDOM_PORT
		}
	}
	if err := os.MkdirAll(config.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("embedded: Config.Dir: %w", err)
	}
	unlock, err := lock(filepath.Join(config.Dir, "headrace.lock"))
	if err != nil {
		return nil, fmt.Errorf("embedded: Config.Dir is %q: %w", config.Dir, err)
	}
	s := &Server{unlock: unlock}
	if s.server, err = server.NewServer(options); err != nil {
		return nil, errors.Join(fmt.Errorf("embedded: %w", err), unlock())
	}
	s.server.SetLoggerV2(logger{config.Logger}, false, false, false)
	s.server.Start()
	if !s.server.ReadyForConnections(startTimeout) || !s.server.JetStreamEnabled() {
		return nil, errors.Join(fmt.Errorf("embedded: the server on %q did not become ready in %v", config.Dir, startTimeout), s.Close())
	}
	return s, nil
}

// InProcessConn opens a connection to the server that does not use the network. It makes Server a
// nats.InProcessConnProvider, for jetstream.Config.Server.
func (s *Server) InProcessConn() (net.Conn, error) { return s.server.InProcessConn() }

// URL is where other processes can connect, or empty.
func (s *Server) URL() string {
	if s.server.Addr() == nil {
		return ""
	}
	return s.server.ClientURL()
}

// Close stops the server and waits until its store is closed. It is idempotent.
func (s *Server) Close() error {
	s.stop.Do(func() {
		s.server.Shutdown()
		s.server.WaitForShutdown()
		s.err = s.unlock()
	})
	return s.err
}

// Broker is a broker with its own server.
type Broker struct {
	*jetstream.Broker
	server *Server
}

// New starts a server and returns a broker on it. The broker's Close stops the server. broker must not name a
// server itself.
func New(config Config, broker jetstream.Config) (*Broker, error) {
	if broker.URL != "" || broker.Conn != nil || broker.Server != nil {
		return nil, errors.New("embedded: the broker's Config names a server, but it gets its own: leave URL, Conn and Server empty")
	}
	if broker.Logger == nil {
		broker.Logger = config.Logger
	}
	s, err := Start(config)
	if err != nil {
		return nil, err
	}
	broker.Server = s
	b, err := jetstream.New(broker)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &Broker{Broker: b, server: s}, nil
}

// Server returns the broker's server.
func (b *Broker) Server() *Server { return b.server }

// Close closes the broker and then stops the server. It is idempotent.
func (b *Broker) Close() error { return errors.Join(b.Broker.Close(), b.server.Close()) }

// logger passes warnings and errors on.
type logger struct{ log *slog.Logger }

func (l logger) Noticef(string, ...any) {}
func (l logger) Debugf(string, ...any)  {}
func (l logger) Tracef(string, ...any)  {}
func (l logger) Warnf(format string, args ...any) {
	l.log.Warn("nats-server: " + fmt.Sprintf(format, args...))
}

func (l logger) Errorf(format string, args ...any) {
	l.log.Error("nats-server: " + fmt.Sprintf(format, args...))
}

func (l logger) Fatalf(format string, args ...any) {
	l.log.Error("nats-server: " + fmt.Sprintf(format, args...))
}

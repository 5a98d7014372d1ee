package jetstream

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// ErrClosed is what errors wrap after Close.
var ErrClosed = adapter.ErrClosed

// maxHeaderBytes is what Capabilities tells. The server stores 64 KB of headers; percent-encoding can make three
// bytes of one.
const maxHeaderBytes = 16 << 10

// maxPending bounds the messages that await their confirmation, over all publishers of a broker.
const maxPending = 4096

// Broker opens subscribers and publishers on one connection. It is safe for concurrent use.
type Broker struct {
	config Config
	conn   *nats.Conn
	js     jetstream.JetStream
	gone   chan struct{} // closed when a connection of our own is closed for good

	subs  adapter.Subscribers
	pubs  adapter.Publishers
	leave sync.Once

	mu      sync.Mutex
	streams map[string]struct{} // topics that are known to have a stream
}

var _ brokers.Broker = (*Broker)(nil)

// New connects and returns a broker, or an error that names the field of config that is wrong. It
// blocks until it is connected or the attempt failed.
func New(config Config) (*Broker, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		config:  config,
		conn:    config.Conn,
		pubs:    adapter.Publishers{System: "jetstream"},
		gone:    make(chan struct{}),
		streams: make(map[string]struct{}),
	}
	b.subs = adapter.Subscribers{System: "jetstream", Window: config.Window, Open: b.subscribe}
	if b.conn == nil {
		if b.conn, err = b.connect(); err != nil {
			if bad, ok := errors.AsType[*url.Error](err); ok && bad.Op == "parse" {
				err = errors.New("it cannot be parsed") // bad has the address in it, with the password
			}
			return nil, fmt.Errorf("jetstream: connect to %s: %w", b.address(), err)
		}
	}
	options := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncTimeout(config.PublishTimeout),
	}
	if config.Domain != "" {
		b.js, err = jetstream.NewWithDomain(b.conn, config.Domain, options...)
	} else {
		b.js, err = jetstream.New(b.conn, options...)
	}
	if err != nil {
		b.disconnect()
		return nil, fmt.Errorf("jetstream: %w", err)
	}
	return b, nil
}

func (b *Broker) connect() (*nats.Conn, error) {
	log := b.config.Logger
	options := []nats.Option{
		nats.Name("headrace"),
		nats.MaxReconnects(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("jetstream: connection lost", "error", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			log.Info("jetstream: connected again", "server", redacted(c.ConnectedUrl()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Error("jetstream: connection", "error", err)
		}),
	}
	if b.config.Server != nil {
		options = append(options, nats.InProcessServer(b.config.Server))
	}
	options = append(options, b.config.Options...)
	// Ours comes last: Close waits for it.
	options = append(options, func(o *nats.Options) error {
		theirs := o.ClosedCB
		o.ClosedCB = func(c *nats.Conn) {
			if theirs != nil {
				theirs(c)
			}
			close(b.gone)
		}
		return nil
	})
	return nats.Connect(b.config.URL, options...)
}

func (b *Broker) address() string {
	if b.config.URL == "" {
		return "the server in this process"
	}
	return redacted(b.config.URL)
}

// redacted is a list of addresses without passwords. A user without a password is a token, and as secret.
func redacted(list string) string {
	parts := strings.Split(list, ",")
	for i, part := range parts {
		part = strings.TrimSpace(part)
		scheme, rest, found := strings.Cut(part, "://")
		if !found {
			scheme, rest = "nats", part
		}
		u, err := url.Parse(scheme + "://" + rest)
		switch {
		case err != nil || u.User == nil && strings.Contains(rest, "@"):
			part = "(an address that is no URL)"
		case u.User != nil:
			part = scheme + "://xxxxx@" + u.Host
		}
		parts[i] = part
	}
	return strings.Join(parts, ",")
}

// disconnect closes the connection if it is ours.
func (b *Broker) disconnect() {
	if b.config.Conn != nil {
		return
	}
	b.conn.Close()
	<-b.gone
}

// Capabilities tells what the broker can do.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		System:           "nats",
		Ordering:         brokers.OrderingTopic,
		MaxUnacked:       b.config.MaxAckPending,
		Patience:         b.config.AckWait,
		ExtendsPatience:  true,
		CountsDeliveries: true,
		Releases:         true,
		Delays:           true,
		FanOut:           true,
		Replays:          true,
		Retention:        max(b.config.MaxAge, 0),
		MaxHeaderBytes:   maxHeaderBytes,
	}
}

// Subscriber returns a subscriber for s. An empty s.Topic allows it to subscribe to any topic. It does no I/O.
func (b *Broker) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if s.Consumer != "" {
		if _, err := assetName("consumer", s.Consumer); err != nil {
			return nil, err
		}
	}
	if s.Topic != "" {
		if err := checkTopic(s.Topic); err != nil {
			return nil, err
		}
	}
	return b.subs.New(s)
}

// Publisher returns a publisher. Its Publish blocks until the server has confirmed every message, or until one
// failed and the others were decided. Messages of one key (event.KeyOf) are
// stored in the order of the call even when one fails. An error names the first message that failed; messages after it
// may or may not be stored, so publish the whole call again. A message whose context ends is given up.
func (b *Broker) Publisher() (message.Publisher, error) {
	return b.pubs.New(b.publish, nil)
}

// Conn returns the broker's connection, for what this package does not do. Do not close it.
func (b *Broker) Conn() *nats.Conn { return b.conn }

// Close ends all subscriptions and calls of Publish, waits for them, and closes the connection unless it is the
// application's. It is idempotent.
func (b *Broker) Close() error {
	err := errors.Join(b.subs.Close(), b.pubs.Close())
	b.leave.Do(func() {
		// In this order: the other way round nats.go can leave a goroutine behind that has not begun to listen to the connection.
		b.disconnect()
		b.js.CleanupPublisher()
	})
	return err
}

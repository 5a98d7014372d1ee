package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/trial"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/telemetry"
)

// Runtime runs the consumers of one service. Make it with New, register consumers, handlers and relays,
// then call Run once.
type Runtime struct {
	config    Config
	telemetry *telemetry.Telemetry
	ledger    *ledger.Ledger // nil: none
	publisher latePublisher
	health    health

	mu        sync.Mutex
	consumers []*Consumer
	relays    []*relay
	letters   []deadLetters
	started   bool

	running chan struct{} // closed when every consumer is subscribed

	// stop ends a run from inside: a handler asked for it, or a part died. The first cause is kept. It is
	// set when started is.
	stop context.CancelCauseFunc
}

func (r *Runtime) hasStarted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started
}

// New checks cfg whole and returns a runtime, or an error that names each bad field and its value.
// It does no I/O.
func New(cfg Config) (*Runtime, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	tel, err := telemetry.New(telemetry.Config{
		TracerProvider: cfg.TracerProvider,
		MeterProvider:  cfg.MeterProvider,
		Propagator:     cfg.Propagator,
		System:         cfg.Broker.Capabilities().System,
	})
	if err != nil {
		return nil, fmt.Errorf("runtime.Config: telemetry: %w", err)
	}
	led, err := newLedger(cfg)
	if err != nil {
		return nil, err
	}
	r := &Runtime{config: cfg, telemetry: tel, ledger: led, running: make(chan struct{})}
	r.health.runtime = r
	return r, nil
}

// source is the CloudEvents source of the events that this service makes.
func (r *Runtime) source() string { return "/" + r.config.Service }

// Running is closed when Run has subscribed every consumer and its publisher is open. It stays open when Run
// fails before that, and closed when Run has ended.
func (r *Runtime) Running() <-chan struct{} { return r.running }

// Publisher returns the publisher of the runtime's broker, with a send span and trace headers for each
// message. It may be taken at any time and works while Run does; before and after, Publish returns
// [ErrNotRunning]. Its Close does nothing: the runtime owns it. Safe for concurrent use.
//
// What belongs to a database change is published with outbox.Add in the same transaction instead.
func (r *Runtime) Publisher() message.Publisher { return &r.publisher }

// ErrNotRunning is returned by the runtime's publisher before Run has opened the broker's and after
// Run has closed it.
var ErrNotRunning = errors.New("the runtime is not running: its publisher is not open")

// latePublisher is handed out before the broker's publisher exists.
type latePublisher struct {
	open atomic.Pointer[message.Publisher]
}

func (p *latePublisher) Publish(topic string, msgs ...*message.Message) error {
	pub := p.open.Load()
	if pub == nil {
		return ErrNotRunning
	}
	return (*pub).Publish(topic, msgs...)
}

func (*latePublisher) Close() error { return nil }

// relay is an outbox relay whose life the runtime owns.
type relay struct {
	source outbox.Source
	config outbox.RelayConfig
	relay  atomic.Pointer[outbox.Relay]
}

// Relay makes the runtime publish what handlers and other code add to an outbox (store.Outbox()) with the
// runtime's broker, until it has drained: what the last handlers committed is published before Run returns, as far as
// that can be done within RelayConfig.DrainLimit. What a handler added wakes it when the message is done; other code calls
// [Runtime.Wake]. It must be called before Run.
func (r *Runtime) Relay(src outbox.Source, cfg outbox.RelayConfig) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		r.stop(errors.New("an outbox relay was registered after Run had begun"))
		return
	}
	r.relays = append(r.relays, &relay{source: src, config: cfg})
	if t, ok := r.config.Broker.(trial.Broker); ok {
		t.Relays(src)
	}
}

// Wake tells the relays of this runtime that rows were committed to their outboxes, so that they look at once instead
// of at their next poll (RelayConfig.PollMax at the latest). Call it after the commit of a transaction in which
// outbox.Add was called outside of a handler: in an HTTP handler, say. It never blocks, may be called at any time, and
// many calls cost no more than one look. Safe for concurrent use.
func (r *Runtime) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.relays {
		if rel := l.relay.Load(); rel != nil {
			rel.Wake()
		}
	}
}

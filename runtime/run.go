package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/ordering"
	"github.com/headrace-go/headrace/outbox"
)

// Run checks the wiring and the databases, subscribes every consumer and blocks until ctx ends or a part
// fails; then it drains and returns after every goroutine of its own has ended.
//
// It returns nil after a clean drain. It returns an error when the wiring is wrong (nothing was started
// then), when a subscription or a relay ended by itself, when a handler asked to stop (classify.Stop), or
// when the drain limit passed; that error names the consumer and the keys still held. A runtime runs once.
//
// The drain, in order: intake stops and what waits is given back; running handlers finish, with a time
// limit; relays publish what was committed; router, subscriptions and publisher close.
func (r *Runtime) Run(ctx context.Context) error {
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if err := r.begin(stop); err != nil {
		return err
	}
	defer r.health.set(healthStopped)

	err := r.preflight(ctx)
	if err == nil {
		err = r.run(ctx, runCtx)
	} else if ctx.Err() != nil {
		err = nil // the caller ended it before it had begun; what failed, failed because of that
	}
	if err != nil {
		return fmt.Errorf("runtime %s: %w", r.config.Service, err)
	}
	return nil
}

// run is Run when all is checked. runCtx ends with ctx, or when the run is stopped from inside.
func (r *Runtime) run(ctx, runCtx context.Context) error {
	run := &run{runtime: r, partErrs: make(chan error, len(r.relays)+len(r.databases())+len(r.letters))}
	err := run.start(runCtx)
	switch {
	case err == nil:
		r.health.set(healthRunning)
		close(r.running)
		<-runCtx.Done()
		if cause := context.Cause(runCtx); ctx.Err() == nil && !errors.Is(cause, errPartEnded) {
			err = cause // the run was stopped from inside
		}
	case ctx.Err() != nil:
		err = nil // a start that was cut off is no failure
	}
	r.health.set(healthDraining)
	return errors.Join(err, run.drain(context.WithoutCancel(ctx)))
}

// errPartEnded stops a run whose part has failed; the part's own error is joined after the drain.
var errPartEnded = errors.New("a part of the runtime ended")

func (r *Runtime) begin(stop context.CancelCauseFunc) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return fmt.Errorf("runtime %s: Run was called twice", r.config.Service)
	}
	r.started, r.stop = true, stop
	return nil
}

// run is what one call of Run has started. Its fields are set in order; drain undoes what is set.
type run struct {
	runtime    *Runtime
	publisher  message.Publisher
	lines      []*line
	routerDone chan error

	background sync.WaitGroup // relays, pruners and the watchers of the subscriptions
	stopParts  context.CancelFunc
	partErrs   chan error // room for one error of each part

	stopObserving []func() error
}

// start opens everything, innermost first, and returns when messages may arrive.
func (u *run) start(ctx context.Context) error {
	r := u.runtime
	pub, err := r.config.Broker.Publisher()
	if err != nil {
		return fmt.Errorf("open the publisher: %w", err)
	}
	u.publisher = r.telemetry.Publisher(pub)
	r.publisher.open.Store(&u.publisher)

	for _, c := range r.consumers {
		l, err := c.assemble(u.publisher)
		if err != nil {
			return err
		}
		u.lines = append(u.lines, l)
	}
	if err := u.register(ctx); err != nil {
		return err
	}
	r.health.watch(u.lines)
	if err := u.startParts(ctx); err != nil {
		return err
	}
	if err := u.observe(); err != nil {
		return err
	}
	if err := r.beginLedger(ctx); err != nil {
		return err
	}
	return u.startRouter(ctx)
}

// startParts starts the pruners and the relays. They outlive ctx: a relay publishes what the last
// handlers committed.
func (u *run) startParts(ctx context.Context) error {
	r := u.runtime
	partsCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	u.stopParts = cancel
	part := func(name string, f func(context.Context) error) {
		u.background.Go(func() {
			err := f(partsCtx)
			if err == nil && partsCtx.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				u.partErrs <- fmt.Errorf("%s: %w", name, err)
				r.stop(errPartEnded)
			}
		})
	}
	for i, l := range r.relays {
		if l.config.Logger == nil {
			l.config.Logger = r.config.Logger
		}
		l.config.Observe = r.published(l.config.Observe)
		rel, err := outbox.NewRelay(l.source, u.publisher, l.config)
		if err != nil {
			return fmt.Errorf("outbox relay %d: %w", i, err)
		}
		l.relay.Store(rel)
		part("outbox relay", rel.Run)
	}
	if r.config.InboxRetention != Off {
		for _, db := range r.databases() {
			pruner, err := inbox.NewPruner(db, inbox.PrunerConfig{Retention: r.config.InboxRetention, Logger: r.config.Logger})
			if err != nil {
				return err
			}
			part("inbox pruner", pruner.Run)
		}
	}
	r.keepDeadLetters(part)
	return nil
}

// startRouter subscribes every consumer, hands the subscriptions to a stock Watermill router and waits
// until it reads them.
func (u *run) startRouter(ctx context.Context) error {
	if len(u.lines) == 0 {
		return nil
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: routerCloseTimeout}, routerLogger{u.runtime.config.Logger})
	if err != nil {
		return fmt.Errorf("make the router: %w", err)
	}
	subscriptions, err := u.subscribe(ctx)
	if err != nil {
		return err
	}
	for _, s := range subscriptions {
		stages, err := s.line.stages(s.source)
		if err != nil {
			return err
		}
		s.handler = router.AddHandler(s.source.name, s.source.topic, s, "", noPublisher{}, s.line.consumer.dispatch)
		s.handler.AddMiddleware(stages...)
	}
	// The router's context ends nothing of ours: it would cut off running handlers at once.
	u.routerDone = make(chan error, 1)
	go func() { u.routerDone <- router.Run(context.WithoutCancel(ctx)) }()
	<-router.Running()
	for _, s := range subscriptions {
		u.background.Go(func() { u.watch(ctx, s) })
	}
	return nil
}

// subscribe opens all subscriptions at the same time. It is not left to the router: one that cannot subscribe
// a handler waits for it for ever when it closes. The subscriptions outlive ctx: drain ends them.
func (u *run) subscribe(ctx context.Context) ([]*subscribed, error) {
	var subscriptions []*subscribed
	for _, l := range u.lines {
		for _, s := range l.sources {
			subscriptions = append(subscriptions, &subscribed{line: l, source: s})
		}
	}
	errs := make([]error, len(subscriptions))
	var opening sync.WaitGroup
	for i, s := range subscriptions {
		opening.Go(func() {
			var err error
			if s.messages, err = s.source.subscriber.Subscribe(context.WithoutCancel(ctx), s.source.topic); err != nil {
				errs[i] = fmt.Errorf("consumer %s: subscribe to %s: %w", s.line.consumer.config.Name, s.source.topic, err)
			}
		})
	}
	opening.Wait()
	return subscriptions, errors.Join(errs...)
}

// watch stops the run when a consumer's subscription ends while nobody asked for it (fault S3).
func (u *run) watch(ctx context.Context, s *subscribed) {
	<-s.handler.Stopped()
	if ctx.Err() == nil {
		u.runtime.stop(fmt.Errorf("consumer %s: its subscription to %s ended by itself", s.line.consumer.config.Name, s.source.topic))
	}
}

// drain ends what start began, in the opposite order, and joins what went wrong.
func (u *run) drain(ctx context.Context) error {
	u.runtime.stopLedger()
	errs := u.drainIntakes(ctx)
	for _, l := range u.lines {
		l.breaker.Close()
	}
	if u.stopParts != nil {
		u.stopParts()
	}
	if u.routerDone != nil {
		// Every subscription has ended, so the router closes by itself.
		if err := <-u.routerDone; err != nil {
			errs = append(errs, fmt.Errorf("router: %w", err))
		}
	}
	u.background.Wait()
	u.runtime.endLedger(ctx)
	close(u.partErrs)
	for err := range u.partErrs {
		errs = append(errs, err)
	}
	for _, stop := range u.stopObserving {
		if err := stop(); err != nil {
			errs = append(errs, fmt.Errorf("stop observing: %w", err))
		}
	}
	for _, l := range u.lines {
		errs = append(errs, l.closeSources()...)
	}
	u.runtime.publisher.open.Store(nil)
	if u.publisher != nil {
		if err := u.publisher.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close the publisher: %w", err))
		}
	}
	return errors.Join(errs...)
}

// drainIntakes drains all consumers at the same time, within one limit.
func (u *run) drainIntakes(ctx context.Context) []error {
	ctx, cancel := context.WithTimeout(ctx, u.runtime.config.DrainTimeout)
	defer cancel()
	errs := make([]error, len(u.lines))
	var draining sync.WaitGroup
	for i, l := range u.lines {
		draining.Go(func() {
			if err := l.intake.Drain(ctx); err != nil && !onlyUnclosed(err) {
				errs[i] = fmt.Errorf("consumer %s: drain: %w", l.consumer.config.Name, err)
			}
		})
	}
	draining.Wait()
	return errs
}

// onlyUnclosed tells that nothing went wrong in a drain but that channels are not closed yet. Some stock subscribers close them in
// Close alone; if that does not help, closeSources says so.
func onlyUnclosed(err error) bool {
	d, ok := errors.AsType[*ordering.DrainError](err)
	return ok && d.Cancelled == 0 && d.Held == 0
}

// routerCloseTimeout is how long the router waits for handlers once everything was drained: only one that
// ignored its cancelled context is left then, and Drain has reported it.
const routerCloseTimeout = time.Second

// subscribed gives the router a subscription that exists already. The runtime closes it.
type subscribed struct {
	line     *line
	source   source
	messages <-chan *message.Message
	handler  *message.Handler
}

func (s *subscribed) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return s.messages, nil
}

func (*subscribed) Close() error { return nil }

// noPublisher stands where the router wants a publisher: outputs are published before the settle stage,
// so nothing reaches it.
type noPublisher struct{}

func (noPublisher) Publish(string, ...*message.Message) error {
	return message.ErrOutputInNoPublisherHandler
}
func (noPublisher) Close() error { return nil }

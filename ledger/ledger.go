package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// mode is what an attempt has to do.
type mode int32

const (
	quiet     mode = iota // nothing
	watching              // suspects run alone
	probing               // and so do those that were delivered too often
	recording             // every start is recorded, and suspects run alone
	off                   // suspects run alone, but nothing can be recorded
)

var modeNames = [...]string{"quiet", "watching", "probing", "recording", "off"}

// Ledger is the ledger of one process. Begin it before the first message and End it after the last. It is safe for
// concurrent use.
type Ledger struct {
	config   Config
	run      Run
	mode     atomic.Int32
	gate     *gate
	books    *books
	suspects suspects
	counts   counts

	background sync.WaitGroup
	stopBeats  chan struct{}
	stopBooks  chan struct{}
	beatNow    chan struct{}
	began      atomic.Bool
	running    atomic.Bool
	ended      sync.Once
	stopping   atomic.Bool
	announced  bool // of the beats' goroutine

	mu        sync.Mutex
	state     state
	forgotten map[Key]time.Time // suspects whose dead letter is stored, and when they are removed
}

// state is what decides the mode.
type state struct {
	registered bool
	alarms     int64     // that were heard of
	until      time.Time // starts are recorded at least so long,
	target     int64     // and until so many were
	recording  bool
	probing    bool
	toList     bool      // the suspects are to be read
	listed     time.Time // when they were
	off        error     // why the ledger is off; nil: it is not
	ended      bool
}

// New checks cfg whole; its error names each wrong field. It does no I/O.
func New(cfg Config) (*Ledger, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Ledger{
		config:    cfg,
		run:       Run{Service: cfg.Service, ID: rand.Text(), Instance: cfg.Instance},
		gate:      newGate(),
		suspects:  suspects{keys: map[Key]struct{}{}},
		forgotten: map[Key]time.Time{},
		stopBeats: make(chan struct{}),
		stopBooks: make(chan struct{}),
		beatNow:   make(chan struct{}, 1),
	}
	l.books = newBooks(cfg, l.run, l.goOff)
	return l, nil
}

// Begin registers the run and starts the heartbeats. It returns an error if it was called before, or if the store
// cannot be used as it is ([ErrNotUsable]). A store that cannot be reached is no error: the ledger is off until it
// can, and registers then. It blocks for two calls of the store at most.
func (l *Ledger) Begin(ctx context.Context) error {
	if !l.began.CompareAndSwap(false, true) {
		return errors.New("ledger: Begin was called twice")
	}
	if err := l.call(ctx, l.config.Store.Check); errors.Is(err, ErrNotUsable) {
		return fmt.Errorf("ledger: %w", err)
	}
	l.beat(ctx)
	l.running.Store(true)
	l.background.Go(l.beats)
	l.background.Go(func() { l.books.write(l.stopBooks) })
	return nil
}

// Stopping announces that the process is about to stop, at the beginning of its drain: a death after that is
// nobody's. It does not wait for the store.
func (l *Ledger) Stopping() {
	l.stopping.Store(true)
	l.hurry()
}

// End records a clean stop, after the last attempt: it waits for its goroutines, and for one call of the store. Its
// error says that the stop could not be recorded, so that the next start will take it for a death. What still runs
// goes on unrecorded. Calls after the first one, and one without a Begin, do nothing.
func (l *Ledger) End(ctx context.Context) error {
	if !l.running.Load() {
		return nil
	}
	var err error
	l.ended.Do(func() {
		l.forget(true)
		close(l.stopBooks)
		close(l.stopBeats)
		l.background.Wait()
		l.mu.Lock()
		l.state.ended = true
		l.setMode()
		l.mu.Unlock()
		err = l.call(ctx, func(ctx context.Context) error { return l.config.Store.End(ctx, l.run) })
		if err != nil {
			err = fmt.Errorf("ledger: end the run: %w", err)
		}
	})
	return err
}

// Forget is told of a message whose dead letter was stored: the id, and how often it was dead-lettered, this time
// included. What is known of it is removed after HorizonTime, or by End: until then the ack can be lost, and the
// message must not be started again when it comes back. It does no I/O, and nothing for a message that is no suspect
// as far as this process knows.
func (l *Ledger) Forget(consumer, id string, deaths int) {
	key := keyOf(consumer, id, max(deaths-1, 0))
	if l.suspects.has(key) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.forgotten[key] = time.Now().Add(l.config.HorizonTime)
	}
}

// forget removes those whose time has come, or all.
func (l *Ledger) forget(all bool) {
	l.mu.Lock()
	var due []Key
	for key, at := range l.forgotten {
		if all || !time.Now().Before(at) {
			due = append(due, key)
			delete(l.forgotten, key)
		}
	}
	l.mu.Unlock()
	for _, key := range due {
		l.suspects.remove(key)
		l.books.clear(key)
	}
}

// call makes one bounded call of the store.
func (l *Ledger) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.config.StoreTimeout)
	defer cancel()
	return f(ctx)
}

// hurry makes the next heartbeat come at once.
func (l *Ledger) hurry() {
	select {
	case l.beatNow <- struct{}{}:
	default:
	}
}

// beats keeps the run alive until the end.
func (l *Ledger) beats() {
	ticker := time.NewTicker(l.config.TTL / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-l.beatNow:
		case <-l.stopBeats:
			return
		}
		l.beat(context.Background())
	}
}

// beat makes one heartbeat, or registers the run if that has not been done, and draws the conclusions.
func (l *Ledger) beat(ctx context.Context) {
	terms := Terms{TTL: l.config.TTL, Retention: l.config.Retention, MaxSuspects: maxSuspects}
	l.mu.Lock()
	registered := l.state.registered
	l.mu.Unlock()
	var standing Standing
	err := l.call(ctx, func(ctx context.Context) (err error) {
		if registered {
			standing, err = l.config.Store.Beat(ctx, l.run, terms)
		} else {
			standing, err = l.config.Store.Begin(ctx, l.run, terms)
		}
		return err
	})
	if err != nil {
		l.goOff(fmt.Errorf("heartbeat: %w", err))
		return
	}
	l.hear(ctx, standing)
	if l.stopping.Load() && !l.announced {
		err := l.call(ctx, func(ctx context.Context) error { return l.config.Store.Stopping(ctx, l.run) })
		if err != nil {
			l.goOff(fmt.Errorf("announce the stop: %w", err))
			return
		}
		l.announced = true
	}
	if err := l.list(ctx); err != nil {
		l.goOff(fmt.Errorf("list the suspects: %w", err))
		return
	}
	l.goOn(ctx)
	l.forget(false)
}

// list reads the suspects if that is due.
func (l *Ledger) list(ctx context.Context) error {
	l.mu.Lock()
	due := l.state.toList || l.suspects.len() > 0 && time.Since(l.state.listed) >= listEvery
	l.mu.Unlock()
	if !due {
		return nil
	}
	var keys []Key
	err := l.call(ctx, func(ctx context.Context) (err error) {
		keys, err = l.config.Store.Suspects(ctx, l.config.Service, l.config.Retention, maxSuspects)
		return err
	})
	if err != nil {
		return err
	}
	l.suspects.replace(keys)
	l.mu.Lock()
	l.state.toList, l.state.listed = false, time.Now()
	l.mu.Unlock()
	return nil
}

// listEvery is how often the suspects are read again while there are some: other replicas clear them too.
const listEvery = time.Minute

// hear takes in what the store knows.
func (l *Ledger) hear(ctx context.Context, s Standing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	factor := horizonFactor(s.Misses)
	horizon := l.config.HorizonTime * time.Duration(factor)
	if !l.state.registered {
		l.state.registered = true
		l.state.probing = s.Fresh
		l.state.until = now.Add(horizon)
		l.state.target = l.counts.recorded.Load() + int64(l.config.HorizonMessages*factor)
	}
	if s.Lost {
		l.config.Logger.WarnContext(ctx, "the ledger took this process for dead: it had no heartbeat in time, or another process has its instance name",
			"service", l.config.Service, "instance", l.config.Instance, "ttl", l.config.TTL)
	}
	if s.Alarms > l.state.alarms {
		l.state.alarms = s.Alarms
		l.state.toList = true
		if s.SinceAlarm < horizon {
			l.state.recording, l.state.probing = true, false
			l.state.until = now.Add(horizon)
			l.state.target = l.counts.recorded.Load() + int64(l.config.HorizonMessages*factor)
			l.config.Logger.WarnContext(ctx, "a process of the service died: starts are recorded for a while",
				"service", l.config.Service, "unclean_ends", s.Alarms, "at_least", horizon)
		}
	}
	over := !now.Before(l.state.until)
	if over {
		l.state.probing = false
	}
	if l.state.recording && over && l.counts.recorded.Load() >= l.state.target {
		l.state.recording = false
		l.state.toList = true
		l.config.Logger.InfoContext(ctx, "no process of the service died lately: starts are not recorded any more", "service", l.config.Service)
	}
}

// horizonFactor doubles the horizon with each unclean end that had nothing recorded. The first one never has.
func horizonFactor(misses int) int { return 1 << min(max(misses-1, 0), 10) }

// goOn ends a time without the store.
func (l *Ledger) goOn(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.off != nil {
		l.state.off = nil
		l.config.Logger.InfoContext(ctx, "the crash ledger is on again", "service", l.config.Service)
		l.books.setOff(false)
	}
	l.setMode()
}

// goOff is called when a call of the store failed.
func (l *Ledger) goOff(err error) {
	if errors.Is(err, ErrLost) {
		l.hurry()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.off == nil {
		l.config.Logger.Warn("the crash ledger is off: messages go on, but one that kills the process is not found out",
			"service", l.config.Service, "error", err)
		l.books.setOff(true)
	}
	l.state.off = err
	l.setMode()
}

// setMode sets the mode that the state asks for. The caller holds mu.
func (l *Ledger) setMode() {
	m := quiet
	switch s := &l.state; {
	case s.ended:
	case s.off != nil:
		m = off
	case s.recording:
		m = recording
	case s.probing:
		m = probing
	case l.suspects.len() > 0:
		m = watching
	}
	l.mode.Store(int32(m))
}

package lab

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/outbox"
)

// process is one life of the service.
type process struct {
	link   *link
	cancel context.CancelFunc
	ended  chan error // room for what Run returned
}

// running returns the process that runs on the lab's server; it starts one if there is none.
func (l *Lab) running() *process {
	l.tb.Helper()
	if l.process != nil {
		return l.process
	}
	l.process = l.start(l.server)
	if !l.begun { // what an earlier lab, or the application, had left in the outbox is not of this one
		l.begun = true
		l.settle(l.process)
		l.journal.clear()
	}
	return l.process
}

// start starts a process and waits until it has subscribed.
func (l *Lab) start(server *memory.Broker) *process {
	l.tb.Helper()
	p := &process{link: newLink(server, l.journal, l.cfg.Topic), ended: make(chan error, 1)}
	rt, err := l.cfg.Service(p.link)
	if err != nil {
		l.tb.Fatalf("Spec.Service: %v", err)
	}
	if rt == nil {
		l.tb.Fatal("Spec.Service returned neither a runtime nor an error")
	}
	if l.cfg.Outbox != nil {
		rt.Relay(l.cfg.Outbox, outbox.RelayConfig{})
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.ended <- rt.Run(ctx) }()
	limit := time.NewTimer(l.cfg.Limit)
	defer limit.Stop()
	select {
	case <-rt.Running():
	case err := <-p.ended:
		cancel()
		l.tb.Fatalf("the service does not start: %v", err)
	case <-limit.C:
		cancel()
		l.tb.Fatalf("the service did not start within %v", l.cfg.Limit)
	}
	if fault := p.misfit(l.cfg.Topic); fault != "" {
		l.end(p)
		l.tb.Fatal(fault)
	}
	return p
}

// misfit says why a process that has started is none to be tested; "": it is.
func (p *process) misfit(topic string) string {
	topics := p.link.topics()
	switch {
	case len(topics) == 0:
		return "Spec.Service made a runtime on another broker than the one it was given, or without a consumer"
	case !p.link.steered.Load():
		return "Spec.Service wraps the broker that it was given: hand that itself to runtime.New"
	case !slices.Contains(topics, topic):
		return fmt.Sprintf("Spec.Topic is %q, which no consumer of the service reads: they read %q", topic, topics)
	}
	return ""
}

// end stops a process, whose run must have gone well. If the test has failed it kills it: something may hang.
func (l *Lab) end(p *process) {
	l.tb.Helper()
	if l.tb.Failed() {
		p.link.cut()
		l.bury(p) //nolint:errcheck // it was killed
		return
	}
	if err := l.bury(p); err != nil {
		l.tb.Errorf("the service did not end well: %v", err)
	}
}

// bury waits until the goroutines of a process have ended, and returns what Run did.
func (l *Lab) bury(p *process) error {
	l.tb.Helper()
	p.cancel()
	limit := time.NewTimer(l.cfg.Limit)
	defer limit.Stop()
	select {
	case err := <-p.ended:
		return err
	case <-limit.C:
		l.tb.Fatalf("the service did not end within %v%s", l.cfg.Limit, l.explain())
		return nil
	}
}

// waits says what the process has still to do; "": nothing.
func (p *process) waits(tb testing.TB) string {
	tb.Helper()
	for _, s := range p.link.subscriptions() {
		if n := p.link.server.Unacked(s.Topic, s.Consumer); n > 0 {
			return fmt.Sprintf("%d messages of %s are not settled by %s", n, s.Topic, s.Consumer)
		}
	}
	for _, source := range p.link.relayed() {
		backlog, err := source.Backlog(tb.Context(), 1)
		if err != nil {
			tb.Fatalf("look into the outbox: %v", err)
		}
		if backlog.Rows > 0 {
			return "the outbox is not empty"
		}
	}
	return ""
}

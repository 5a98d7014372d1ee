package runtime

import (
	"context"
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/poison"
)

// newLedger makes the crash ledger that cfg asks for, or nil. cfg has its defaults.
func newLedger(cfg Config) (*ledger.Ledger, error) {
	if reflect.ValueOf(cfg.Ledger).IsZero() {
		return nil, nil
	}
	c := cfg.Ledger
	c.Service = first(c.Service, cfg.Service)
	c.Logger = first(c.Logger, cfg.Logger)
	l, err := ledger.New(c)
	if err != nil {
		return nil, fmt.Errorf("runtime.Config.Ledger: %w", err)
	}
	return l, nil
}

// LedgerStats is the state of the crash ledger. Its State is "" without one. Safe for concurrent use.
func (r *Runtime) LedgerStats() ledger.Stats {
	if r.ledger == nil {
		return ledger.Stats{}
	}
	return r.ledger.Stats()
}

// beginLedger registers this process, before it gets its first message.
func (r *Runtime) beginLedger(ctx context.Context) error {
	if r.ledger == nil {
		return nil
	}
	return r.ledger.Begin(ctx)
}

// stopLedger announces the drain: who is killed in it was not killed by a message.
func (r *Runtime) stopLedger() {
	if r.ledger != nil {
		r.ledger.Stopping()
	}
}

// endLedger records a clean stop. If it cannot, the next start records starts for a while, and that is all: the
// run has not failed.
func (r *Runtime) endLedger(ctx context.Context) {
	if r.ledger == nil {
		return
	}
	if err := r.ledger.End(ctx); err != nil {
		r.config.Logger.WarnContext(ctx, "the clean stop could not be recorded; the next start takes it for a crash", "error", err)
	}
}

// ledgered is the crash ledger's stage, or none.
func (c *Consumer) ledgered() []message.HandlerMiddleware {
	if c.runtime.ledger == nil {
		return nil
	}
	return []message.HandlerMiddleware{c.runtime.ledger.Middleware(c.config.Name)}
}

// forget tells the ledger of a message whose dead letter is stored.
func (c *Consumer) forget(rec poison.Record) {
	if c.runtime.ledger != nil {
		c.runtime.ledger.Forget(c.config.Name, rec.MessageID, rec.Deaths)
	}
}

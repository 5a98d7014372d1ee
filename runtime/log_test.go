package runtime_test

import (
	"context"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/runtime"
)

func TestCleanDrainLogsNoError(t *testing.T) {
	// Watermill's router calls it an error when all its subscriptions have ended, which is how we stop it. Every
	// clean stop then logged an error with a stack, and the first thing that a newcomer saw was an alarm.
	b := newBench(t, nil)
	handled := make(chan struct{}, 1)
	runtime.Handle(b.rt.Consumer("billing", "orders"), "order.placed", func(context.Context, order) error {
		handled <- struct{}{}
		return nil
	})
	b.publish("orders", placed(t, "1"))
	b.start()
	receive(t, "the handler to run", handled)
	b.mustStop()
	if log := b.log.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "level=WARN") {
		t.Errorf("log of a clean run has errors or warnings, want none:\n%s", log)
	}
}

package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

const notifierConsumer = "notifier.changes"

const notifierSchema = `
CREATE TABLE IF NOT EXISTS notifications (
	text TEXT NOT NULL,
	causation_id TEXT NOT NULL, correlation_id TEXT NOT NULL, trace_id TEXT NOT NULL
);`

// itemChanged is the contract between the tracker and its listeners.
type itemChanged struct {
	Repository string `json:"repository"`
	Kind       string `json:"kind"`
	Number     int    `json:"number"`
	State      string `json:"state"`
	Title      string `json:"title"`
}

// notifier is the second service: it hears of changes from the tracker, whose code and database it does not
// know.
type notifier struct{ store *sqlstore.Store }

// register wires the service to rt and returns its consumer.
func (n *notifier) register(rt *runtime.Runtime) *runtime.Consumer {
	changes := rt.Consumer(notifierConsumer, changesTopic)
	runtime.HandleTx(changes, itemChangedType, n.store, n.notify)
	return changes
}

// notify writes down what it was told, and by which ids the story can be followed back to the webhook.
func (n *notifier) notify(ctx context.Context, tx *sql.Tx, e itemChanged) error {
	envelope, _ := event.FromContext(ctx)
	_, err := tx.ExecContext(ctx, `INSERT INTO notifications (text, causation_id, correlation_id, trace_id) VALUES (?, ?, ?, ?)`,
		fmt.Sprintf("%s#%d is %s: %s", e.Repository, e.Number, e.State, e.Title),
		envelope.CausationID, envelope.CorrelationID, traceID(ctx))
	return err
}

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlstore"
)

const (
	trackerConsumer = "tracker.webhooks"
	changesTopic    = "tracker.changes"

	issuesType      = "github.issues"
	pullRequestType = "github.pull_request"
	itemChangedType = "tracker.item.changed"
)

// effects has no unique id: a handler that took effect twice must show in the books, not fail.
const trackerSchema = `
CREATE TABLE IF NOT EXISTS items (
	repository TEXT NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL,
	state TEXT NOT NULL, title TEXT NOT NULL, version INTEGER NOT NULL,
	PRIMARY KEY (repository, kind, number)
);
CREATE TABLE IF NOT EXISTS counts (event_type TEXT PRIMARY KEY, deliveries INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS effects (
	id TEXT NOT NULL, event_type TEXT NOT NULL, key TEXT NOT NULL, sequence INTEGER NOT NULL,
	team TEXT NOT NULL, correlation_id TEXT NOT NULL, trace_id TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS effects_key ON effects (key, sequence);
CREATE TABLE IF NOT EXISTS violations (id TEXT NOT NULL, key TEXT NOT NULL, sequence INTEGER NOT NULL, behind INTEGER NOT NULL);`

// tracker is the first service: it keeps a table of issues and pull requests and a count per event type, and
// tells others what has changed.
type tracker struct {
	store     *sqlstore.Store
	directory *directory
}

// register wires the service to rt and returns its consumer.
func (t *tracker) register(rt *runtime.Runtime) *runtime.Consumer {
	webhooks := rt.ConsumerWith(runtime.ConsumerConfig{
		Name:  trackerConsumer,
		Topic: webhooksTopic,
		Policy: runtime.Policy{
			Retry: middleware.RetryConfig{InitialDelay: 10 * time.Millisecond, MaxDelay: time.Second},
		},
	})
	change := inbox.SkipStale(t.store, itemEvent.version, t.itemChanged)
	runtime.HandleTx(webhooks, issuesType, t.store, change)
	runtime.HandleTx(webhooks, pullRequestType, t.store, change)
	runtime.HandleTx(webhooks, runtime.AnyType, t.store, t.anything)
	runtime.HandleDeadLettersTx(rt.Consumer(deadLettersConsumer, deadLettersTopic), t.store, recordDeadLetter)
	// One process has this database at a time, so the relay keeps its name over a restart, and with it the leases
	// of the one that was killed. Relays that share a database leave Owner empty.
	rt.Relay(t.store.Outbox(), outbox.RelayConfig{Owner: "tracker"})
	return webhooks
}

// webhookEvent is what all webhooks have in common. Fields that nobody needs are left out.
type webhookEvent struct {
	Repository *struct {
		FullName string `json:"full_name"`
	} `json:"repository"`
	Sender struct {
		Login string `json:"login"`
	} `json:"sender"`
}

// itemEvent is a webhook about an issue or about a pull request; GitHub's two differ in the member's name only.
type itemEvent struct {
	webhookEvent
	Issue       *itemState `json:"issue"`
	PullRequest *itemState `json:"pull_request"`
}

type itemState struct {
	Number    int       `json:"number"`
	State     string    `json:"state"`
	Title     string    `json:"title"`
	UpdatedAt time.Time `json:"updated_at"`
}

func (e itemEvent) state() (kind string, s *itemState) {
	if e.PullRequest != nil {
		return "pull_request", e.PullRequest
	}
	return "issue", e.Issue
}

// version is the entity and its version, for the guard against events that come late.
func (e itemEvent) version() (entity string, version int64) {
	kind, s := e.state()
	return fmt.Sprintf("%s/%s/%d", e.Repository.FullName, kind, s.Number), s.UpdatedAt.UnixMilli()
}

// Validate refuses for good what can be decoded and makes no sense, before the version guard looks at it.
func (e itemEvent) Validate() error {
	kind, s := e.state()
	switch {
	case s == nil:
		return errors.New("neither issue nor pull_request is there")
	case e.Repository == nil || e.Repository.FullName == "":
		return errors.New("repository.full_name is empty")
	case s.Number <= 0:
		return fmt.Errorf("%s.number is %d", kind, s.Number)
	case s.UpdatedAt.IsZero():
		return fmt.Errorf("%s.updated_at is empty", kind)
	}
	return nil
}

// itemChanged keeps the item's new state and says so, in one transaction.
func (t *tracker) itemChanged(ctx context.Context, tx *sql.Tx, e itemEvent) error {
	if err := t.anything(ctx, tx, e.webhookEvent); err != nil {
		return err
	}
	entity, version := e.version()
	kind, s := e.state()
	if _, err := tx.ExecContext(ctx, `
		INSERT INTO items (repository, kind, number, state, title, version) VALUES (?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET state = excluded.state, title = excluded.title, version = excluded.version`,
		e.Repository.FullName, kind, s.Number, s.State, s.Title, version); err != nil {
		return err
	}
	changed, err := event.New(ctx, itemChangedType, itemChanged{
		Repository: e.Repository.FullName, Kind: kind, Number: s.Number, State: s.State, Title: s.Title,
	}, event.WithKey(entity), event.WithSubject(entity))
	if err != nil {
		return err
	}
	return outbox.Add(ctx, t.store, tx, changesTopic, changed)
}

// anything counts a webhook, in order of its key.
func (t *tracker) anything(ctx context.Context, tx *sql.Tx, e webhookEvent) error {
	envelope, _ := event.FromContext(ctx)
	if envelope.ID == "" {
		return classify.Permanent(errors.New("not a CloudEvent: GitHub's webhooks all are"))
	}
	sequence, err := strconv.Atoi(envelope.Sequence)
	if err != nil {
		return classify.Permanent(fmt.Errorf("sequence: %w", err))
	}
	team, err := t.directory.lookup(ctx, envelope.ID, e.Sender.Login)
	if err != nil {
		return err
	}
	if err := checkOrder(ctx, tx, envelope, sequence); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `
		INSERT INTO effects (id, event_type, key, sequence, team, correlation_id, trace_id) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		envelope.ID, envelope.Type, envelope.PartitionKey, sequence, team, event.CorrelationID(ctx), traceID(ctx)); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `
		INSERT INTO counts (event_type, deliveries) VALUES (?, 1)
		ON CONFLICT DO UPDATE SET deliveries = deliveries + 1`, envelope.Type)
	return err
}

// checkOrder records an effect that comes after a later one of its key.
func checkOrder(ctx context.Context, tx *sql.Tx, e event.Envelope, sequence int) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO violations (id, key, sequence, behind)
		SELECT ?, key, ?, MAX(sequence) FROM effects WHERE key = ? GROUP BY key HAVING MAX(sequence) >= ?`,
		e.ID, sequence, e.PartitionKey, sequence)
	return err
}

func traceID(ctx context.Context) string { return trace.SpanContextFromContext(ctx).TraceID().String() }

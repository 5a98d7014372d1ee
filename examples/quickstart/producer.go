package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/telemetry"
)

const producerSchema = `
CREATE TABLE IF NOT EXISTS position (
	one       INTEGER PRIMARY KEY CHECK (one = 1),
	next      INTEGER NOT NULL, -- the first message that was not confirmed
	confirmed INTEGER NOT NULL, -- in all passes
	finished  INTEGER NOT NULL  -- the pass is over and everything was handled
);
INSERT OR IGNORE INTO position VALUES (1, 0, 0, 0);
CREATE TABLE IF NOT EXISTS sent (
	id       TEXT NOT NULL, -- the CloudEvents id
	trace_id TEXT NOT NULL
);`

// producer stands for GitHub: it publishes the input in order and remembers how far it was confirmed. After a
// crash it goes on there, so that what was on its way is sent a second time and nothing is left out.
type producer struct {
	db       *sql.DB
	pub      message.Publisher
	tracer   trace.Tracer
	input    []webhook
	withhold []string // the UUIDs of messages that are lost on the way: a test's

	published atomic.Int64 // up to now in this pass, for the progress line
	done      atomic.Bool
}

const batchSize = 20

// begin prepares the producer for a run: a pass that was interrupted goes on, and after one that was finished
// the whole input is sent again.
func (p *producer) begin(ctx context.Context) error {
	_, err := p.db.ExecContext(ctx, `UPDATE position SET next = 0, finished = 0 WHERE finished = 1`)
	return err
}

// finish remembers that this pass is over.
func (p *producer) finish(ctx context.Context) error {
	_, err := p.db.ExecContext(ctx, `UPDATE position SET finished = 1`)
	return err
}

// run publishes what is left.
func (p *producer) run(ctx context.Context) error {
	var next int
	if err := p.db.QueryRowContext(ctx, `SELECT next FROM position`).Scan(&next); err != nil {
		return err
	}
	for next < len(p.input) && ctx.Err() == nil {
		p.published.Store(int64(next))
		batch := p.input[next:min(next+batchSize, len(p.input))]
		if err := p.publish(ctx, batch); err != nil {
			return fmt.Errorf("publish the input from message %d on: %w", next+1, err)
		}
		next += len(batch)
		if _, err := p.db.ExecContext(ctx, `UPDATE position SET next = ?, confirmed = confirmed + ?`, next, len(batch)); err != nil {
			return err
		}
	}
	p.published.Store(int64(next))
	p.done.Store(next == len(p.input))
	return nil
}

// publish sends each webhook in a trace of its own, as the HTTP request would be that brought it.
func (p *producer) publish(ctx context.Context, batch []webhook) error {
	messages := make([]*message.Message, len(batch))
	for i, w := range batch {
		spanCtx, span := p.tracer.Start(ctx, "receive webhook", trace.WithSpanKind(trace.SpanKindServer))
		messages[i] = w.message.Copy()
		messages[i].SetContext(spanCtx)
		telemetry.Inject(spanCtx, messages[i].Metadata)
		span.End()
	}
	if err := p.note(ctx, messages); err != nil {
		return err
	}
	messages = slices.DeleteFunc(messages, func(m *message.Message) bool { return slices.Contains(p.withhold, m.UUID) })
	return p.pub.Publish(webhooksTopic, messages...)
}

// note writes down in which traces messages are sent. It does so before: after a crash, one that nobody knows to
// have been sent may have arrived.
func (p *producer) note(ctx context.Context, messages []*message.Message) error {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	for _, m := range messages {
		if _, err := tx.ExecContext(ctx, `INSERT INTO sent (id, trace_id) VALUES (?, ?)`,
			m.Metadata[event.MetaID], traceID(m.Context())); err != nil {
			return err
		}
	}
	return tx.Commit()
}

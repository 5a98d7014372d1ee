package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// group is a consumer of a topic as the tables know it.
type group struct {
	id          int64
	incarnation string
}

// Register makes consumers known to topic: each gets all that is published from then on, whether it runs or not.
// Those of the first call for a topic also get what was published before. A consumer that is known is left
// alone. Subscriber and Subscribe register their own, so Register is needed only where several consumers shall
// all have what was published before the first of them came: then name them all in one call.
//
// Transactions that published and are still open when a consumer comes may or may not reach it, unless it is the first.
// A call with several new consumers on a topic without any waits for such transactions.
func (b *Broker) Register(ctx context.Context, topic string, consumers ...string) error {
	if err := checkTopic(topic); err != nil {
		return fmt.Errorf("postgres: register with topic %.40q: %w", topic, err)
	}
	for _, c := range consumers {
		if err := checkName("consumer", c); err != nil {
			return fmt.Errorf("postgres: register with topic %q: %w", topic, err)
		}
	}
	for wait := registerLock; ; wait = min(2*wait, time.Second) {
		again, err := b.register(ctx, topic, consumers)
		if err != nil {
			return fmt.Errorf("postgres: register %q with topic %q: %w", consumers, topic, b.explain(ctx, err))
		}
		if !again {
			return nil
		}
		// Publishers get their turn before the table is locked again.
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("postgres: register %q with topic %q: transactions that published are still open: %w", consumers, topic, ctx.Err())
		}
	}
}

// registerLock is how long publishers may have to wait for one attempt to lock them out.
const registerLock = 100 * time.Millisecond

// register makes one attempt; again says that a lock was not to be had.
func (b *Broker) register(ctx context.Context, topic string, consumers []string) (again bool, err error) {
	missing := consumers[:0:0]
	for _, c := range consumers {
		g, err := b.find(ctx, b.pool, topic, c)
		if err != nil {
			return false, err
		}
		if g.id == 0 {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return false, nil
	}
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it says nothing after a commit
	// One registration at a time: two of one consumer must not both adopt, or one of them insert beside.
	if _, err := tx.Exec(ctx, b.sql.lockTopic, topic); err != nil {
		return false, err
	}
	if len(missing) > 1 {
		base, err := b.find(ctx, tx, topic, "")
		if err != nil {
			return false, err
		}
		if base.id != 0 {
			if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", registerLock.Milliseconds())); err != nil {
				return false, err
			}
			// When it is ours, no transaction is open that has published, so nothing can be missed by the copies.
			if _, err := tx.Exec(ctx, b.sql.lockGroups); err != nil {
				if state(err) == "55P03" { // lock_not_available
					return true, nil
				}
				return false, err
			}
		}
	}
	var first int64
	for _, c := range missing {
		id, adopted, err := b.add(ctx, tx, topic, c)
		if err != nil {
			return false, err
		}
		switch {
		case id == 0: // another process was faster
		case adopted:
			first = id
		case first != 0:
			if _, err := tx.Exec(ctx, b.sql.copyBase, first, id); err != nil {
				return false, err
			}
		}
		if id != 0 {
			if _, err := tx.Exec(ctx, b.sql.addLeases, id, buckets); err != nil {
				return false, err
			}
		}
	}
	return false, tx.Commit(ctx)
}

// add inserts a consumer or gives it the rows that nobody has yet. id is 0 if it is there already.
func (b *Broker) add(ctx context.Context, tx pgx.Tx, topic, consumer string) (id int64, adopted bool, err error) {
	for {
		if g, err := b.find(ctx, tx, topic, consumer); err != nil || g.id != 0 {
			return 0, false, err
		}
		err = tx.QueryRow(ctx, b.sql.adopt, topic, consumer).Scan(&id)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return id, true, err
		}
		err = tx.QueryRow(ctx, b.sql.register, topic, consumer).Scan(&id)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return id, false, err
		}
		// A publisher inserted the topic at the same moment: it is there to be adopted now.
	}
}

type querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// find returns the group, with id 0 if there is none.
func (b *Broker) find(ctx context.Context, q querier, topic, consumer string) (group, error) {
	var g group
	var micros int64
	err := q.QueryRow(ctx, b.sql.find, topic, consumer).Scan(&g.id, &micros)
	if errors.Is(err, pgx.ErrNoRows) {
		return group{}, nil
	}
	g.incarnation = strconv.FormatInt(g.id, 36) + "-" + strconv.FormatInt(micros, 36)
	return g, err
}

// unregisterAtOnce bounds one statement that deletes rows.
const unregisterAtOnce = 5_000

// Unregister removes a consumer from topic and deletes the messages that wait for it. Its subscriptions end. One that is
// not known is not an error. A consumer that will never run again must be unregistered: its messages are kept for ever.
func (b *Broker) Unregister(ctx context.Context, topic, consumer string) error {
	if err := checkName("consumer", consumer); err != nil {
		return fmt.Errorf("postgres: unregister from topic %q: %w", topic, err)
	}
	var id int64
	err := b.pool.QueryRow(ctx, b.sql.unregister, topic, consumer).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = b.pool.Exec(ctx, b.sql.forgetGroup, id)
	}
	for err == nil {
		tag, e := b.pool.Exec(ctx, b.sql.someRows, id, unregisterAtOnce)
		if err = e; tag.RowsAffected() < unregisterAtOnce {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("postgres: unregister %q from topic %q: %w", consumer, topic, b.explain(ctx, err))
	}
	b.membersChanged(topic)
	return nil
}

// state is the SQLSTATE of err, "" if it has none.
func state(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

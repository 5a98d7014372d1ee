package inbox

import (
	"context"
	"errors"
)

// Map turns a store of transactions A into one of B, the application's own type: a repository, or sqlc's
// queries. So the same handlers run on any database.
//
//	store := inbox.Map(pg, func(tx pgx.Tx) *db.Queries { return db.New(tx) })
//
// f is called once for each transaction and should do no I/O. A handler that also writes to the outbox
// needs the transaction itself: let B hold it.
func Map[A, B any](s Store[A], f func(A) B) Store[B] {
	if s == nil || f == nil {
		panic("inbox.Map: store and f must not be nil")
	}
	return &mapped[A, B]{Database: s, inner: s, f: f}
}

// Same reports whether two databases are one, also where one of them was made by [Map]: it needs to be
// migrated, pruned and checked only once.
func Same(a, b Database) bool { return base(a) == base(b) }

// Base returns the database's own store that d stands on, however often it was mapped or grouped: d itself if it was
// not.
func Base(d Database) Database { return base(d) }

// BaseTx returns the transaction of [Base] that tx, one of d, stands for. ctx is that which d's Once gave with tx.
func BaseTx(ctx context.Context, d Database, tx any) any {
	for {
		if m, ok := d.(interface{ unmappedTx(context.Context) any }); ok {
			tx = m.unmappedTx(ctx)
		}
		inner, ok := under(d)
		if !ok {
			return tx
		}
		d = inner
	}
}

// under returns the store that d is made of. Stores of other packages have an Unwrap.
func under(d Database) (Database, bool) {
	switch m := d.(type) {
	case interface{ unmapped() Database }:
		return m.unmapped(), true
	case interface{ Unwrap() Database }:
		return m.Unwrap(), true
	}
	return nil, false
}

// base returns the store that a mapped one stands on.
func base(d Database) Database {
	for {
		inner, ok := under(d)
		if !ok {
			return d
		}
		d = inner
	}
}

type mapped[A, B any] struct {
	Database
	inner Store[A]
	f     func(A) B
}

func (m *mapped[A, B]) unmapped() Database { return m.Database }

// unmappedTx is nil if ctx is not one that Once gave to the handler.
func (m *mapped[A, B]) unmappedTx(ctx context.Context) any {
	if c, ok := ctx.Value(m).(*mappedContext[A, B]); ok {
		return c.tx
	}
	return nil
}

func (m *mapped[A, B]) Once(ctx context.Context, c Claim, fn func(context.Context, B) error) (bool, error) {
	return m.inner.Once(ctx, c, func(ctx context.Context, tx A) error {
		return fn(&mappedContext[A, B]{Context: ctx, store: m, tx: tx}, m.f(tx))
	})
}

// Advance cannot make an A of a B. Once left the A in the context that it gave to the handler.
func (m *mapped[A, B]) Advance(ctx context.Context, _ B, consumer, entity string, version int64) (bool, error) {
	c, ok := ctx.Value(m).(*mappedContext[A, B])
	if !ok {
		return false, errors.New("inbox: Advance of a mapped store: the context is not the one that Once gave to the handler")
	}
	return m.inner.Advance(ctx, c.tx, consumer, entity, version)
}

// mappedContext holds the transaction that a mapped store's handler runs in. Its key is the store.
type mappedContext[A, B any] struct {
	context.Context
	store *mapped[A, B]
	tx    A
}

func (c *mappedContext[A, B]) Value(key any) any {
	if key == c.store {
		return c
	}
	return c.Context.Value(key)
}

package testonly

import (
	"context"
	"sync"
	"time"

	"github.com/headrace-go/headrace/internal/ledgerbook"
	"github.com/headrace-go/headrace/ledger"
)

// Ledger is a crash ledger in memory. What a test takes for several lives of a process shares one. It is safe
// for concurrent use.
type Ledger struct {
	mu   sync.Mutex
	book *ledgerbook.Book
}

var _ ledger.Store = (*Ledger)(nil)

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{book: ledgerbook.New()} }

// Check implements [ledger.Store].
func (l *Ledger) Check(context.Context) error { return nil }

// with runs f on the book, which nobody else has meanwhile.
func with[T any](ctx context.Context, l *Ledger, f func(*ledgerbook.Book) T) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		var none T
		return none, err
	}
	return f(l.book), nil
}

// answer is a result and an error of the book.
type answer[T any] struct {
	value T
	err   error
}

func (l *Ledger) do(ctx context.Context, f func(*ledgerbook.Book)) error {
	_, err := with(ctx, l, func(b *ledgerbook.Book) struct{} { f(b); return struct{}{} })
	return err
}

// Begin implements [ledger.Store].
func (l *Ledger) Begin(ctx context.Context, run ledger.Run, terms ledger.Terms) (ledger.Standing, error) {
	return with(ctx, l, func(b *ledgerbook.Book) ledger.Standing { return b.Begin(time.Now(), run, terms) })
}

// Beat implements [ledger.Store].
func (l *Ledger) Beat(ctx context.Context, run ledger.Run, terms ledger.Terms) (ledger.Standing, error) {
	return with(ctx, l, func(b *ledgerbook.Book) ledger.Standing { return b.Beat(time.Now(), run, terms) })
}

// Stopping implements [ledger.Store].
func (l *Ledger) Stopping(ctx context.Context, run ledger.Run) error {
	return l.do(ctx, func(b *ledgerbook.Book) { b.Stopping(run) })
}

// End implements [ledger.Store].
func (l *Ledger) End(ctx context.Context, run ledger.Run) error {
	return l.do(ctx, func(b *ledgerbook.Book) { b.End(run) })
}

// Record implements [ledger.Store].
func (l *Ledger) Record(ctx context.Context, run ledger.Run, done, begun []ledger.Key) ([]ledger.Suspect, error) {
	a, err := with(ctx, l, func(b *ledgerbook.Book) (a answer[[]ledger.Suspect]) {
		a.value, a.err = b.Record(time.Now(), run, done, begun)
		return a
	})
	if err != nil {
		return nil, err
	}
	return a.value, a.err
}

// Alone implements [ledger.Store].
func (l *Ledger) Alone(ctx context.Context, run ledger.Run, key ledger.Key, force bool) (ledger.Suspect, error) {
	a, err := with(ctx, l, func(b *ledgerbook.Book) (a answer[ledger.Suspect]) {
		a.value, a.err = b.Alone(time.Now(), run, key, force)
		return a
	})
	if err != nil {
		return ledger.Suspect{}, err
	}
	return a.value, a.err
}

// Clear implements [ledger.Store].
func (l *Ledger) Clear(ctx context.Context, run ledger.Run, key ledger.Key) error {
	return l.do(ctx, func(b *ledgerbook.Book) { b.Clear(run, key) })
}

// Suspects implements [ledger.Store].
func (l *Ledger) Suspects(ctx context.Context, service string, retention time.Duration, limit int) ([]ledger.Key, error) {
	return with(ctx, l, func(b *ledgerbook.Book) []ledger.Key { return b.Suspects(time.Now(), service, retention, limit) })
}

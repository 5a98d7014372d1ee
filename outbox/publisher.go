package outbox

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Publisher is a Watermill publisher bound to one transaction: what is published goes into the outbox, and to
// the broker when the transaction has been committed. So code that knows only message.Publisher (a
// cqrs.EventBus, say) publishes in the transaction. Make one for each transaction; it is cheap.
//
// It is safe for concurrent use: calls wait for each other.
type Publisher[Tx any] struct {
	mu     sync.Mutex
	ctx    context.Context //nolint:containedctx // the transaction's: message.Publisher has no place for it
	writer Writer[Tx]
	tx     Tx
	closed bool
}

var _ message.Publisher = (*Publisher[any])(nil)

// NewPublisher returns a publisher that does [Add] with ctx, w and tx. It uses them until tx ends, and neither
// commits tx nor rolls it back.
func NewPublisher[Tx any](ctx context.Context, w Writer[Tx], tx Tx) *Publisher[Tx] {
	return &Publisher[Tx]{ctx: ctx, writer: w, tx: tx}
}

// Publish is [Add]. The messages' own contexts are not used. After any error that does not wrap [ErrInvalid] the
// transaction must be rolled back.
func (p *Publisher[Tx]) Publish(topic string, messages ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("outbox: publish: the publisher is closed")
	}
	return Add(p.ctx, p.writer, p.tx, topic, messages...)
}

// Close makes further calls of Publish fail. It does nothing to the transaction.
func (p *Publisher[Tx]) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

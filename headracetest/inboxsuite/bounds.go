package inboxsuite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/headrace-go/headrace/inbox"
)

func (b *bench[Tx]) cancelled() {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	done, err := b.Store.Once(ctx, claim("m"), func(ctx context.Context, tx Tx) error {
		if err := b.Add(ctx, tx, "m"); err != nil {
			return err
		}
		cancel()
		<-ctx.Done()
		return ctx.Err()
	})
	if done || !errors.Is(err, context.Canceled) {
		b.Errorf("Once of a cancelled handler: %t, %v; want context.Canceled", done, err)
	}
	b.wantCount("m", 0)
	if !b.once("m") {
		b.Error("the attempt after a cancellation was taken for a duplicate")
	}
}

// A handler's loop ended at ctx.Done with a nil error, half its work was committed and the message acked.
func (b *bench[Tx]) cancelledQuietly() {
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	done, err := b.Store.Once(ctx, claim("m"), func(ctx context.Context, tx Tx) error {
		if err := b.Add(ctx, tx, "m"); err != nil {
			return err
		}
		cancel()
		return nil
	})
	if done || !errors.Is(err, context.Canceled) {
		b.Errorf("Once of a handler that was cancelled and returned nil: %t, %v; want context.Canceled", done, err)
	}
	b.wantCount("m", 0)
}

func (b *bench[Tx]) cancelledWaiting() {
	release, first := b.hold("m")
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	out := make(chan outcome, 1)
	go func() {
		done, err := b.Store.Once(ctx, claim("m"), func(context.Context, Tx) error {
			b.Error("the waiting copy's handler ran")
			return nil
		})
		out <- outcome{done, err}
	}()
	for b.Waiting != nil && b.Store.MaxConcurrency() > 1 {
		if waiting, err := b.Waiting(b.ctx); waiting || err != nil {
			break
		}
		tick(b.ctx)
	}
	cancel()
	if o := <-out; o.done || !errors.Is(o.err, context.Canceled) {
		b.Errorf("Once cancelled while it waits: %t, %v; want context.Canceled", o.done, o.err)
	}
	release <- nil
	if o := <-first; !o.done || o.err != nil {
		b.Errorf("the copy that was waited for: %t, %v; want true", o.done, o.err)
	}
	b.wantCount("m", 1)
}

// A handler called Commit or Rollback by habit. The store must not take that for its own COMMIT.
func (b *bench[Tx]) endsItself() {
	if b.End == nil {
		b.Skip("a transaction of this store cannot be ended by the handler")
	}
	for _, commit := range []bool{true, false} {
		id := fmt.Sprintf("commit=%t", commit)
		done, err := b.Store.Once(b.ctx, claim(id), func(ctx context.Context, tx Tx) error {
			if err := b.Add(ctx, tx, id); err != nil {
				return err
			}
			_ = b.End(ctx, tx, commit)
			return nil
		})
		if done || !errors.Is(err, inbox.ErrTxEnded) {
			b.Errorf("%s by the handler: Once: %t, %v; want ErrTxEnded", id, done, err)
		}
		// Whether the effect is there depends on the driver, but claim and effect stay together.
		b.once(id)
		b.wantCount(id, 1)
	}
}

// A window of 1,024 on a pool of 4: handlers timed out as they waited for a connection, and it looked
// like an outage.
func (b *bench[Tx]) bounded() {
	most := b.Store.MaxConcurrency()
	if most < 1 {
		b.Fatalf("MaxConcurrency is %d, want a bound", most)
	}
	var open, peak atomic.Int64
	var wg sync.WaitGroup
	full := make(chan struct{}) // closed when as many run as may
	var once sync.Once
	for i := range 4*most + 4 {
		wg.Go(func() {
			_, err := b.Store.Once(b.ctx, claim(fmt.Sprint("m", i)), func(ctx context.Context, tx Tx) error {
				n := open.Add(1)
				defer open.Add(-1)
				for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
				}
				if n == int64(most) {
					once.Do(func() { close(full) })
				}
				select {
				case <-full:
				case <-ctx.Done():
				}
				return b.Add(ctx, tx, "all")
			})
			// Some databases let concurrent updates of one row fail; that is not what is tested here.
			for err != nil && b.ctx.Err() == nil {
				_, err = b.Store.Once(b.ctx, claim(fmt.Sprint("m", i)), b.add("all"))
			}
		})
	}
	select {
	case <-full:
	case <-b.ctx.Done():
		b.Errorf("at most %d transactions ran at once, want %d", peak.Load(), most)
	}
	wg.Wait()
	if got := peak.Load(); got != int64(most) {
		b.Errorf("%d transactions ran at once, want MaxConcurrency %d", got, most)
	}
	b.wantCount("all", 4*most+4)
}

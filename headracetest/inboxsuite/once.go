package inboxsuite

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
)

var errHandler = errors.New("handler failed")

func (b *bench[Tx]) commits() {
	if !b.once("m") {
		b.Error("first Once reported a duplicate")
	}
	b.wantCount("m", 1)
	if b.once("m") {
		b.Error("second Once of the same claim reported no duplicate")
	}
	b.wantCount("m", 1)
}

// The claim was made before the handler and outlived its failure, so the redelivery was skipped: lost.
func (b *bench[Tx]) failedAttempt() {
	done, err := b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
		return errors.Join(b.Add(ctx, tx, "m"), errHandler)
	})
	if done || !errors.Is(err, errHandler) {
		b.Errorf("Once of a failing handler: %t, %v; want false and the handler's error", done, err)
	}
	b.wantCount("m", 0)
	if !b.once("m") {
		b.Error("the redelivery after a failure was taken for a duplicate: the message is lost")
	}
	b.wantCount("m", 1)
}

// Two handlers shared the inbox by the id alone, and the second was skipped.
func (b *bench[Tx]) consumers() {
	for _, consumer := range []string{"billing", "mail"} {
		done, err := b.Store.Once(b.ctx, inbox.Claim{Consumer: consumer, ID: "m"}, b.add(consumer))
		if !done || err != nil {
			b.Errorf("consumer %s: Once: %t, %v; want true", consumer, done, err)
		}
		b.wantCount(consumer, 1)
	}
}

// outcome is what a Once in another goroutine returned.
type outcome struct {
	done bool
	err  error
}

// hold starts a Once whose handler waits: it returns when the handler runs. The handler returns what is
// sent to release.
func (b *bench[Tx]) hold(id string) (release chan<- error, result <-chan outcome) {
	running, end, out := make(chan struct{}), make(chan error, 1), make(chan outcome, 1)
	go func() {
		done, err := b.Store.Once(b.ctx, claim(id), func(ctx context.Context, tx Tx) error {
			err := b.Add(ctx, tx, id)
			close(running)
			select {
			case e := <-end:
				return errors.Join(err, e)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		out <- outcome{done, err}
	}()
	select {
	case <-running:
	case o := <-out:
		b.Fatalf("Once(%q) ended without running its handler: %t, %v", id, o.done, o.err)
	}
	return end, out
}

// second starts a copy of a held message and returns when it waits, as far as that can be seen.
func (b *bench[Tx]) second(id string, ran *atomic.Bool) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		done, err := b.Store.Once(b.ctx, claim(id), func(ctx context.Context, tx Tx) error {
			ran.Store(true)
			return b.Add(ctx, tx, id)
		})
		out <- outcome{done, err}
	}()
	for b.Waiting != nil && b.Store.MaxConcurrency() > 1 {
		waiting, err := b.Waiting(b.ctx)
		if err != nil {
			b.Fatalf("look for a waiting claim: %v", err)
		}
		if waiting {
			break
		}
		tick(b.ctx)
	}
	return out
}

// Two copies were processed at the same moment and both took effect.
func (b *bench[Tx]) secondWaitsForCommit() {
	var ran atomic.Bool
	release, first := b.hold("m")
	second := b.second("m", &ran)
	if ran.Load() {
		b.Error("the second copy's handler ran while the first one's was running")
	}
	release <- nil
	if o := <-first; !o.done || o.err != nil {
		b.Errorf("first copy: %t, %v; want true", o.done, o.err)
	}
	if o := <-second; o.done || o.err != nil || ran.Load() {
		b.Errorf("second copy: %t, %v, handler ran: %t; want a duplicate", o.done, o.err, ran.Load())
	}
	b.wantCount("m", 1)
}

// The second copy was dropped as a duplicate of a first one that failed afterwards: both are lost.
func (b *bench[Tx]) secondRunsAfterRollback() {
	var ran atomic.Bool
	release, first := b.hold("m")
	second := b.second("m", &ran)
	release <- errHandler
	if o := <-first; o.done || !errors.Is(o.err, errHandler) {
		b.Errorf("first copy: %t, %v; want the handler's error", o.done, o.err)
	}
	if o := <-second; !o.done || o.err != nil {
		b.Errorf("second copy: %t, %v; want true", o.done, o.err)
	}
	b.wantCount("m", 1)
}

func (b *bench[Tx]) manyCopies() {
	const copies = 16
	var wg sync.WaitGroup
	var done atomic.Int64
	for i := range copies {
		wg.Go(func() {
			for b.ctx.Err() == nil {
				ok, err := b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
					if err := b.Add(ctx, tx, "m"); err != nil {
						return err
					}
					if i%4 == 0 {
						return errHandler // while the others wait
					}
					return nil
				})
				if ok {
					done.Add(1)
				}
				if err == nil || errors.Is(err, errHandler) {
					return
				}
				// A deadlock or a busy database is worth a retry; anything else would end in the limit.
				if v := new(classify.Classifier).Classify(err).Verdict; v > classify.VerdictRetryAfter {
					b.Errorf("copy %d: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if done.Load() != 1 {
		b.Errorf("%d of %d copies took effect, want 1", done.Load(), copies)
	}
	b.wantCount("m", 1)
}

// The process died after the effect and before the mark, and the effect was doubled.
func (b *bench[Tx]) crash() {
	if b.Kill == nil {
		b.Skip("the connection of this store cannot be ended from outside")
	}
	done, err := b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
		if err := b.Add(ctx, tx, "m"); err != nil {
			return err
		}
		return b.Kill(ctx, tx)
	})
	if done || err == nil {
		b.Errorf("Once over a connection that was killed after the effect: %t, %v; want an error", done, err)
	}
	if v := new(classify.Classifier).Classify(err).Verdict; v != classify.VerdictRetry {
		b.Errorf("a lost connection has verdict %v, want retry; error: %v", v, err)
	}
	b.wantCount("m", 0)
	if !b.once("m") {
		b.Error("the redelivery after a crash was taken for a duplicate: the message is lost")
	}
	b.wantCount("m", 1)
}

// Foreign producers send no id, and everything was a duplicate of "".
func (b *bench[Tx]) names() {
	long := strings.Repeat("x", inbox.MaxNameBytes)
	for _, tc := range []struct {
		name, field string
		claim       inbox.Claim
	}{
		{"empty consumer", "consumer", inbox.Claim{Consumer: "", ID: "m"}},
		{"empty id", "id", inbox.Claim{Consumer: "c", ID: ""}},
		{"long consumer", "consumer", inbox.Claim{Consumer: long + "x", ID: "m"}},
		{"long id", "id", inbox.Claim{Consumer: "c", ID: long + "x"}},
		{"not UTF-8", "id", inbox.Claim{Consumer: "c", ID: "a\xff"}},
		{"NUL", "id", inbox.Claim{Consumer: "c", ID: "a\x00"}},
	} {
		done, err := b.Store.Once(b.ctx, tc.claim, func(context.Context, Tx) error {
			b.Errorf("%s: the handler ran", tc.name)
			return nil
		})
		var refused *inbox.NameError
		if done || !errors.As(err, &refused) || refused.Field != tc.field {
			b.Errorf("%s: Once: %t, %v; want a NameError of field %q", tc.name, done, err, tc.field)
		}
		if v := new(classify.Classifier).Classify(err).Verdict; v != classify.VerdictPoison {
			b.Errorf("%s: verdict %v, want poison; error: %v", tc.name, v, err)
		}
	}
	for _, id := range []string{long, long[:inbox.MaxNameBytes-1]} {
		if !b.once(id) {
			b.Errorf("an id of %d bytes was taken for a duplicate", len(id))
		}
	}
}

// A collation took "A" for "a", or cut trailing spaces, and a message was skipped.
func (b *bench[Tx]) bytewise() {
	for _, id := range []string{"a", "A", "a ", " a", "ä", "a\u0308", "Ä", "ß", "ss", "a'\"`\\;--", "日本", "%", "_"} {
		if !b.once(id) {
			b.Errorf("id %q was taken for a duplicate", id)
		}
		if b.once(id) {
			b.Errorf("id %q a second time was not taken for a duplicate", id)
		}
	}
}

// A handler's SQL error aborted the transaction, and the retries in the same transaction all failed.
func (b *bench[Tx]) freshTransaction() {
	if b.Fail == nil {
		b.Skip("no statement of this store can fail")
	}
	_, err := b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
		return errors.Join(b.Add(ctx, tx, "m"), b.Fail(ctx, tx))
	})
	if err == nil {
		b.Fatal("Once with a failing statement: no error")
	}
	if !b.once("m") {
		b.Error("the second attempt was taken for a duplicate")
	}
	b.wantCount("m", 1)
}

// A handler swallowed an SQL error; the COMMIT was answered with ROLLBACK and taken for success.
func (b *bench[Tx]) swallowedError() {
	if b.Fail == nil || !b.FailureAborts {
		b.Skip("a failed statement does not abort this database's transactions")
	}
	done, err := b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
		if err := b.Add(ctx, tx, "m"); err != nil {
			return err
		}
		if b.Fail(ctx, tx) == nil {
			b.Error("the statement did not fail")
		}
		return nil
	})
	if done || err == nil {
		b.Errorf("Once of an aborted transaction: %t, %v; want an error", done, err)
	}
	b.wantCount("m", 0)
	if !b.once("m") {
		b.Error("the next attempt was taken for a duplicate: the message is lost")
	}
	b.wantCount("m", 1)
}

func (b *bench[Tx]) panics() {
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				b.Errorf("recovered %v, want the handler's panic", r)
			}
		}()
		_, _ = b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
			if err := b.Add(ctx, tx, "m"); err != nil {
				return err
			}
			panic("boom")
		})
	}()
	b.wantCount("m", 0)
	if !b.once("m") {
		b.Error("the attempt after a panic was taken for a duplicate")
	}
}

func (b *bench[Tx]) goexit() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = b.Store.Once(b.ctx, claim("m"), func(ctx context.Context, tx Tx) error {
			if err := b.Add(ctx, tx, "m"); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		})
		b.Error("Once returned after Goexit")
	}()
	<-ended
	b.wantCount("m", 0)
	if !b.once("m") {
		b.Error("the attempt after Goexit was taken for a duplicate")
	}
}

package poison

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/internal/flight"
)

// park calls Config.Park until it has done its part. It returns an error only when ctx has ended: then the message
// comes again, and its dead letter is recognised.
func (p *Poison) park(ctx context.Context, f *flight.Flight, r Record) error {
	if p.config.Park == nil {
		return nil
	}
	err := p.tryPark(ctx, r)
	if err == nil {
		return nil
	}
	steps := p.backoff()
	defer p.books.release()
	for try := 1; ; try++ {
		err = fmt.Errorf("park message %q, whose dead letter %s is stored: %w", r.UUID, r.ID, err)
		p.books.failed(err, try == 1)
		delay := p.step(steps)
		p.config.Logger.LogAttrs(ctx, slog.LevelError, "message cannot be parked: its lane is held",
			slog.String("consumer", r.Consumer), slog.String("id", r.ID),
			slog.Int("try", try), slog.Duration("next", delay), slog.Any("error", err))
		if p.config.OnWriteError != nil {
			p.config.OnWriteError(ctx, err)
		}
		if !f.Sleep(ctx, delay) {
			return err
		}
		if err = p.tryPark(ctx, r); err == nil {
			return nil
		}
	}
}

func (p *Poison) tryPark(ctx context.Context, r Record) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &classify.PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	return p.config.Park(ctx, r)
}

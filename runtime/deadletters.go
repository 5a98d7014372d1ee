package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/telemetry"
)

// DeadLetterConfig says what the runtime does with a store of dead letters. The zero value is the default.
type DeadLetterConfig struct {
	// Retention is how long after its failure a letter stays that was redriven, resolved or discarded; then it is
	// deleted. What nobody has dealt with is never deleted. Default 30 days; Off: all stays.
	Retention time.Duration
}

// defaultLetterRetention is the default of DeadLetterConfig.Retention.
const defaultLetterRetention = 30 * 24 * time.Hour

// deadLetters is the store that Runtime.DeadLetters was given.
type deadLetters struct {
	store  *deadletter.Store
	config DeadLetterConfig
}

// DeadLetters makes the runtime report, as metrics, how many dead letters of its consumers are in store and for how long the
// oldest has waited for somebody, and delete from it what is done with and old. A consumer with
// [HandleDeadLettersTx] and deadletter.Index fills it. It must be called before Run, once.
func (r *Runtime) DeadLetters(store *deadletter.Store, cfg DeadLetterConfig) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		r.stop(errors.New("a store of dead letters was registered after Run had begun"))
		return
	}
	cfg.Retention = first(cfg.Retention, defaultLetterRetention)
	r.letters = append(r.letters, deadLetters{store, cfg})
}

// checkDeadLetters returns the wiring mistakes of DeadLetters.
func (r *Runtime) checkDeadLetters() error {
	if len(r.letters) > 1 {
		return fmt.Errorf("DeadLetters was called %d times: want one store", len(r.letters))
	}
	for _, l := range r.letters {
		if l.store == nil {
			return errors.New("DeadLetters: the store is nil")
		}
		if l.config.Retention < 0 && l.config.Retention != Off {
			return fmt.Errorf("DeadLetterConfig.Retention is %v: want a duration above zero, or Off", l.config.Retention)
		}
	}
	return nil
}

// keepDeadLetters starts the deletion of old letters.
func (r *Runtime) keepDeadLetters(part func(string, func(context.Context) error)) {
	for _, l := range r.letters {
		if l.config.Retention == Off {
			continue
		}
		part("retention of dead letters", func(ctx context.Context) error {
			return l.store.Keep(ctx, l.config.Retention, func(err error) {
				r.config.Logger.WarnContext(ctx, "old dead letters could not be deleted", "error", err)
			})
		})
	}
}

// observeDeadLetters makes the consumer's letters readable as metrics.
func (u *run) observeDeadLetters(l *line) error {
	if len(u.runtime.letters) == 0 || l.consumer.readsDeadLetters() {
		return nil
	}
	w := &letterWatch{store: u.runtime.letters[0].store, consumer: l.consumer.config.Name}
	stop, err := l.telemetry.ObserveDeadLetters(w.read)
	if err != nil {
		return err
	}
	u.stopObserving = append(u.stopObserving, stop)
	return nil
}

// lettersEvery is how often the letters are counted at most, however often metrics are collected.
const lettersEvery = 15 * time.Second

// letterWatch counts the letters of a consumer. It is safe for concurrent use.
type letterWatch struct {
	store    *deadletter.Store
	consumer string

	mu    sync.Mutex
	at    time.Time
	stats telemetry.DeadLetterStats
}

func (w *letterWatch) read(ctx context.Context) (telemetry.DeadLetterStats, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.at.IsZero() && time.Since(w.at) < lettersEvery {
		return w.stats, nil
	}
	counts, err := w.store.Count(ctx, deadletter.Filter{Consumer: w.consumer})
	if err != nil {
		return telemetry.DeadLetterStats{}, err
	}
	stats := telemetry.DeadLetterStats{Depth: counts[deadletter.New], States: map[string]int64{}}
	for _, s := range deadletter.States {
		stats.States[string(s)] = counts[s]
	}
	if stats.Depth > 0 {
		waiting := deadletter.Filter{Consumer: w.consumer, States: []deadletter.State{deadletter.New}}
		oldest, _, err := w.store.List(ctx, waiting, false, deadletter.Cursor{}, 1)
		if err != nil {
			return telemetry.DeadLetterStats{}, err
		}
		if len(oldest) > 0 {
			stats.Oldest = max(time.Since(oldest[0].Record.LastFailure), 0)
		}
	}
	w.stats, w.at = stats, time.Now()
	return stats, nil
}

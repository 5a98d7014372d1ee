package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// errUnregistered ends a subscription whose consumer was unregistered.
var errUnregistered = errors.New("the consumer was unregistered")

const (
	// removeAtOnce bounds the messages of one statement.
	removeAtOnce = 2_000
	// maxUnremoved bounds the acked messages that are not deleted yet, beside the window: then nothing is
	// delivered until the database has caught up.
	maxUnremoved = 10_000
)

// settled is a message that is to be deleted, or whose deliveries are to be stored.
type settled struct {
	lease
	id         int64
	stored     time.Time // with the id it names one row, also when another server gives out the id again
	deliveries int
}

// tenure is what the database said of a subscription's leases.
type tenure struct {
	leases []lease
	share  int       // how many it should have
	until  time.Time // by our clock; not later than the database takes it for dead
	gone   bool      // the consumer was unregistered
}

// keeper is the writing half of a subscription: it keeps the leases, deletes what was acked and stores what was given
// back, with one statement at a time, so that these never wait for each other's locks. Its own goroutine does the I/O.
type keeper struct {
	s       *subscription
	owner   string
	members int // as the last beat said
	turn    int // of the kinds of statements
	batch   int // messages that a statement can have and end in time

	kick  chan struct{} // something to write; capacity 1
	early chan struct{} // beat now; capacity 1

	mu        sync.Mutex
	acked     []settled // not yet deleted; all but the keeper only append
	returned  []settled // deliveries to be stored; likewise
	releasing []lease
	tenure    *tenure // not yet seen by the subscription
}

func newKeeper(s *subscription) *keeper {
	return &keeper{s: s, batch: removeAtOnce, kick: make(chan struct{}, 1), early: make(chan struct{}, 1)}
}

// ack deletes e's row soon.
func (k *keeper) ack(l lease, e *entry) {
	k.mu.Lock()
	k.acked = append(k.acked, settled{l, e.id, e.stored, e.deliveries})
	k.mu.Unlock()
	ring(k.kick)
}

// giveBack stores how often e was delivered.
func (k *keeper) giveBack(l lease, e *entry) {
	k.mu.Lock()
	k.returned = append(k.returned, settled{l, e.id, e.stored, e.deliveries})
	k.mu.Unlock()
	ring(k.kick)
}

// release gives a lease back, after what was acked under it is deleted. Nothing is acked under it any more.
func (k *keeper) release(l lease) {
	k.mu.Lock()
	k.releasing = append(k.releasing, l)
	k.mu.Unlock()
	ring(k.kick)
}

// hurry asks for the leases now, since others came or went.
func (k *keeper) hurry() { ring(k.early) }

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is on its way
	}
}

// unremoved adds to r's known rows those that are acked and can still be read.
func (k *keeper) unremoved(r *request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.acked {
		r.know(k.acked[i].id, k.acked[i].stored)
	}
}

// backlog is how many these are.
func (k *keeper) backlog() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.acked)
}

// news takes what the database said since the last call; nil if that is nothing.
func (k *keeper) news() *tenure {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tenure
	k.tenure = nil
	return t
}

// run works until stop is closed, then writes what is left and leaves.
func (k *keeper) run(stop <-chan struct{}) {
	ctx := context.Background() // each statement has a limit of its own
	every := min(k.s.ttl/4, time.Second)
	retry := every / 4
	var troubles trouble
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last, next time.Time // beats
	for {
		wrote, err := k.flush(ctx)
		// Who begins anew writes first what was acked under its old leases, as long as nobody else has them.
		if now := time.Now(); !now.Before(next) && (k.owner != "" || !wrote) {
			last, next = now, now.Add(every)
			if beatErr := k.beat(ctx); beatErr != nil {
				err = errors.Join(err, beatErr)
				next = now.Add(retry)
			}
		}
		troubles.report(k.s, err)
		wait := time.Until(next)
		kick := k.kick
		switch {
		case err != nil:
			wait, kick = retry, nil // not as fast as messages are acked
		case wrote:
			wait = 0 // there may be more
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-kick:
		case <-k.early:
			// The more members there are, the more come and go, and each tells all others.
			next = earlier(next, last.Add(min(time.Duration(k.members)*2*time.Millisecond, every)))
		case <-stop:
			k.end(ctx)
			return
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// end writes what is left. What cannot be written comes again: at once if the leases were given back, else
// when they have run out.
func (k *keeper) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, k.s.broker.config.CloseTimeout)
	defer cancel()
	for {
		wrote, err := k.flush(ctx)
		if wrote && err == nil {
			continue
		}
		if err == nil && k.owner != "" {
			_, err = k.s.broker.pool.Exec(ctx, k.s.broker.sql.leave, k.s.group.id, k.owner)
		}
		if err == nil {
			k.s.broker.membersChanged(k.s.topic)
			return
		}
		if ctx.Err() != nil {
			k.s.broker.log.WarnContext(ctx, "postgres: the end of a subscription could not be stored: messages that were acked come again",
				"consumer", k.s.consumer, "topic", k.s.topic, "acked", k.backlog(), "error", err)
			return
		}
		timer := time.NewTimer(50 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// call makes one bounded call of the database.
func (k *keeper) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, k.limit())
	defer cancel()
	return f(ctx)
}

// limit is how long one call may take.
func (k *keeper) limit() time.Duration { return max(k.s.ttl/3, 100*time.Millisecond) }

// flush makes one of the statements that wait, each kind in its turn, and reports whether there was one. It makes only
// one, for the leases must be kept meanwhile: under steady acks there is always another, and each may be slow.
func (k *keeper) flush(ctx context.Context) (wrote bool, err error) {
	for i := 0; i < 3 && !wrote; i++ {
		switch k.turn % 3 {
		case 0:
			wrote, err = k.write(ctx, &k.acked, k.remove)
		case 1:
			wrote, err = k.write(ctx, &k.returned, k.count)
		case 2:
			wrote, err = k.flushReleasing(ctx)
		}
		k.turn++
	}
	return wrote, err
}

// write makes a statement, f, of the first of list.
func (k *keeper) write(ctx context.Context, list *[]settled, f func(context.Context, []settled) error) (wrote bool, err error) {
	k.mu.Lock()
	n := min(len(*list), k.batch)
	first := (*list)[:n]
	k.mu.Unlock()
	if n == 0 {
		return false, nil
	}
	began := time.Now()
	if err := f(ctx, first); err != nil {
		if errors.Is(err, context.DeadlineExceeded) || state(err) == "57014" { // query_canceled
			k.batch = max(n/2, 1) // all of them would never end in time
		}
		return true, err
	}
	if time.Since(began) < k.limit()/4 {
		k.batch = min(2*k.batch, removeAtOnce)
	}
	k.mu.Lock()
	*list = append((*list)[:0], (*list)[n:]...)
	k.mu.Unlock()
	return true, nil
}

// flushReleasing gives back the leases under which nothing waits to be written.
func (k *keeper) flushReleasing(ctx context.Context) (wrote bool, err error) {
	k.mu.Lock()
	var free []lease
	if len(k.releasing) > 0 {
		waits := make(map[lease]bool, buckets)
		for _, list := range [][]settled{k.acked, k.returned} {
			for i := range list {
				waits[list[i].lease] = true
			}
		}
		for _, l := range k.releasing {
			if !waits[l] {
				free = append(free, l)
			}
		}
	}
	k.mu.Unlock()
	if len(free) == 0 {
		return false, nil
	}
	if err := k.letGo(ctx, free); err != nil {
		return true, err
	}
	k.mu.Lock()
	k.releasing = slices.DeleteFunc(k.releasing, func(l lease) bool { return slices.Contains(free, l) })
	k.mu.Unlock()
	return true, nil
}

// remove deletes the rows of list whose leases nobody has taken. Of the others it deletes none: whoever has their
// bucket now delivers them again.
func (k *keeper) remove(ctx context.Context, list []settled) error {
	numbers, epochs := leasesOf(list)
	of, ids, stored := make([]int16, len(list)), make([]int64, len(list)), make([]time.Time, len(list))
	counted := []int64{}
	for i, a := range list {
		of[i], ids[i], stored[i] = a.bucket, a.id, a.stored
		if a.deliveries > 1 {
			counted = append(counted, a.id)
		}
	}
	var held []int16
	err := k.call(ctx, func(ctx context.Context) error {
		return k.s.broker.pool.QueryRow(ctx, k.s.broker.sql.remove, k.s.group.id, numbers, epochs, of, ids, stored, counted).Scan(&held)
	})
	if err != nil {
		return fmt.Errorf("delete %d acked messages: %w", len(list), err)
	}
	if len(held) < len(numbers) {
		k.hurry()            // some leases are lost,
		k.s.void.Store(true) // and rows that were acked under them are still there, unread if we have the bucket again
	}
	ring(k.s.kick)
	return nil
}

// leasesOf returns the distinct leases of list. A bucket can be in it with two epochs.
func leasesOf(list []settled) (numbers []int16, epochs []int64) {
	seen := make(map[lease]struct{}, buckets)
	for _, a := range list {
		if _, there := seen[a.lease]; !there {
			seen[a.lease] = struct{}{}
			numbers, epochs = append(numbers, a.bucket), append(epochs, a.epoch)
		}
	}
	return numbers, epochs
}

func (k *keeper) count(ctx context.Context, list []settled) error {
	last := make(map[int64]settled, len(list)) // a statement may name a row once
	for _, a := range list {
		last[a.id] = a
	}
	numbers, epochs := leasesOf(list)
	of, ids, stored := make([]int16, 0, len(last)), make([]int64, 0, len(last)), make([]time.Time, 0, len(last))
	deliveries := make([]int32, 0, len(last))
	for _, a := range last {
		of, ids, stored = append(of, a.bucket), append(ids, a.id), append(stored, a.stored)
		deliveries = append(deliveries, int32(min(a.deliveries, 1<<30)))
	}
	err := k.call(ctx, func(ctx context.Context) error {
		_, err := k.s.broker.pool.Exec(ctx, k.s.broker.sql.count, k.s.group.id, numbers, epochs, of, ids, stored, deliveries)
		return err
	})
	if err != nil {
		return fmt.Errorf("store the deliveries of %d messages: %w", len(last), err)
	}
	return nil
}

func (k *keeper) letGo(ctx context.Context, list []lease) error {
	numbers, epochs := make([]int16, len(list)), make([]int64, len(list))
	for i, l := range list {
		numbers[i], epochs[i] = l.bucket, l.epoch
	}
	err := k.call(ctx, func(ctx context.Context) error {
		_, err := k.s.broker.pool.Exec(ctx, k.s.broker.sql.letGo, k.s.group.id, numbers, epochs)
		return err
	})
	if err != nil {
		return fmt.Errorf("give back %d buckets: %w", len(list), err)
	}
	k.s.broker.membersChanged(k.s.topic)
	return nil
}

// beat keeps the member alive, joins if it is not, and takes what buckets it should have and are free.
func (k *keeper) beat(ctx context.Context) error {
	b, g := k.s.broker, k.s.group.id
	if k.owner == "" {
		if err := k.join(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	var there, alive bool
	var others int
	var numbers []int16
	var epochs []int64
	err := k.call(ctx, func(ctx context.Context) error {
		return b.pool.QueryRow(ctx, b.sql.beat, g, k.owner, k.s.ttl.Microseconds()).Scan(&there, &alive, &others, &numbers, &epochs)
	})
	switch {
	case err != nil:
		return fmt.Errorf("keep the leases: %w", err)
	case !there:
		k.post(&tenure{gone: true})
		return nil
	case !alive: // it was taken for dead: its leases are anybody's, and its name is not used again
		k.owner = ""
		k.post(&tenure{})
		k.hurry()
		return nil
	}
	k.members = others + 1
	t := &tenure{share: outbox.Share(k.members), until: began.Add(k.s.ttl)}
	t.leases = make([]lease, len(numbers), buckets)
	for i := range numbers {
		t.leases[i] = lease{numbers[i], epochs[i]}
	}
	if want := t.share - len(t.leases); want > 0 {
		had := *t
		k.post(&had) // what it has is kept, whether or not more can be taken
		err = k.call(ctx, func(ctx context.Context) error {
			rows, err := b.pool.Query(ctx, b.sql.take, g, k.owner, want)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var l lease
				if err := rows.Scan(&l.bucket, &l.epoch); err != nil {
					return err
				}
				t.leases = append(t.leases, l)
			}
			return rows.Err()
		})
		if err != nil {
			return fmt.Errorf("take buckets: %w", err)
		}
	}
	k.post(t)
	return nil
}

// join makes the subscription known under a name that was never used.
func (k *keeper) join(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	owner := fmt.Sprintf("%.64s-%d-%s", host, os.Getpid(), rand.Text())
	err = k.call(ctx, func(ctx context.Context) error {
		_, err := k.s.broker.pool.Exec(ctx, k.s.broker.sql.join, k.s.group.id, owner, k.s.ttl.Microseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	k.owner = owner
	k.s.broker.membersChanged(k.s.topic)
	return nil
}

func (k *keeper) post(t *tenure) {
	k.mu.Lock()
	k.tenure = t
	k.mu.Unlock()
	ring(k.s.kick)
}

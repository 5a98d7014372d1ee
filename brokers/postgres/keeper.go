package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// errUnregistered ends a subscription whose consumer was unregistered.
var errUnregistered = errors.New("the consumer was unregistered")

const (
	// removeAtOnce bounds one statement that deletes acked messages.
	removeAtOnce = 2_000
	// maxUnremoved bounds the acked messages that are not deleted yet, beside the window: then nothing is
	// delivered until the database has caught up.
	maxUnremoved = 10_000
)

// settled is a message that is to be deleted, or whose deliveries are to be stored.
type settled struct {
	lease
	id         int64
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

	kick  chan struct{} // something to write; capacity 1
	early chan struct{} // beat now; capacity 1

	mu        sync.Mutex
	acked     []settled // not yet deleted
	removing  []settled // being deleted
	returned  []settled // deliveries to be stored
	releasing []lease
	tenure    *tenure // not yet seen by the subscription
}

func newKeeper(s *subscription) *keeper {
	return &keeper{s: s, kick: make(chan struct{}, 1), early: make(chan struct{}, 1)}
}

// ack deletes e's row soon.
func (k *keeper) ack(l lease, id int64, deliveries int) {
	k.mu.Lock()
	k.acked = append(k.acked, settled{l, id, deliveries})
	k.mu.Unlock()
	ring(k.kick)
}

// giveBack stores that the message was delivered so often.
func (k *keeper) giveBack(l lease, id int64, deliveries int) {
	k.mu.Lock()
	k.returned = append(k.returned, settled{l, id, deliveries})
	k.mu.Unlock()
	ring(k.kick)
}

// release gives a lease back, after what was acked under it is deleted.
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

// unremoved appends the ids that are acked and can still be read.
func (k *keeper) unremoved(ids []int64) []int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, list := range [][]settled{k.acked, k.removing} {
		for i := range list {
			ids = append(ids, list[i].id)
		}
	}
	return ids
}

// backlog is how many these are.
func (k *keeper) backlog() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.acked) + len(k.removing)
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
		err := k.flush(ctx)
		// Who begins anew writes first what was acked under its old leases, as long as nobody else has them.
		if now := time.Now(); !now.Before(next) && (err == nil || k.owner != "") {
			last, next = now, now.Add(every)
			if beatErr := k.beat(ctx); beatErr != nil {
				err = errors.Join(err, beatErr)
				next = now.Add(retry)
			}
		}
		troubles.report(k.s, err)
		wait := time.Until(next)
		kick := k.kick
		if err != nil {
			wait, kick = retry, nil // not as fast as messages are acked
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
	for ctx.Err() == nil {
		err := k.flush(ctx)
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
	ctx, cancel := context.WithTimeout(ctx, max(k.s.ttl/3, 100*time.Millisecond))
	defer cancel()
	return f(ctx)
}

// flush writes what waits, until there is nothing or it fails.
func (k *keeper) flush(ctx context.Context) error {
	for {
		k.mu.Lock()
		if len(k.removing) == 0 {
			n := min(len(k.acked), removeAtOnce)
			k.removing = append(k.removing, k.acked[:n]...)
			k.acked = append(k.acked[:0], k.acked[n:]...)
		}
		removing := k.removing
		k.mu.Unlock()
		if len(removing) == 0 {
			break
		}
		if err := k.remove(ctx, removing); err != nil {
			return err
		}
		k.mu.Lock()
		k.removing = k.removing[:0]
		k.mu.Unlock()
		ring(k.s.kick)
	}

	k.mu.Lock()
	returned, releasing := k.returned, k.releasing
	k.returned, k.releasing = nil, nil
	k.mu.Unlock()
	err := k.count(ctx, returned)
	if err == nil {
		returned = nil
		if err = k.letGo(ctx, releasing); err == nil {
			releasing = nil
		}
	}
	if err != nil {
		k.mu.Lock()
		k.returned, k.releasing = append(returned, k.returned...), append(releasing, k.releasing...)
		k.mu.Unlock()
	}
	return err
}

// remove deletes the rows of list whose leases nobody has taken. Of the others it deletes none: whoever has their
// bucket now delivers them again.
func (k *keeper) remove(ctx context.Context, list []settled) error {
	numbers, epochs := leasesOf(list)
	of, ids := make([]int16, len(list)), make([]int64, len(list))
	counted := []int64{}
	for i, a := range list {
		of[i], ids[i] = a.bucket, a.id
		if a.deliveries > 1 {
			counted = append(counted, a.id)
		}
	}
	var held []int16
	err := k.call(ctx, func(ctx context.Context) error {
		return k.s.broker.pool.QueryRow(ctx, k.s.broker.sql.remove, k.s.group.id, numbers, epochs, of, ids, counted).Scan(&held)
	})
	if err != nil {
		return fmt.Errorf("delete %d acked messages: %w", len(list), err)
	}
	if len(held) < len(numbers) {
		k.hurry() // some leases are lost
	}
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
	if len(list) == 0 {
		return nil
	}
	last := make(map[int64]settled, len(list)) // a statement may name a row once
	for _, a := range list {
		last[a.id] = a
	}
	numbers, epochs := leasesOf(list)
	of, ids, deliveries := make([]int16, 0, len(last)), make([]int64, 0, len(last)), make([]int32, 0, len(last))
	for _, a := range last {
		of, ids, deliveries = append(of, a.bucket), append(ids, a.id), append(deliveries, int32(min(a.deliveries, 1<<30)))
	}
	err := k.call(ctx, func(ctx context.Context) error {
		_, err := k.s.broker.pool.Exec(ctx, k.s.broker.sql.count, k.s.group.id, numbers, epochs, of, ids, deliveries)
		return err
	})
	if err != nil {
		return fmt.Errorf("store the deliveries of %d messages: %w", len(last), err)
	}
	return nil
}

func (k *keeper) letGo(ctx context.Context, list []lease) error {
	if len(list) == 0 {
		return nil
	}
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

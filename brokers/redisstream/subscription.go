package redisstream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

const (
	// beatsPerPatience is how many heartbeats a member makes within its patience.
	beatsPerPatience = 3
	// The delays between tries while the server does not answer.
	firstDelay, maxDelay = 50 * time.Millisecond, 2 * time.Second
	// closeTimeout bounds the last words to the server.
	closeTimeout = 2 * time.Second
)

// subscription is one member at work. One goroutine, run, reads and hands over; the settler's acks and gives back; a
// third keeps the member alive.
type subscription struct {
	config  *Config
	member  *membership
	log     *slog.Logger
	topic   string
	window  int
	out     chan *message.Message
	settler *adapter.Settler[*entry]
	free    func() // gives the member's name back

	mu     sync.Mutex
	unsent []string       // ids that were acked, which the server does not know
	again  []again        // given back, to come again here, in the order of their time
	busy   map[string]int // ids that are handed over, or of which the server is about to be told: how often

	left   []*entry // of run: what it could not hand over
	lost   bool     // of run: an answer can have been lost, with what the server gave in it
	lapsed bool     // of keepAlive: others can have taken over what is held
}

// again is an entry that comes again at a time.
type again struct {
	entry *entry
	at    time.Time
}

func newSubscription(config *Config, member *membership, topic string, window int) *subscription {
	s := &subscription{
		config: config,
		member: member,
		log:    config.Logger.With("topic", topic, "consumer", member.group, "member", member.name),
		free:   func() {},
		topic:  topic,
		window: window,
		out:    make(chan *message.Message),
		busy:   map[string]int{},
	}
	s.settler = adapter.NewSettler(window, s.settle)
	return s
}

// abandon ends a subscription that does not run.
func (s *subscription) abandon() {
	s.settler.Close()
	s.leave()
	close(s.out)
}

func (s *subscription) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var keeper sync.WaitGroup
	keeper.Go(func() { s.keepAlive(ctx) })
	s.receive(ctx)
	cancel()
	keeper.Wait()
	s.end()
}

// receive hands over what comes until ctx ends or the client was closed.
func (s *subscription) receive(ctx context.Context) {
	var (
		claimAt time.Time // the next look for what others left
		delay   = firstDelay
	)
	for ctx.Err() == nil {
		room := s.waitForRoom(ctx, s.handOverAgain(ctx))
		if room == 0 {
			continue
		}
		entries, err := s.next(ctx, room, &claimAt)
		s.handOver(ctx, entries)
		if err == nil {
			delay = firstDelay
			continue
		}
		s.lost = true
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, redis.ErrClosed):
			s.log.Error("redisstream: subscription ends", "error", err)
			return
		case isGone(err):
			s.log.Error("redisstream: the stream or its group was deleted; it is made again", "error", err)
			err = s.joinAgain(ctx)
		}
		if err != nil {
			s.log.Warn("redisstream: cannot read; tries again", "error", err, "in", delay)
		}
		sleep(ctx, delay)
		delay = min(2*delay, maxDelay)
	}
}

// joinAgain makes the stream and the group that were deleted. What was to come again is nobody's now: if it is still in the
// stream, the new group reads it.
func (s *subscription) joinAgain(ctx context.Context) error {
	if err := s.member.join(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	n := len(s.again)
	s.again = nil
	s.mu.Unlock()
	s.settler.Reserve(-n)
	return nil
}

// isGone tells whether err says that the stream or the group is not there.
func isGone(err error) bool {
	answer, ok := errors.AsType[redis.Error](err)
	return ok && (strings.HasPrefix(answer.Error(), "NOGROUP") || strings.HasPrefix(answer.Error(), "ERR no such key"))
}

// next returns at most n entries: what others left, if it is time to look, else new ones.
func (s *subscription) next(ctx context.Context, n int, claimAt *time.Time) ([]*entry, error) {
	if s.lost {
		entries, err := s.member.orphans(ctx, s.known())
		if err != nil {
			return nil, err
		}
		s.lost = false
		if len(entries) > 0 {
			return entries, nil
		}
	}
	now := time.Now()
	if !now.Before(*claimAt) {
		entries, err := s.member.claim(ctx, n)
		if len(entries) < n { // else there can be more, which comes before what is new
			*claimAt = now.Add(s.config.ClaimInterval)
		}
		if len(entries) > 0 || err != nil {
			return entries, err
		}
	}
	block := min(s.config.Block, time.Until(*claimAt))
	if at := s.nextAgain(); !at.IsZero() {
		block = min(block, time.Until(at))
	}
	return s.member.read(ctx, n, block)
}

// known are the ids of what this member has and knows of.
func (s *subscription) known() map[string]bool {
	ids := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.unsent {
		ids[id] = true
	}
	for _, a := range s.again {
		ids[a.entry.id] = true
	}
	for id := range s.busy {
		ids[id] = true
	}
	return ids
}

// remember makes ids known until forget has been called as often.
func (s *subscription) remember(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rememberLocked(ids)
}

func (s *subscription) rememberLocked(ids []string) {
	for _, id := range ids {
		s.busy[id]++
	}
}

func (s *subscription) forget(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		if s.busy[id]--; s.busy[id] == 0 {
			delete(s.busy, id)
		}
	}
}

// waitForRoom waits for room in the window, but not beyond at. It returns 0 if there was none.
func (s *subscription) waitForRoom(ctx context.Context, at time.Time) int {
	if !at.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, at)
		defer cancel()
	}
	return s.settler.Room(ctx)
}

// handOver hands entries over, as far as ctx lasts.
func (s *subscription) handOver(ctx context.Context, entries []*entry) {
	for i, e := range entries {
		m, headers, err := decode(e.fields)
		e.handed = false
		s.remember(e.id) // until settle has told the server, with no moment in between
		s.settler.Hold(ctx, m, brokers.Delivery{
			Topic:       s.topic,
			Partition:   -1,
			Offset:      offset(e.id),
			Time:        storedAt(e.id),
			Count:       e.count,
			Headers:     headers,
			DecodeError: err,
		}, e)
		select {
		case s.out <- m:
			e.handed = true
		case <-ctx.Done():
			s.left = append(s.left, entries[i+1:]...) // e itself is held
			return
		}
	}
}

// handOverAgain hands over what is due again, and returns when the next is; the zero time: nothing waits.
func (s *subscription) handOverAgain(ctx context.Context) time.Time {
	due := s.takeDue(time.Now())
	if len(due) == 0 {
		return s.nextAgain()
	}
	for _, e := range due {
		e.count++
	}
	kept, err := s.member.keep(ctx, slices.Clone(due))
	if isGone(err) {
		// With all of the window nacked nothing is read, which would find out.
		s.log.Error("redisstream: the stream or its group was deleted; it is made again", "error", err)
		kept, err = nil, s.joinAgain(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("redisstream: cannot note that nacked entries come again; tries again", "error", err)
		}
		for _, e := range due {
			e.count--
		}
		s.comeAgain(due, time.Now().Add(firstDelay))
		return s.nextAgain()
	}
	s.settler.Reserve(-len(due))
	s.handOver(ctx, kept)
	return s.nextAgain()
}

// settle is the settler's.
func (s *subscription) settle(batch []*adapter.Held[*entry]) {
	ids := make([]string, len(batch))
	for i, h := range batch {
		ids[i] = h.Entry.id
	}
	defer s.forget(ids...)
	var released []*entry
	later := 0
	now := time.Now()
	s.mu.Lock()
	for _, h := range batch {
		switch h.Outcome {
		case adapter.Acked:
			s.unsent = append(s.unsent, h.Entry.id)
		case adapter.Nacked:
			later++
			s.again = append(s.again, again{h.Entry, now.Add(adapter.NackDelay(s.config.NackDelay, s.config.MaxNackDelay, h.Entry.count))})
		case adapter.Released, adapter.Undecided:
			if h.Entry.count == 1 {
				released = append(released, h.Entry) // anybody's, at once
				continue
			}
			// A member that takes again what it gave back would spin.
			later++
			s.again = append(s.again, again{h.Entry, now.Add(adapter.NackDelay(s.config.NackDelay, s.config.MaxNackDelay, h.Entry.count-1))})
		}
	}
	slices.SortStableFunc(s.again, func(a, b again) int { return a.at.Compare(b.at) })
	s.mu.Unlock()
	s.settler.Reserve(later)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.sendAcks(ctx)
	if err := s.member.giveBack(ctx, released); err != nil {
		s.log.Warn("redisstream: could not give entries back; they come again", "error", err, "entries", len(released))
		s.settler.Reserve(len(released))
		s.comeAgain(released, now.Add(firstDelay))
	}
}

// sendAcks tells the server what was acked. What it cannot be told is kept for the next time.
func (s *subscription) sendAcks(ctx context.Context) {
	s.mu.Lock()
	ids := s.unsent
	s.unsent = nil
	s.rememberLocked(ids)
	s.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	defer s.forget(ids...)
	if err := s.member.client.XAck(ctx, s.topic, s.member.group, ids...).Err(); err != nil {
		s.log.Warn("redisstream: acks could not be sent; tries again", "error", err, "acks", len(ids))
		s.mu.Lock()
		s.unsent = append(ids, s.unsent...)
		s.mu.Unlock()
	}
}

func (s *subscription) comeAgain(entries []*entry, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.again = append(s.again, again{e, at})
	}
	slices.SortStableFunc(s.again, func(a, b again) int { return a.at.Compare(b.at) })
}

func (s *subscription) takeDue(now time.Time) []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var due []*entry
	for len(s.again) > 0 && !now.Before(s.again[0].at) {
		due = append(due, s.again[0].entry)
		s.again = s.again[1:]
	}
	slices.SortFunc(due, func(a, b *entry) int { return compareIDs(a.id, b.id) })
	return due
}

func (s *subscription) nextAgain() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.again) == 0 {
		return time.Time{}
	}
	return s.again[0].at
}

// keepAlive prolongs the member's life, sends acks that could not be sent, and trims, until ctx ends.
func (s *subscription) keepAlive(ctx context.Context) {
	beat := time.NewTicker(s.config.Patience / beatsPerPatience)
	defer beat.Stop()
	trim := time.NewTicker(s.config.TrimInterval)
	defer trim.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			s.beat(ctx)
		case <-trim.C:
			if s.config.Retention == NoTrim {
				continue
			}
			if err := s.member.trim(ctx, time.Now()); err != nil && ctx.Err() == nil {
				s.log.Warn("redisstream: cannot trim", "error", err)
			}
		}
	}
}

func (s *subscription) beat(ctx context.Context) {
	lapsed, err := s.member.beat(ctx)
	if lapsed {
		s.log.Warn("redisstream: the member was silent for longer than its patience")
		s.lapsed = true
	}
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("redisstream: cannot say that the member lives; others take over what it holds after its patience", "error", err)
		}
		return
	}
	if s.lapsed {
		s.lapsed = !s.dropLost(ctx) // else at the next beat
	}
	s.sendAcks(ctx)
}

// dropLost lets go of what others have taken over: its handlers' contexts end. It reports whether the server could tell.
func (s *subscription) dropLost(ctx context.Context) bool {
	held := s.settler.Held()
	ids := make([]string, len(held))
	for i, h := range held {
		ids[i] = h.Entry.id
	}
	ours, err := s.member.has(ctx, ids)
	if err != nil {
		s.log.Warn("redisstream: cannot tell what was taken over; tries again", "error", err)
		return false
	}
	for _, h := range held {
		if !ours[h.Entry.id] && s.settler.Drop(h) {
			s.forget(h.Entry.id)
		}
	}
	return true
}

// end tells the server all that is known, gives the rest back, and closes the channel.
func (s *subscription) end() {
	rest := s.left
	for _, h := range s.settler.Close() {
		rest = append(rest, h.Entry)
	}
	for _, e := range rest {
		if !e.handed {
			e.count-- // nobody has seen it
		}
	}
	for _, a := range s.again {
		rest = append(rest, a.entry)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.sendAcks(ctx)
	for part := range slices.Chunk(rest, maxBatch) {
		if err := s.member.giveBack(ctx, part); err != nil {
			s.log.Warn("redisstream: could not give entries back; others take them over after the patience", "error", err, "entries", len(part))
		}
	}
	s.leave()
	close(s.out)
}

func (s *subscription) leave() {
	defer s.free()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := s.member.leave(ctx); err != nil {
		s.log.Warn("redisstream: could not leave the group; the member is forgotten later", "error", err)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

package jetstream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A process that is killed leaves deliveries un-acked at the server, which keeps them for AckWait and sends newer messages
// of the same keys meanwhile. So a member that starts, finds un-acked deliveries and no running member of its
// consumer, fetches them all before it runs. Those that a member has given back come at once. For the others it makes
// the server give them up, which is for one member only: what another one holds would be given up too. Of those that
// start together one leads, and the others wait until it runs.
const (
	electionWait = 200 * time.Millisecond // and some round trips, for the announcements of others
	followWait   = 50 * time.Millisecond  // before a member that follows asks again
	followFor    = 3 * time.Second        // how long it follows

	// With expedite as the AckWait all old deliveries are overdue. It is less than any that is configured. The server
	// looks 100 ms after the change. If it is late it gets more time once; then they come after AckWait.
	expedite          = 10 * time.Millisecond
	expediteWait      = 200 * time.Millisecond
	expediteWaitAgain = 800 * time.Millisecond

	// fetchFor is how long the server keeps a fetch that it has nothing for. It is silent about one while
	// MaxAckPending is reached.
	fetchFor   = 100 * time.Millisecond
	fetchSlack = 2 * time.Second

	overdueSlack = time.Second
)

// start makes a subscription a running member.
type start struct {
	*subscription
	broker  *Broker
	stream  jetstream.Stream
	durable jetstream.Consumer
}

// run returns when the subscription is a running member, or with an error.
func (s *start) run(ctx context.Context) error {
	subject := presencePrefix + s.durable.CachedInfo().Stream + "." + s.durable.CachedInfo().Name
	giveUp := time.Now().Add(followFor)
	for {
		info, err := s.durable.Info(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		others := companyRunning // does not matter
		if info.NumAckPending > 0 {
			if others, err = ask(ctx, s.conn, subject); err != nil {
				return err
			}
		}
		late := began.After(giveUp)
		switch {
		case others == companyRunning || late:
			if late {
				s.log.Warn("jetstream: another member starts for too long; its deliveries may come later than newer ones", "waited", followFor)
			}
			if s.presence, err = join(s.conn, subject, ""); err != nil {
				return err
			}
			return s.repair(ctx, info)
		case others == companyStarting:
			if err := sleep(ctx, followWait, nil); err != nil {
				return err
			}
			continue
		}
		wait := electionWait + 4*time.Since(began)
		if s.presence, err = join(s.conn, subject, s.inbox); err != nil {
			return err
		}
		if err := s.lead(ctx, info, wait); err != nil {
			return err
		}
		if s.presence.run() {
			return s.repair(ctx, info)
		}
		s.giveBackFetched()
		s.leave()
		if err := sleep(ctx, followWait, nil); err != nil {
			return err
		}
	}
}

// lead fetches all that is un-acked, unless another member leads.
func (s *start) lead(ctx context.Context, info *jetstream.ConsumerInfo, wait time.Duration) error {
	elected := time.Now().Add(wait)
	pending := info.NumAckPending
	if pending <= s.window {
		var err error
		if pending, err = s.fetchPending(ctx, pending); err != nil || pending == len(s.fetched) {
			return err
		}
	}
	if err := sleep(ctx, time.Until(elected), s.presence.lost); err != nil || s.presence.hasLost() {
		return err
	}
	if s.config.CheckOnly {
		s.overdue = overdue{
			missing:  info.NumAckPending,
			upTo:     info.Delivered.Stream,
			deadline: time.Now().Add(s.ackWait + overdueSlack),
		}
		return nil
	}
	for _, wait := range [...]time.Duration{expediteWait, expediteWaitAgain} {
		if err := s.expedite(ctx, wait); err != nil {
			return err
		}
		clear(s.fetched) // what was fetched is overdue too, and comes again in its place
		var err error
		if pending, err = s.fetchPending(ctx, min(pending, s.window)); err != nil {
			return err
		}
		if pending <= len(s.fetched) || len(s.fetched) >= s.window || s.presence.hasLost() {
			return nil
		}
	}
	s.log.Warn("jetstream: deliveries of a former member did not come again; they will come after newer ones",
		"missing", pending-len(s.fetched))
	return nil
}

// expedite makes the server give up all un-acked deliveries.
func (s *start) expedite(ctx context.Context, wait time.Duration) error {
	if err := s.setAckWait(ctx, expedite); err != nil {
		return err
	}
	interrupted := sleep(ctx, wait, nil)
	// Whatever happens to ctx, the durable must not stay like that.
	restore, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.CloseTimeout)
	defer cancel()
	if err := s.setAckWait(restore, s.ackWait); err != nil {
		return err
	}
	return interrupted
}

// repair gives the durable its AckWait back if a member was killed while it took over.
func (s *start) repair(ctx context.Context, seen *jetstream.ConsumerInfo) error {
	if seen.Config.AckWait != expedite || s.config.CheckOnly {
		return nil
	}
	return s.setAckWait(ctx, s.ackWait)
}

func (s *start) setAckWait(ctx context.Context, d time.Duration) error {
	info, err := s.durable.Info(ctx)
	if err == nil && info.Config.AckWait != d {
		config := info.Config
		config.AckWait = d
		_, err = s.stream.UpdateConsumer(ctx, config)
	}
	if err != nil {
		return fmt.Errorf("set AckWait %v: %w", d, err)
	}
	return nil
}

// fetchPending fetches up to n deliveries and returns how many are un-acked, these included.
func (s *start) fetchPending(ctx context.Context, n int) (pending int, err error) {
	if err := s.fetch(ctx, n); err != nil {
		return 0, err
	}
	info, err := s.durable.Info(ctx)
	if err != nil {
		return 0, err
	}
	return info.NumAckPending, nil
}

// fetch asks for n deliveries and waits for them, or until the server has no more. What is said of a fetch when it is over
// ends no other, and is not about the requests of run.
func (s *subscription) fetch(ctx context.Context, n int) error {
	defer s.pull.forget()
	for n > 0 {
		s.pull.forget()
		batch := s.pull.limit(pullRequest{Batch: n, Expires: fetchFor, NoWait: true})
		if err := s.request(batch); err != nil {
			return err
		}
		late := time.After(batch.Expires + fetchSlack)
		ended := false
		for open := batch.Batch; open > 0 && !ended; {
			select {
			case <-s.kick:
			case <-late:
				s.log.Debug("jetstream: fetch is silent")
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
			for _, m := range s.takeReceived() {
				token, ours := strings.CutPrefix(m.Subject, s.inbox+".")
				if ours {
					ended = ended || s.pull.is(token)
				} else if meta, err := m.Metadata(); err == nil {
					s.fetched[meta.Sequence.Stream] = m
					open--
					n--
				}
			}
		}
		if ended {
			return nil
		}
	}
	return nil
}

// useFetched hands what was fetched to the subscription, in order.
func (s *subscription) useFetched() {
	var in []*nats.Msg
	for _, seq := range slices.Sorted(maps.Keys(s.fetched)) {
		in = append(in, s.fetched[seq])
	}
	s.fetched = nil
	s.mu.Lock()
	s.incoming = append(in, s.incoming...)
	s.mu.Unlock()
}

// giveBackFetched returns what was fetched and not used.
func (s *subscription) giveBackFetched() {
	for _, seq := range slices.Sorted(maps.Keys(s.fetched)) {
		if err := s.conn.Publish(s.fetched[seq].Reply, []byte("-NAK")); err != nil {
			s.log.Warn("jetstream: could not give a delivery back; it will come again", "offset", seq, "error", err)
		}
	}
	clear(s.fetched)
}

// sleep waits for d, or until stop is closed.
func sleep(ctx context.Context, d time.Duration, stop <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// overdue waits for the deliveries of dead members where the durable cannot be changed: they come after AckWait.
type overdue struct {
	missing  int    // how many have not come
	upTo     uint64 // the last stream sequence that was delivered before
	deadline time.Time
}

func (o *overdue) got(meta *nats.MsgMetadata) {
	if o.missing > 0 && meta.Sequence.Stream <= o.upTo {
		o.missing--
	}
}

// inOrder tells whether deliveries can be handed over, and puts them in order when that begins.
func (s *subscription) inOrder() bool {
	o := &s.overdue
	if o.deadline.IsZero() {
		return true
	}
	late := !time.Now().Before(o.deadline)
	if o.missing > 0 && len(s.queue) < s.window && !late {
		return false
	}
	if late && o.missing > 0 {
		s.log.Warn("jetstream: deliveries of a former member did not come again; another member may have them", "missing", o.missing)
	}
	s.overdue = overdue{}
	sortBySeq(s.queue)
	return true
}

func sortBySeq(holds []*hold) {
	slices.SortFunc(holds, func(a, b *hold) int { return cmp.Compare(a.seq, b.seq) })
}

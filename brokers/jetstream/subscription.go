package jetstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// A message has no callback for its ack. The oldest held delivery is looked at all the time, the others from time to
// time.
const (
	scanFast = time.Millisecond      // after a scan that found something
	scanSlow = 10 * time.Millisecond // after several that found nothing
)

// lookAgain is the time between looks at the durable while the server cannot tell, and it matters.
const lookAgain = time.Second

// errOtherStream is why a subscription ends whose stream was deleted and made again: the numbers of what is held mean other messages
// now, and an ack would lose them.
var errOtherStream = errors.New("it was deleted and made again")

// beatsPerWait is how many heartbeats a delivery gets within AckWait.
const beatsPerWait = 3

// subscription is one member of a consumer. One goroutine, run, receives, feeds, keeps alive and settles.
//
// It makes its pull requests itself. nats.go's own consumers buffer what they prefetch where no heartbeat
// reaches it, count a window by what was received and not by what was settled, and take a stored message
// with an empty payload and a header "Status" for a word of the server.
type subscription struct {
	config      *Config
	conn        *nats.Conn
	log         *slog.Logger
	topic       string
	incarnation string
	window      int
	ackWait     time.Duration
	out         chan *message.Message

	inbox    string // messages come to inbox.<request>, confirmations of acks to inbox.a<number>
	sub      *nats.Subscription
	ended    chan struct{} // closed when sub has called back for the last time
	presence *presence
	status   chan nats.Status
	lookup   func(context.Context) found // asks the server for the durable

	mu       sync.Mutex
	incoming []*nats.Msg   // from nats.go's goroutine
	kick     chan struct{} // something in incoming, or released; capacity 1
	released atomic.Bool   // some held delivery was released

	queue       []*hold          // received and not yet handed over
	held        []*hold          // handed over and not yet settled, in that order
	bySeq       map[uint64]*hold // queue and held, by stream sequence
	unconfirmed map[string]*hold // acked, and not yet confirmed, by reply subject; with DoubleAck
	acks        uint64
	lastSeq     uint64 // the consumer sequence of the last message

	fetched map[uint64]*nats.Msg // before run, by stream sequence
	pull    pull
	overdue overdue

	scan   time.Duration
	scanAt time.Time
	timer  *time.Timer
	rings  time.Time // when timer rings; zero: not set

	seen    chan found // the answer of lookup
	looking bool
	doubt   bool      // stream or durable may be others now: nothing is handed over or settled until a look has told
	asked   bool      // the look that is under way began after the doubt
	lookAt  time.Time // when to look again; zero: not
	remade  bool      // the stream is another one
}

// found is what a look at the server has found.
type found struct {
	durable *jetstream.ConsumerInfo // nil: the server cannot tell at present
	err     error                   // why the subscription cannot go on
}

// hold is one delivery that was not settled yet.
type hold struct {
	delivery brokers.Delivery
	sub      *subscription
	msg      *message.Message
	cancel   context.CancelFunc
	seq      uint64
	reply    string // where to settle it; the last one, if it was delivered again while it was held
	released atomic.Bool
	delay    atomic.Int64 // after a release: for so long nobody gets it
}

// receive is nats.go's callback. It never blocks.
func (s *subscription) receive(m *nats.Msg) {
	s.mu.Lock()
	s.incoming = append(s.incoming, m)
	s.mu.Unlock()
	s.ring()
}

func (s *subscription) takeReceived() []*nats.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.incoming
	s.incoming = nil
	return in
}

func (s *subscription) ring() {
	select {
	case s.kick <- struct{}{}:
	default: // a kick is waiting already
	}
}

func (s *subscription) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.timer = time.NewTimer(time.Hour)
	s.timer.Stop()
	s.scan = scanFast
	s.useFetched()
	beat := time.NewTicker(s.ackWait / beatsPerWait)
	defer beat.Stop()
	for ctx.Err() == nil {
		s.takeIncoming(ctx)
		s.requestMore()
		var (
			out           chan<- *message.Message
			msg           *message.Message
			acked, nacked <-chan struct{}
		)
		if s.inOrder() && !s.doubt && len(s.queue) > 0 && len(s.held)+len(s.unconfirmed) < s.window {
			out, msg = s.out, s.queue[0].msg
		}
		if len(s.held) > 0 && !s.doubt {
			acked, nacked = s.held[0].msg.Acked(), s.held[0].msg.Nacked()
		}
		if len(s.held) > 1 && s.scanAt.IsZero() {
			s.scanAt = time.Now().Add(s.scan)
		}
		s.setTimer()
		select {
		case out <- msg:
			s.held = append(s.held, s.queue[0])
			s.queue = s.queue[1:]
		case <-acked:
			s.settleFront()
		case <-nacked:
			s.settleFront()
		case <-s.kick:
			if s.released.Swap(false) {
				s.settleAll()
			}
		case <-s.timer.C:
			s.rings = time.Time{}
			if !s.lookAt.IsZero() && !time.Now().Before(s.lookAt) {
				s.lookAt = time.Time{}
				s.look()
			}
			if !s.scanAt.IsZero() && !time.Now().Before(s.scanAt) {
				s.scanAt = time.Time{}
				if s.settleAll() {
					s.scan = scanFast
				} else {
					s.scan = min(2*s.scan, scanSlow)
				}
			}
		case <-beat.C:
			s.beat()
		case status, open := <-s.status:
			if !open || status == nats.CLOSED {
				s.log.Error("jetstream: subscription ends", "error", nats.ErrConnectionClosed)
				cancel()
				break
			}
			// Connected again: whatever was requested on the old connection may be forgotten.
			s.pull.forget()
			s.beat()
		case f := <-s.seen:
			if err := s.looked(f); err != nil {
				s.log.Error("jetstream: subscription ends", "error", err)
				cancel()
			}
		case <-ctx.Done():
		}
	}
	s.end()
}

// setTimer makes the timer ring when the next thing is due, or before.
func (s *subscription) setTimer() {
	var at time.Time
	for _, t := range [...]time.Time{s.scanAt, s.pull.due, s.overdue.deadline, s.lookAt} {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if at.IsZero() || !s.rings.IsZero() && !at.Before(s.rings) {
		return
	}
	s.rings = at
	s.timer.Reset(time.Until(at))
}

// takeIncoming sorts what has come: messages, words about the pull request, confirmations of acks.
func (s *subscription) takeIncoming(ctx context.Context) {
	in := s.takeReceived()
	if len(in) == 0 {
		return
	}
	for _, m := range in {
		// A stored message has the subject that it was published to; what is for us has our inbox. Headers do
		// not tell: a stored message can have any.
		token, ours := strings.CutPrefix(m.Subject, s.inbox+".")
		switch {
		case !ours:
			s.pull.heard()
			s.add(ctx, m)
		case strings.HasPrefix(token, "a"):
			if h := s.unconfirmed[m.Subject]; h != nil {
				delete(s.unconfirmed, m.Subject)
				h.cancel()
			}
		default:
			s.aboutPull(token, m)
		}
	}
}

// add takes one message.
func (s *subscription) add(ctx context.Context, in *nats.Msg) {
	s.pull.got()
	meta, err := in.Metadata()
	if err != nil {
		// Not from a stream: somebody has sent to our inbox. There is nothing to settle.
		s.log.Warn("jetstream: message that no stream has sent", "subject", in.Subject, "error", err)
		return
	}
	if meta.Sequence.Consumer <= s.lastSeq {
		s.suspect() // a new durable begins again; so does one whose server has lost its last writes
	}
	s.lastSeq = meta.Sequence.Consumer
	if h := s.bySeq[meta.Sequence.Stream]; h != nil {
		if h.delivery.Time.Equal(meta.Timestamp) {
			// It was delivered again although it is held: the connection was lost for longer than AckWait. The handler goes on, and
			// settles the new delivery.
			h.reply = in.Reply
			return
		}
		// Another message has its number: the stream was made again, or restored. An ack of the old one would lose it.
		s.drop(h)
		s.suspect()
	}
	s.overdue.got(meta)
	h := &hold{sub: s, seq: meta.Sequence.Stream, reply: in.Reply}
	h.delivery = brokers.Delivery{
		Topic:       s.topic,
		Incarnation: s.incarnation,
		Partition:   -1,
		Offset:      int64(meta.Sequence.Stream),
		Time:        meta.Timestamp,
		Count:       int(meta.NumDelivered),
		Release:     h.release,
		Delay:       h.delayFor,
	}
	h.msg, h.delivery.Headers, h.delivery.DecodeError = decode(in)
	ctx, h.cancel = context.WithCancel(ctx)
	h.msg.SetContext(brokers.WithDelivery(ctx, &h.delivery))
	s.bySeq[h.seq] = h
	s.queue = append(s.queue, h)
}

// drop lets go of h: its context ends, and what becomes of it has no effect.
func (s *subscription) drop(h *hold) {
	h.cancel()
	same := func(other *hold) bool { return other == h }
	s.queue, s.held = slices.DeleteFunc(s.queue, same), slices.DeleteFunc(s.held, same)
	delete(s.bySeq, h.seq)
}

func (h *hold) release() {
	h.released.Store(true)
	h.sub.released.Store(true)
	h.sub.ring()
}

func (h *hold) delayFor(d time.Duration) bool {
	h.delay.Store(int64(max(d, 1)))
	h.release()
	return true
}

// settleFront settles the oldest held deliveries as far as they can be.
func (s *subscription) settleFront() {
	n := 0
	for n < len(s.held) && s.settle(s.held[n]) {
		s.held[n] = nil
		n++
	}
	s.held = s.held[n:]
}

// settleAll settles whatever can be, and reports whether that was anything.
func (s *subscription) settleAll() bool {
	n := len(s.held)
	s.held = slices.DeleteFunc(s.held, s.settle)
	return len(s.held) < n
}

// settle tells the server what became of h, if that is decided.
func (s *subscription) settle(h *hold) bool {
	if s.doubt {
		return false
	}
	select {
	case <-h.msg.Acked():
		s.ack(h)
	case <-h.msg.Nacked():
		s.send(h, h.reply, "", fmt.Sprintf(`-NAK {"delay": %d}`, adapter.NackDelay(s.config.NackDelay, s.config.MaxNackDelay, h.delivery.Count).Nanoseconds()))
		h.cancel()
	default:
		if !h.released.Load() {
			return false
		}
		s.giveBack(h)
	}
	delete(s.bySeq, h.seq)
	return true
}

func (s *subscription) ack(h *hold) {
	if !s.config.DoubleAck {
		s.send(h, h.reply, "", "+ACK")
		h.cancel()
		return
	}
	s.acks++
	confirmation := s.inbox + ".a" + strconv.FormatUint(s.acks, 10)
	s.unconfirmed[confirmation] = h
	s.send(h, h.reply, confirmation, "+ACK")
}

// giveBack returns h without a verdict. The first time it is at once, so that another member may have it; later a delay
// grows, so that a member which gives back and takes again does not spin.
func (s *subscription) giveBack(h *hold) {
	word := "-NAK"
	if d := h.delay.Load(); d > 0 {
		word = fmt.Sprintf(`-NAK {"delay": %d}`, d)
	} else if h.released.Load() && h.delivery.Count > 1 {
		word = fmt.Sprintf(`-NAK {"delay": %d}`, adapter.NackDelay(s.config.NackDelay, s.config.MaxNackDelay, h.delivery.Count-1).Nanoseconds())
	}
	s.send(h, h.reply, "", word)
	h.cancel()
}

// send tells the server something about h. A word that cannot be sent is logged: the message then comes again after AckWait.
func (s *subscription) send(h *hold, to, reply, word string) {
	var err error
	if reply == "" {
		err = s.conn.Publish(to, []byte(word))
	} else {
		err = s.conn.PublishRequest(to, reply, []byte(word))
	}
	if err != nil {
		s.log.Warn("jetstream: could not settle a delivery; it will come again",
			"offset", h.seq, "message", h.msg.UUID, "word", word, "error", err)
	}
}

// beat keeps everything alive that is held, handed over or not, and repeats acks that were not confirmed.
func (s *subscription) beat() {
	if !s.conn.IsConnected() {
		return // it would only fill the buffer for the reconnect
	}
	for _, holds := range [...][]*hold{s.queue, s.held} {
		for _, h := range holds {
			if err := s.conn.Publish(h.reply, []byte("+WPI")); err != nil {
				s.log.Warn("jetstream: could not prolong a delivery", "offset", h.seq, "error", err)
			}
		}
	}
	if s.doubt {
		return
	}
	for confirmation, h := range s.unconfirmed {
		s.send(h, h.reply, confirmation, "+ACK")
	}
}

// look asks the server, in the background, whether the durable is still there, and for its limits.
func (s *subscription) look() {
	if s.looking {
		return
	}
	s.looking, s.asked = true, s.doubt
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.CloseTimeout)
		defer cancel()
		s.seen <- s.lookup(ctx) // capacity 1, and one at a time
	}()
}

// suspect stops handing over and settling until the server has told that stream and durable are still the same.
func (s *subscription) suspect() {
	s.doubt = true
	s.look()
}

// looked takes what a look has found. Its error says why the subscription cannot go on.
func (s *subscription) looked(f found) error {
	s.looking = false
	switch {
	case f.err != nil:
		s.remade = errors.Is(f.err, errOtherStream)
		s.doubt = s.remade // else what was decided can be told
		return f.err
	case s.doubt && !s.asked:
		s.look() // the doubt is younger than the answer
	case f.durable != nil:
		s.pull.obey(f.durable.Config)
		s.doubt = false
		s.settleAll() // what was decided meanwhile
	case s.doubt:
		s.lookAt = time.Now().Add(lookAgain)
	}
	return nil
}

// end stops receiving, tells the server all that is known, gives the rest back in order, and closes the channel.
func (s *subscription) end() {
	s.timer.Stop()
	deadline := time.Now().Add(s.config.CloseTimeout)
	// First nothing new may come, but what is on the way must still arrive: it would stay
	// un-acked for AckWait otherwise.
	if s.conn.IsConnected() && s.sub.Drain() == nil {
		select {
		case <-s.ended:
		case <-time.After(time.Until(deadline)):
		}
	}
	s.takeIncoming(context.Background())
	if s.doubt && s.looking {
		if err := s.looked(<-s.seen); err != nil {
			s.log.Error("jetstream: subscription ends", "error", err)
		}
	}
	s.settleAll()
	rest := append(s.held, s.queue...)
	s.held, s.queue = nil, nil
	if s.remade {
		rest = nil // it is not there any more, and its numbers are those of other messages
		clear(s.unconfirmed)
	}
	sortBySeq(rest)
	for _, h := range rest {
		s.giveBack(h)
	}
	s.confirmAll(deadline)
	if s.conn.IsConnected() {
		if err := s.conn.FlushTimeout(max(time.Until(deadline), time.Millisecond)); err != nil {
			s.log.Warn("jetstream: the server did not confirm the end of a subscription in time; deliveries may come again", "error", err)
		}
	}
	s.unsubscribe()
	if s.looking {
		if f := <-s.seen; f.err != nil {
			s.log.Debug("jetstream: the look at the consumer had failed", "error", f.err)
		}
	}
	close(s.out)
}

// confirmAll waits for the confirmations of acks and repeats the acks.
func (s *subscription) confirmAll(deadline time.Time) {
	if len(s.unconfirmed) == 0 {
		return
	}
	// The subscription on the inbox is gone: another one hears the rest.
	sub, err := s.conn.Subscribe(s.inbox+".*", s.receive)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // fails only on a connection that is closed
		again := time.NewTicker(100 * time.Millisecond)
		defer again.Stop()
		late := time.After(time.Until(deadline))
		for len(s.unconfirmed) > 0 {
			s.beat()
			select {
			case <-s.kick:
				s.takeIncoming(context.Background())
				continue
			case <-again.C:
				continue
			case <-late:
			}
			break
		}
	}
	for _, h := range s.unconfirmed {
		s.log.Warn("jetstream: an ack was not confirmed; the message may come again", "offset", h.seq, "message", h.msg.UUID)
		h.cancel()
	}
	clear(s.unconfirmed)
}

// abandon ends a subscription that does not run.
func (s *subscription) abandon() {
	s.giveBackFetched()
	s.unsubscribe()
}

func (s *subscription) unsubscribe() {
	s.conn.RemoveStatusListener(s.status)
	s.leave()
	s.endSub(s.sub)
}

// leave makes the member unknown.
func (s *subscription) leave() {
	if s.presence != nil {
		s.endSub(s.presence.sub)
		s.presence = nil
	}
}

func (s *subscription) endSub(sub *nats.Subscription) {
	if sub == nil {
		return
	}
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		s.log.Warn("jetstream: unsubscribe", "error", err)
	}
}

package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/poison"
)

// The defaults of [RedriveConfig].
const (
	DefaultMaxHops    = 5
	DefaultClaimTTL   = 5 * time.Minute
	DefaultCanaryWait = 30 * time.Second
)

// Unlimited is a [RedriveConfig.Rate] without limit.
const Unlimited = 0

// Source is where a redrive gets its letters from and notes what became of them. A [Store] is one; [Topics] is one without a
// database, which can neither exclude other operators nor remember.
type Source interface {
	// pending returns up to limit letters that f selects and that are behind after, oldest first, whole.
	pending(ctx context.Context, f Filter, after Cursor, limit int) ([]Letter, Cursor, error)
	// claim takes the exclusive right to redrive letters and returns those that it got.
	claim(ctx context.Context, c Claim, f Filter, letters []Letter, e Entry) ([]Letter, error)
	// settle marks letters as redriven, or gives them back; it returns those of which it could.
	settle(ctx context.Context, c Claim, ids []string, to State, e Entry) ([]string, error)
	// counts tells how many f selects, by state.
	counts(ctx context.Context, f Filter) (map[State]int64, error)
}

// Watcher tells what became of redriven messages, for a canary.
type Watcher interface {
	// Failed returns the dead letters of messages that were redriven in batch and failed again.
	Failed(ctx context.Context, batch string) ([]poison.Record, error)
	// Done returns those of ids (poison.Record.MessageID) of which it is known that consumer has handled them, such as those with a
	// claim in its inbox. It returns ErrUnknown if nobody can tell. A message that is parked is not handled, though its
	// consumer's inbox has claimed it.
	Done(ctx context.Context, consumer string, ids []string) ([]string, error)
}

// ErrUnknown says that it cannot be known whether messages were handled.
var ErrUnknown = errors.New("not known")

// ErrCanary says that a redrive stopped, since messages that it had redriven failed again, or were not handled in time.
var ErrCanary = errors.New("the canary stopped the redrive")

// Original reads the message that a letter without one refers to, from the broker: its key, payload, metadata, UUID and
// headers as they had arrived. It returns an error if it is not there any more.
type Original func(ctx context.Context, r poison.Record) (poison.Record, error)

// RedriveConfig configures a [Redriver]. Source, Publisher, Actor and Reason are required.
type RedriveConfig struct {
	Source Source

	// Publisher brings the messages to the broker. Its Publish must return nil only when they are stored.
	Publisher message.Publisher

	// Topic names the channel of a consumer. Default [poison.RedriveTopic].
	Topic func(consumer string) string

	// MaxHeaderBytes bounds the metadata of a message: what the broker can take (brokers.Capabilities). Default 32 KiB.
	MaxHeaderBytes int

	// Prepare may put into the message's context what the broker's adapter wants to know, such as the key of a record that no
	// metadata tells (kafka.WithKey). nil: nothing.
	Prepare func(*message.Message, poison.Record)

	// Original reads what a reference, or a redacted letter, lacks. nil: such letters are reported as not sent.
	Original Original

	// Parked is asked before a message is published: if it is parked behind its key, its claim would suppress what was published,
	// so its key is to be released instead, and true returned (parking.Redrive does both). nil: nothing is parked. With a Canary
	// the Watcher has to know what was released: nothing on the broker tells what becomes of it.
	Parked func(ctx context.Context, r poison.Record) (bool, error)

	// Batch names the run; it is in the trail, in the messages, and in the dead letters of those that fail again. Default: a UUID.
	Batch string

	// Actor and Reason go into the trail.
	Actor, Reason string

	// MaxHops bounds how often a message is redriven: one that came back that often goes in a circle. Default 5.
	MaxHops int

	// Rate bounds the messages per second. Default [Unlimited].
	Rate float64

	// Limit bounds the messages of the run. Default: none.
	Limit int

	// Only are the ids of the letters that a run may redrive, such as those that an operator has seen and confirmed. nil: all
	// that its filter selects, also those that come meanwhile.
	Only []string

	// ClaimTTL is how long a claim lasts if this process dies. Default 5 min, at least 1 s.
	ClaimTTL time.Duration

	// Canary are the sizes of the first steps (1, 10): after each one the run waits until its messages were handled, and stops
	// if one of them failed again, or is known not to be handled after CanaryWait. That is known only where the Watcher tells of
	// another message of this run, of the same consumer and event type, that it was handled, or if it was parked: a handler
	// without a transaction leaves no claim. Else the run goes on then, see RedriveReport.Untold. Empty: no steps. It
	// needs a Watcher.
	Canary     []int
	CanaryWait time.Duration
	Watcher    Watcher

	// CanaryPoll is the time between two looks at what became of a step. Default 500 ms.
	CanaryPoll time.Duration

	// Progress is told after each part of the run. It must not block.
	Progress func(RedriveReport)
}

// Redriver sends dead letters back to the consumers that could not handle them: it claims, publishes, waits for the
// confirmation, and marks. One redriver runs once at a time; any number of redrivers may run on one store.
type Redriver struct {
	config RedriveConfig
	only   map[string]bool // nil: all
}

// RedriveReport tells what a run did.
type RedriveReport struct {
	// Batch names the run.
	Batch string `json:"batch"`
	// Selected is how many letters there were to redrive when the run began.
	Selected int64 `json:"selected"`
	// Redriven is how many were published and marked.
	Redriven int `json:"redriven"`
	// Released are those of Redriven that were parked: their keys were released, and they run in their turn.
	Released int `json:"released,omitempty"`
	// Unmarked were published, but the claim had been lost by then: another run may send them again.
	Unmarked int `json:"unmarked,omitempty"`
	// Busy had been claimed by another operator, or done with meanwhile.
	Busy int `json:"busy,omitempty"`
	// Unsent could not be sent, and why.
	Unsent []Unsent `json:"unsent,omitempty"`
	// Untold are the messages of the canary's steps of which nobody could tell whether they were handled.
	Untold int `json:"untold,omitempty"`
	// FailedAgain are the ids of new dead letters of messages of this run, as far as they were looked for.
	FailedAgain []string `json:"failed_again,omitempty"`
}

// Unsent is a letter that could not be sent.
type Unsent struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

// NewRedriver checks c; its error names the first field that makes no sense.
func NewRedriver(c RedriveConfig) (*Redriver, error) {
	bad := func(field string, value any, want string) error {
		return fmt.Errorf("deadletter.RedriveConfig.%s is %v: want %s", field, value, want)
	}
	if c.Topic == nil {
		c.Topic = poison.RedriveTopic
	}
	c.Batch = or(c.Batch, uuid.NewString())
	defaultTo(&c.MaxHops, DefaultMaxHops)
	defaultTo(&c.ClaimTTL, DefaultClaimTTL)
	defaultTo(&c.CanaryWait, DefaultCanaryWait)
	defaultTo(&c.CanaryPoll, 500*time.Millisecond)
	if c.Progress == nil {
		c.Progress = func(RedriveReport) {}
	}
	if _, err := (By{c.Actor, c.Reason}).entry(ActionRedrive); err != nil {
		return nil, err
	}
	switch {
	case c.Source == nil:
		return nil, bad("Source", "nil", "a store")
	case c.Publisher == nil:
		return nil, bad("Publisher", "nil", "the broker's publisher")
	case len(c.Batch) > maxColumn:
		return nil, bad("Batch", fmt.Sprintf("%.64q", c.Batch), "at most 255 bytes")
	case c.MaxHops < 1:
		return nil, bad("MaxHops", c.MaxHops, "at least 1")
	case !(c.Rate >= 0) || c.Rate > 1e9: // NaN too
		return nil, bad("Rate", c.Rate, "0 to 1e9 messages per second")
	case c.Limit < 0:
		return nil, bad("Limit", c.Limit, "at least 0")
	case c.ClaimTTL < time.Second:
		return nil, bad("ClaimTTL", c.ClaimTTL, "at least 1s")
	case c.CanaryWait < 0:
		return nil, bad("CanaryWait", c.CanaryWait, "more than 0")
	case c.CanaryPoll < 0:
		return nil, bad("CanaryPoll", c.CanaryPoll, "more than 0")
	case len(c.Canary) > 0 && c.Watcher == nil:
		return nil, bad("Watcher", "nil", "one, for a canary")
	}
	for i, n := range c.Canary {
		if n < 1 {
			return nil, bad(fmt.Sprintf("Canary[%d]", i), n, "at least 1")
		}
	}
	r := &Redriver{config: c}
	if c.Only != nil {
		r.only = make(map[string]bool, len(c.Only))
		for _, id := range c.Only {
			r.only[id] = true
		}
	}
	return r, nil
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Count tells how many letters a run with f would begin with, by state, and does nothing.
func (r *Redriver) Count(ctx context.Context, f Filter) (map[State]int64, error) {
	f.States = claimable(f)
	return r.config.Source.counts(ctx, f)
}

// chunk bounds the letters that are claimed and published at once.
const chunk = 100

// run is one run of a redriver.
type run struct {
	*Redriver
	filter Filter
	claim  Claim
	report RedriveReport
	pace   pace
	cursor Cursor
	sent   []sent        // in this step
	seen   map[kind]bool // messages that were handled, and have a claim of their handler's

	failures int // to publish, since something was sent last: a chunk can be of one letter
}

// kind is what one handler handles.
type kind struct{ consumer, eventType string }

type sent struct {
	kind
	messageID string
	released  bool // it was parked: its claim is not its handler's
}

// Run redrives what f selects, the oldest last failure first. That is the order of a key's messages as long as each died once: one
// that died again comes behind those that failed in between. Letters in no state that f names, else in state new, are left
// alone, but for those whose claim has ended. One that cannot be sent is given back, reported, and does not stop
// the others; ten that the broker refuses in a row do, with an error. When ctx ends, what was published is marked, and the rest
// is given back.
//
// The report is right with an error too. The error wraps [ErrCanary] if redriven messages failed again, or
// were not handled in time.
func (r *Redriver) Run(ctx context.Context, f Filter) (RedriveReport, error) {
	c := &r.config
	counts, err := r.Count(ctx, f)
	if err != nil {
		return RedriveReport{Batch: c.Batch}, err
	}
	u := &run{
		Redriver: r, filter: f, pace: pace{rate: c.Rate},
		claim:  Claim{Token: uuid.NewString(), Owner: column(c.Actor), TTL: c.ClaimTTL},
		report: RedriveReport{Batch: c.Batch}, seen: map[kind]bool{},
	}
	for _, n := range counts {
		u.report.Selected += n
	}
	c.Progress(u.report)
	for _, size := range c.Canary {
		more, err := u.step(ctx, size)
		if err == nil {
			err = u.watch(ctx)
		}
		if err != nil || !more {
			return u.report, err
		}
	}
	for {
		more, err := u.step(ctx, chunk)
		if err != nil || !more {
			if err == nil && len(c.Canary) > 0 {
				err = u.look(ctx)
			}
			return u.report, err
		}
	}
}

// step redrives letters until n were sent, in chunks. It returns false when there are no more.
func (u *run) step(ctx context.Context, n int) (bool, error) {
	u.sent = u.sent[:0]
	for n > 0 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		size := min(n, chunk, u.pace.chunk(u.claim.TTL))
		if limit := u.config.Limit; limit > 0 {
			size = min(size, limit-u.report.Redriven-u.report.Unmarked)
		}
		if size == 0 {
			return false, nil
		}
		letters, next, err := u.config.Source.pending(ctx, u.filter, u.cursor, size)
		if err != nil || len(letters) == 0 {
			return false, err
		}
		u.cursor = next
		if u.only != nil {
			letters = slices.DeleteFunc(letters, func(l Letter) bool { return !u.only[l.ID] })
		}
		before := len(u.sent)
		err = u.redrive(ctx, letters)
		u.config.Progress(u.report)
		if err != nil {
			return false, err
		}
		n -= len(u.sent) - before // what was refused tries out nothing
	}
	return true, nil
}

// redrive claims, publishes and marks one chunk.
func (u *run) redrive(ctx context.Context, letters []Letter) error {
	c := &u.config
	var ready []outgoing
	for i := range letters {
		out, why := u.prepare(ctx, &letters[i])
		if why != nil {
			u.unsent(letters[i].ID, why)
			continue
		}
		ready = append(ready, out)
	}
	if len(ready) == 0 {
		return ctx.Err()
	}
	claimed := time.Now()
	mine, err := u.take(ctx, ready)
	if err != nil {
		return err
	}
	u.report.Busy += len(ready) - len(mine)

	parked, mine, back, why := u.release(ctx, mine)
	var done []string
	if why == nil {
		var unsent []string
		done, unsent, why = u.publish(ctx, mine, claimed)
		back = append(back, unsent...)
	} else {
		back = append(back, idsOf(mine)...)
	}
	done = append(parked, done...)
	// What is published is marked, also when ctx has ended meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if len(done) > 0 {
		marked, err := c.Source.settle(ctx, u.claim, done, Redriven, u.entry(ActionRedrive, ""))
		if err != nil {
			return errors.Join(why, fmt.Errorf("%d dead letters were published, but are not marked: a later redrive sends them again, and the inbox removes the copies: %w", len(done), err))
		}
		u.report.Redriven += len(marked)
		u.report.Unmarked += len(done) - len(marked)
	}
	if len(back) > 0 {
		if _, err := c.Source.settle(ctx, u.claim, back, "", u.entry(ActionRelease, detailOf(why))); err != nil {
			return errors.Join(why, fmt.Errorf("%d dead letters were not published, and stay claimed for %v: %w", len(back), c.ClaimTTL, err))
		}
	}
	return why
}

// release releases the keys of parked messages. It returns these, what is to be published, and what is to be given back.
func (u *run) release(ctx context.Context, mine []outgoing) (parked []string, rest []outgoing, back []string, why error) {
	if u.config.Parked == nil {
		return nil, mine, nil, nil
	}
	for i, out := range mine {
		is, err := u.config.Parked(ctx, out.letter.Record)
		switch {
		case err != nil:
			return parked, rest, idsOf(mine[i:]), fmt.Errorf("dead letter %s: is its message parked: %w", out.letter.ID, err)
		case is:
			parked = append(parked, u.stored(out, true))
			u.report.Released++
		default:
			rest = append(rest, out)
		}
	}
	return parked, rest, nil, nil
}

func idsOf(mine []outgoing) []string {
	ids := make([]string, len(mine))
	for i, out := range mine {
		ids[i] = out.letter.ID
	}
	return ids
}

// settleTimeout bounds the marking of what was published.
const settleTimeout = 15 * time.Second

func detailOf(err error) string {
	if err == nil {
		return ""
	}
	return clean(err.Error(), maxColumn)
}

func (u *run) entry(action, detail string) Entry {
	return Entry{Actor: column(u.config.Actor), Reason: u.config.Reason, Batch: u.config.Batch, Action: action, Detail: detail}
}

func (u *run) unsent(id string, why error) {
	u.report.Unsent = append(u.report.Unsent, Unsent{id, why.Error()})
}

// outgoing is a letter and the message that goes out for it.
type outgoing struct {
	letter *Letter
	topic  string
	msg    *message.Message
}

// prepare makes the message of a letter, or says why there is none.
func (u *run) prepare(ctx context.Context, l *Letter) (outgoing, error) {
	c := &u.config
	rec := l.Record
	// Each hop is a death or more; an edited copy takes both counts along.
	if hops := max(rec.Hops, rec.Deaths-1); hops >= c.MaxHops {
		return outgoing{}, fmt.Errorf("it was redriven %d times and failed each time: a redrive loop; edit or discard it, or raise the limit of %d hops", hops, c.MaxHops)
	}
	if rec.Reference || l.Redacted {
		what := "its message was too large for the dead-letter topic, which only refers to it"
		if l.Redacted {
			what = "its message was redacted"
		}
		if c.Original == nil {
			return outgoing{}, fmt.Errorf("%s, and the original cannot be read from this broker", what)
		}
		original, err := c.Original(ctx, rec)
		if err != nil {
			return outgoing{}, fmt.Errorf("%s, and the original at %s/%d/%d: %w", what, rec.Topic, rec.Partition, rec.Offset, err)
		}
		rec.Key, rec.Payload, rec.Metadata, rec.UUID, rec.Headers = original.Key, original.Payload, original.Metadata, original.UUID, original.Headers
		rec.Reference = false
	}
	redrive := poison.Redrive{Kind: poison.KindRedrive, Hops: rec.Hops + 1, Batch: c.Batch, Record: rec}
	msg, err := redrive.Message(c.MaxHeaderBytes)
	if err != nil {
		return outgoing{}, err
	}
	if c.Prepare != nil {
		c.Prepare(msg, rec)
	}
	return outgoing{l, c.Topic(rec.Consumer), msg}, nil
}

// take claims what can be claimed.
func (u *run) take(ctx context.Context, ready []outgoing) ([]outgoing, error) {
	letters := make([]Letter, len(ready))
	byID := make(map[string]outgoing, len(ready))
	for i, out := range ready {
		letters[i], byID[out.letter.ID] = *out.letter, out
	}
	got, err := u.config.Source.claim(ctx, u.claim, u.filter, letters, u.entry(ActionClaim, ""))
	if err != nil {
		return nil, err
	}
	mine := make([]outgoing, len(got))
	for i := range got {
		mine[i] = byID[got[i].ID]
	}
	return mine, nil
}

// publish sends the messages and returns the ids of those that are stored and of those that are to be given back. Those that alone
// cannot be sent are reported. Its error is why the run cannot go on.
func (u *run) publish(ctx context.Context, mine []outgoing, claimed time.Time) (done, back []string, why error) {
	rest := func(from int, err error) ([]string, []string, error) {
		for _, out := range mine[from:] {
			back = append(back, out.letter.ID)
		}
		return done, back, err
	}
	if u.pace.rate == 0 && len(mine) > 1 {
		n, ok := u.publishAll(ctx, mine)
		if n > 0 {
			u.failures = 0
		}
		for _, out := range mine[:n] {
			done = append(done, u.stored(out, false))
		}
		if ok {
			return done, nil, nil
		}
		mine = mine[n:]
	}
	for i, out := range mine {
		if err := u.pace.wait(ctx); err != nil {
			return rest(i, err)
		}
		if time.Since(claimed) > u.claim.TTL/2 {
			return rest(i, fmt.Errorf("publishing took more than half of the claim's %v: raise it or lower the load", u.claim.TTL))
		}
		if err := u.send(ctx, out); err != nil {
			if ctx.Err() != nil {
				return rest(i, ctx.Err())
			}
			back = append(back, out.letter.ID)
			u.unsent(out.letter.ID, err)
			if u.failures++; u.failures >= maxFailures {
				return rest(i+1, fmt.Errorf("%d messages in a row could not be sent; the last error: %w", u.failures, err))
			}
			continue
		}
		u.failures = 0
		done = append(done, u.stored(out, false))
	}
	return done, back, nil
}

// maxFailures is how many messages fail, one after the other, until the broker is taken to be gone.
const maxFailures = 10

// publishAll sends the messages in one call for each run of one topic. It returns how many are stored for sure, and whether all
// are. When a call fails its messages are sent again one by one, to find the one that cannot be sent: a copy of those that
// were stored is removed by the consumer's inbox.
func (u *run) publishAll(ctx context.Context, mine []outgoing) (int, bool) {
	for from := 0; from < len(mine); {
		to := from
		var msgs []*message.Message
		for to < len(mine) && mine[to].topic == mine[from].topic {
			msgs = append(msgs, copyOf(ctx, mine[to].msg))
			to++
		}
		if err := u.config.Publisher.Publish(mine[from].topic, msgs...); err != nil {
			return from, false
		}
		from = to
	}
	return len(mine), true
}

func (u *run) send(ctx context.Context, out outgoing) error {
	return u.config.Publisher.Publish(out.topic, copyOf(ctx, out.msg))
}

// copyOf is a message for one call: a publisher may change what it gets. What Prepare put into its context is kept; it
// ends with ctx as well.
func copyOf(ctx context.Context, msg *message.Message) *message.Message {
	c := msg.CopyWithContext()
	c.SetContext(joined{ctx, msg.Context()})
	return c
}

// joined is a context with the values of another one.
type joined struct {
	context.Context
	values context.Context //nolint:containedctx // it is a context
}

func (j joined) Value(key any) any {
	if v := j.values.Value(key); v != nil {
		return v
	}
	return j.Context.Value(key)
}

func (u *run) stored(out outgoing, released bool) string {
	u.sent = append(u.sent, sent{kind{out.letter.Consumer, out.letter.Type}, out.letter.MessageID, released})
	return out.letter.ID
}

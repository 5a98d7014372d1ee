package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
)

// replay is one run of the command.
type replay struct {
	consumer, topic, key, eventType string
	from                            []string
	since, until                    string
	start, dry                      bool
	rate                            float64
	limit                           int
	batch                           string
}

// replayReport tells what a replay did, as JSON.
type replayReport struct {
	Batch    string           `json:"batch,omitempty"`
	DryRun   bool             `json:"dry_run,omitempty"`
	Read     int              `json:"read"`
	Replayed int              `json:"replayed"`
	Next     map[string]int64 `json:"next"` // by partition: where to go on
	Refused  []refusal        `json:"refused,omitempty"`
}

// refusal is a message that could not be sent, as JSON.
type refusal struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Why       string `json:"why"`
}

func (a *app) replayCommand() *cobra.Command {
	var r replay
	cmd := &cobra.Command{
		Use: "replay --consumer NAME --topic TOPIC (--from-start | --since TIME | --from-offset P:N)", Short: "Give messages of a topic to one consumer again",
		Long: `Give messages of a topic to one consumer again, and to nobody else, as far as the broker still has them (Kafka, JetStream).

They go through the consumer's redrive topic with the identity that they had, so a consumer with an inbox skips what it has handled and
remembers; use "inbox forget" for what is to take effect again. A handler WITHOUT an inbox does everything again.

They are unordered against live messages. When it is interrupted it tells where to go on. A message that cannot be sent is reported with
its place, and does not stop the others (exit code 4).`,
		Args: args(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&r.consumer, "consumer", "", "who gets them")
	flags.StringVar(&r.topic, "topic", "", "which topic to read")
	flags.StringSliceVar(&r.from, "from-offset", nil, "PARTITION:OFFSET, or OFFSET where there are no partitions (JetStream: the sequence); partitions that are not named are left out")
	flags.StringVar(&r.since, "since", "", "stored at this time or later: 2h, 3d, 2026-01-31 or RFC 3339")
	flags.StringVar(&r.until, "until", "", "stored before this time")
	flags.BoolVar(&r.start, "from-start", false, "all that the topic still has")
	flags.StringVar(&r.key, "key", "", "messages of this key alone")
	flags.StringVar(&r.eventType, "type", "", "events of this type alone")
	flags.Float64Var(&r.rate, "rate", 0, "messages per second (default: without limit)")
	flags.IntVar(&r.limit, "limit", 0, "how many at most (default: all)")
	flags.StringVar(&r.batch, "batch", "", "name of the run (default: a random one)")
	flags.BoolVar(&r.dry, "dry-run", false, "count them and do nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		span, until, err := r.check()
		if err != nil {
			return err
		}
		b, err := a.openBroker(cmd.Context())
		if err != nil {
			return err
		}
		defer closing(b, &err)
		if b.reader == nil {
			return usage("replay: this broker's topics cannot be read again")
		}
		span, err = pinned(cmd.Context(), b.reader, r.topic, span)
		if err != nil {
			return err
		}
		count, err := r.read(cmd.Context(), b, span, until, func([]*message.Message) error { return nil })
		if err != nil {
			return err
		}
		if r.dry {
			count.DryRun = true
			return a.showReplay(&r, count, nil)
		}
		switch {
		case count.Replayed == 0 && len(count.Refused) == 0:
			return errNothing
		case count.Replayed == 0:
			return a.showReplay(&r, count, nil)
		}
		if err := a.confirm("give %s of %s to %s again?", plural(count.Replayed, "message"), r.topic, r.consumer); err != nil {
			return err
		}
		publisher, err := b.Publisher()
		if err != nil {
			return err
		}
		defer closing(publisher, &err)
		bar := a.newBar(int64(count.Replayed))
		n, wait := 0, ticker(r.rate)
		report, err := r.read(cmd.Context(), b, span, until, func(messages []*message.Message) error {
			if err := wait(cmd.Context(), len(messages)); err != nil {
				return err
			}
			err := publisher.Publish(poison.RedriveTopic(r.consumer), messages...)
			if err == nil {
				n += len(messages)
				bar.at(int64(n))
			}
			return err
		})
		bar.end()
		return a.showReplay(&r, report, err)
	}
	return cmd
}

// check returns what to read.
func (r *replay) check() (span brokers.Range, until time.Time, err error) {
	begins := 0
	for _, given := range []bool{r.start, r.since != "", len(r.from) > 0} {
		if given {
			begins++
		}
	}
	switch {
	case r.consumer == "":
		return span, until, usage("replay: --consumer is empty")
	case r.topic == "":
		return span, until, usage("replay: --topic is empty")
	case begins != 1:
		return span, until, usage("replay: give one of --from-start, --since and --from-offset")
	case !(r.rate >= 0) || r.rate > 1e9:
		return span, until, usage("--rate is %v: want 0 to 1e9", r.rate)
	case r.limit < 0:
		return span, until, usage("--limit is %d: want more than 0", r.limit)
	}
	if r.batch == "" {
		r.batch = uuid.NewString()
	}
	if span.Since, err = parseTime(r.since, time.Now()); err != nil {
		return span, until, usage("--since: %w", err)
	}
	if until, err = parseTime(r.until, time.Now()); err != nil {
		return span, until, usage("--until: %w", err)
	}
	for _, text := range r.from {
		p, n, found := strings.Cut(text, ":")
		if !found {
			p, n = "-1", text
		}
		partition, err1 := strconv.ParseInt(p, 10, 32)
		offset, err2 := strconv.ParseInt(n, 10, 64)
		if err1 != nil || err2 != nil || partition < -1 || offset < 0 {
			return span, until, usage("--from-offset is %q: want PARTITION:OFFSET, or OFFSET", text)
		}
		if span.From == nil {
			span.From = map[int32]int64{}
		}
		span.From[int32(partition)] = offset
		span.Partitions = append(span.Partitions, int32(partition))
	}
	return span, until, nil
}

// pinned is span with the end of now, so that it can be read twice alike.
func pinned(ctx context.Context, reader brokers.Reader, topic string, span brokers.Range) (brokers.Range, error) {
	ends, err := reader.Ends(ctx, topic)
	if err != nil {
		return span, err
	}
	for p := range span.From {
		if _, there := ends[p]; !there {
			return span, usage("--from-offset: topic %s has no partition %d; it has %v", topic, p, slices.Sorted(maps.Keys(ends)))
		}
	}
	span.To = ends
	return span, nil
}

// replayChunk is how many messages are published in one call.
const replayChunk = 100

// errEnough ends a read at --limit.
var errEnough = errors.New("enough")

const (
	// maxRow is how many messages in a row are refused until the broker, or the consumer's topic, is taken to be gone.
	maxRow = 10
	// maxRefused bounds the messages of a run that are refused for themselves.
	maxRefused = 1000
)

// replayed is a message on its way, and the place that it was read from.
type replayed struct {
	msg *message.Message
	at  *brokers.Delivery
}

// replaying is one pass over the topic.
type replaying struct {
	*replay
	publish func([]*message.Message) error
	report  replayReport
	chunk   []replayed
	next    map[int32]int64 // behind what was read
	row     []refusal       // the last ones, without one that was sent since: is it they, or the broker?
}

// read gives what is to be replayed to publish, in chunks. The report tells what was published also with an error.
func (r *replay) read(ctx context.Context, b *broker, span brokers.Range, until time.Time, publish func([]*message.Message) error) (replayReport, error) {
	p := &replaying{replay: r, publish: publish, report: replayReport{Batch: r.batch, Next: map[string]int64{}}, next: map[int32]int64{}}
	size := replayChunk
	if r.rate > 0 {
		size = int(max(1, min(replayChunk, r.rate)))
	}
	err := b.reader.Read(ctx, r.topic, span, func(msg *message.Message) error {
		p.report.Read++
		d := brokers.DeliveryOf(msg.Context())
		if r.selects(msg, d, until) {
			out, err := r.prepare(ctx, b, msg)
			if err == nil {
				p.chunk = append(p.chunk, replayed{out, d})
			} else if err = p.refuse(refusalOf(d, err), err); err != nil {
				return err
			}
		}
		p.next[d.Partition] = d.Offset + 1
		if len(p.chunk) < size && (r.limit == 0 || p.report.Replayed+len(p.chunk) < r.limit) {
			return nil
		}
		if err := p.flush(ctx); err != nil {
			return err
		}
		if r.limit > 0 && p.report.Replayed >= r.limit {
			return errEnough
		}
		return nil
	})
	if err == nil {
		err = p.flush(ctx)
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	if err == nil {
		p.report.Refused = append(p.report.Refused, p.row...)
	}
	return p.report, err
}

// prepare makes the message that goes to the consumer.
func (r *replay) prepare(ctx context.Context, b *broker, msg *message.Message) (*message.Message, error) {
	rec, err := poison.RecordOf(r.consumer, msg)
	if err != nil {
		return nil, err
	}
	out, err := (&poison.Redrive{Kind: poison.KindReplay, Batch: r.batch, Record: rec}).Message(b.Capabilities().MaxHeaderBytes)
	if err != nil {
		return nil, err
	}
	out.SetContext(ctx)
	b.keyed(out, rec)
	return out, nil
}

// flush publishes the chunk. If that fails it publishes one by one what is not stored for sure, to find the one that cannot be.
func (p *replaying) flush(ctx context.Context) error {
	if len(p.chunk) > 0 {
		messages := make([]*message.Message, len(p.chunk))
		for i, m := range p.chunk {
			messages[i] = m.msg.CopyWithContext() // a publisher may change what it gets
		}
		if err := p.publish(messages); err != nil {
			if err := p.oneByOne(ctx, unstored(err, len(p.chunk))); err != nil {
				return err
			}
		} else {
			p.report.Replayed += len(p.chunk)
			p.endRow()
		}
	}
	p.chunk = p.chunk[:0]
	if len(p.row) == 0 { // else the run may yet end at the first of these
		for partition, offset := range p.next {
			p.report.Next[strconv.Itoa(int(partition))] = offset
		}
	}
	return nil
}

// unstored tells which messages of a call are not stored for sure.
func unstored(err error, n int) map[int]bool {
	not := make(map[int]bool, n)
	if failed, ok := errors.AsType[*brokers.PublishError](err); ok && failed.Of == n {
		for _, f := range failed.Failed {
			not[f.Index] = true
		}
		return not
	}
	for i := range n {
		not[i] = true
	}
	return not
}

// oneByOne publishes those of the chunk that are not stored. Those that are refused again are reported, and the others go on, unless too
// many are refused in a row.
func (p *replaying) oneByOne(ctx context.Context, not map[int]bool) error {
	for i, m := range p.chunk {
		if not[i] {
			if err := p.publish([]*message.Message{m.msg.CopyWithContext()}); ctx.Err() != nil {
				return ctx.Err()
			} else if err != nil {
				if err := p.refused(m.at, err); err != nil {
					return err
				}
				continue
			}
		}
		p.report.Replayed++
		p.endRow()
		p.report.Next[strconv.Itoa(int(m.at.Partition))] = m.at.Offset + 1
	}
	return nil
}

// refused notes a message that was not taken. Its error is why the run cannot go on: then those in a row are to be tried again.
func (p *replaying) refused(d *brokers.Delivery, why error) error {
	if isItsOwn(why) && p.report.Replayed > 0 { // else the consumer's topic may be what is wrong
		return p.refuse(refusalOf(d, why), why)
	}
	if p.row = append(p.row, refusalOf(d, why)); len(p.row) == maxRow {
		return fmt.Errorf("%d messages in a row could not be sent, the last one at %s/%d/%d: %w", maxRow, d.Topic, d.Partition, d.Offset, why)
	}
	return nil
}

// endRow is told that a message was sent: those before it were refused for themselves.
func (p *replaying) endRow() {
	p.report.Refused = append(p.report.Refused, p.row...)
	p.row = nil
}

// refuse reports a message that cannot be sent.
func (p *replaying) refuse(r refusal, why error) error {
	if p.report.Refused = append(p.report.Refused, r); len(p.report.Refused) >= maxRefused {
		return fmt.Errorf("%d messages could not be sent; the last error: %w", len(p.report.Refused), why)
	}
	return nil
}

func refusalOf(d *brokers.Delivery, why error) refusal {
	return refusal{d.Topic, d.Partition, d.Offset, strings.Join(strings.Fields(why.Error()), " ")}
}

// isItsOwn tells whether an error is that of the message, and not of the broker.
func isItsOwn(err error) bool {
	return (*classify.Classifier)(nil).Classify(err).Verdict == classify.VerdictPoison
}

func (r *replay) selects(msg *message.Message, d *brokers.Delivery, until time.Time) bool {
	if !until.IsZero() && !d.Time.IsZero() && !d.Time.Before(until) {
		return false
	}
	if r.key != "" && r.key != first(string(d.Key), event.KeyOf(msg)) {
		return false
	}
	if r.eventType != "" {
		if t, err := event.TypeOf(msg); err != nil || t != r.eventType {
			return false
		}
	}
	return true
}

// ticker returns a function that waits until n more messages may go.
func ticker(rate float64) func(ctx context.Context, n int) error {
	if rate == 0 {
		return func(ctx context.Context, _ int) error { return ctx.Err() }
	}
	next := time.Now()
	return func(ctx context.Context, n int) error {
		if now := time.Now(); next.Before(now) {
			next = now
		}
		wait := time.NewTimer(time.Until(next))
		defer wait.Stop()
		next = next.Add(time.Duration(float64(n) * float64(time.Second) / rate))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-wait.C:
			return nil
		}
	}
}

func (a *app) showReplay(r *replay, report replayReport, err error) error {
	if err == nil && len(report.Refused) > 0 && !report.DryRun {
		err = exit(exitPartly, "%s could not be sent", plural(len(report.Refused), "message"))
	}
	if a.isJSON() {
		return errors.Join(a.writeJSON(report), err)
	}
	verb := "gave"
	if report.DryRun {
		verb = "would give"
	}
	fmt.Fprintf(a.out, "%s %s of %s to %s (%d read)\n", verb, plural(report.Replayed, "message"), r.topic, r.consumer, report.Read)
	for _, f := range report.Refused {
		fmt.Fprintf(a.out, "not sent: %s/%d/%d: %s\n", f.Topic, f.Partition, f.Offset, f.Why)
	}
	if err == nil || len(report.Next) == 0 || errors.As(err, new(*exitError)) {
		return err
	}
	var from []string
	for _, p := range slices.Sorted(maps.Keys(report.Next)) {
		if p == "-1" {
			from = append(from, fmt.Sprint(report.Next[p]))
			continue
		}
		from = append(from, fmt.Sprintf("%s:%d", p, report.Next[p]))
	}
	fmt.Fprintf(a.out, "go on with --from-offset %s; partitions that are not named were not begun\n", strings.Join(from, ","))
	return err
}

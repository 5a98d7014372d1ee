package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/poison"
)

// MaxTopicLetters bounds what [Topics] looks at. More need a database.
const MaxTopicLetters = 100_000

// Topics are dead letters as they stand on their topics, without a database, on a broker that can read a topic again. Nothing can be
// changed there: there are no states but New, no claims and no trail, so that two operators may redrive the same message, and each
// run redrives all that it finds. The consumer's inbox removes the copies; without an inbox do not use it. Of a
// message that died several times only the last death counts. It reads the topics at each call; it is for one user at a time.
type Topics struct {
	reader brokers.Reader
	topics []string

	// Skipped is how many messages the last call found that are no dead letters, or could not be read, and why the first of them could not.
	Skipped    int
	SkippedWhy error

	found []found // of the run that is going on
}

// found is where a letter is.
type found struct {
	topic     string
	partition int32
	offset    int64
	row       Row
}

// NewTopics returns the letters of dead-letter topics.
func NewTopics(reader brokers.Reader, topics ...string) (*Topics, error) {
	if reader == nil {
		return nil, errors.New("deadletter: this broker cannot read a topic again: use a database")
	}
	if len(topics) == 0 {
		return nil, errors.New("deadletter: no dead-letter topic was named")
	}
	return &Topics{reader: reader, topics: slices.Compact(slices.Sorted(slices.Values(topics)))}, nil
}

// scan returns the letters that f selects, in the order of their places.
func (t *Topics) scan(ctx context.Context, f Filter) ([]found, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	p := Protection{}
	f, err := p.filter(f)
	if err != nil {
		return nil, err
	}
	t.Skipped, t.SkippedWhy = 0, nil
	var list []found
	last := map[[2]string]int{} // consumer and message id -> place in all
	for _, topic := range t.topics {
		err := t.reader.Read(ctx, topic, brokers.Range{}, func(msg *message.Message) error {
			row, d, err := t.row(&p, msg)
			if err != nil {
				if t.Skipped++; t.SkippedWhy == nil {
					t.SkippedWhy = err
				}
				return nil
			}
			at := found{topic: topic, partition: d.Partition, offset: d.Offset, row: row}
			if row.MessageID != "" {
				key := [2]string{row.Consumer, row.MessageID}
				if i, died := last[key]; died {
					// As a store supersedes: a replay counts deaths from 1 again, and clocks differ.
					if old := &list[i].row; row.Deaths > old.Deaths || row.FailedAt.After(old.FailedAt) {
						list[i] = at
					}
					return nil
				}
				last[key] = len(list)
			}
			if len(list) == MaxTopicLetters {
				return fmt.Errorf("deadletter: there are more than %d dead letters on %q: index them into a database", MaxTopicLetters, t.topics)
			}
			list = append(list, at)
			return nil
		})
		if err != nil && !errors.Is(err, brokers.ErrNoTopic) {
			return nil, err
		}
	}
	list = slices.DeleteFunc(list, func(at found) bool { return !f.Match(&at.row) })
	for i := range list {
		list[i].row.Search = ""
	}
	slices.SortStableFunc(list, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	})
	return list, nil
}

// row reads a message of a dead-letter topic. The row has no document: it is read again when it is wanted.
func (t *Topics) row(p *Protection, msg *message.Message) (Row, *brokers.Delivery, error) {
	d := brokers.DeliveryOf(msg.Context())
	if d == nil {
		return Row{}, nil, fmt.Errorf("message %q does not tell its place", msg.UUID)
	}
	record, err := poison.Parse(msg)
	if err != nil {
		return Row{}, nil, fmt.Errorf("%s/%d/%d: %w", d.Topic, d.Partition, d.Offset, err)
	}
	row, err := p.row(record, "")
	row.Document, row.Payload = nil, nil
	return row, d, err
}

// read returns the whole letters at places of one partition, in order.
func (t *Topics) read(ctx context.Context, places []found) ([]Letter, error) {
	want := make(map[int64]*found, len(places))
	for i := range places {
		want[places[i].offset] = &places[i]
	}
	first, last := places[0], places[len(places)-1]
	r := brokers.Range{
		Partitions: []int32{first.partition},
		From:       map[int32]int64{first.partition: first.offset}, To: map[int32]int64{first.partition: last.offset + 1},
	}
	var letters []Letter
	err := t.reader.Read(ctx, first.topic, r, func(msg *message.Message) error {
		at := want[brokers.DeliveryOf(msg.Context()).Offset]
		if at == nil {
			return nil
		}
		record, err := poison.Parse(msg)
		if err != nil {
			return err
		}
		l := letterOf(record, at.row.Subject)
		l.ID = at.row.ID
		letters = append(letters, l)
		return nil
	})
	return letters, err
}

// page returns the first places of one partition, at most limit.
func page(places []found, limit int) []found {
	n := 0
	for n < min(len(places), limit) && places[n].topic == places[0].topic && places[n].partition == places[0].partition {
		n++
	}
	return places[:n]
}

// List returns the letters that f selects in the order of their failure, or the newest first, at most limit. They are short, as
// those of [Store.List] do.
func (t *Topics) List(ctx context.Context, f Filter, newest bool, limit int) ([]Letter, error) {
	places, err := t.scan(ctx, f)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(places, func(a, b found) int {
		order := cmp.Or(a.row.FailedAt.Compare(b.row.FailedAt), cmp.Compare(a.row.ID, b.row.ID))
		if newest {
			return -order
		}
		return order
	})
	letters := make([]Letter, min(len(places), limit))
	for i := range letters {
		if letters[i], err = (&Protection{}).letter(&places[i].row); err != nil {
			return nil, err
		}
	}
	return letters, nil
}

// One returns one whole letter, or an error that wraps [ErrNotFound].
func (t *Topics) One(ctx context.Context, id string) (Letter, error) {
	places, err := t.scan(ctx, Filter{IDs: []string{id}})
	if err != nil {
		return Letter{}, err
	}
	if len(places) > 0 {
		letters, err := t.read(ctx, places[:1])
		if err != nil || len(letters) == 1 {
			return first(letters), err
		}
	}
	return Letter{}, fmt.Errorf("dead letter %q: %w", id, ErrNotFound)
}

func first(letters []Letter) Letter {
	if len(letters) == 0 {
		return Letter{}
	}
	return letters[0]
}

// Count tells how many letters f selects.
func (t *Topics) Count(ctx context.Context, f Filter) (map[State]int64, error) {
	places, err := t.scan(ctx, f)
	if err != nil || len(places) == 0 {
		return map[State]int64{}, err
	}
	return map[State]int64{New: int64(len(places))}, nil
}

// Groups returns the kinds of failure, at most limit, the most frequent first.
func (t *Topics) Groups(ctx context.Context, f Filter, limit int) ([]Group, error) {
	places, err := t.scan(ctx, f)
	if err != nil {
		return nil, err
	}
	var groups []*Group
	byKind := map[Group]*Group{}
	for i := range places {
		row := &places[i].row
		kind := Group{Consumer: row.Consumer, Topic: row.Topic, Type: row.Type, ErrorType: row.ErrorType, Fingerprint: row.Fingerprint}
		g := byKind[kind]
		if g == nil {
			g = &Group{Consumer: row.Consumer, Topic: row.Topic, Type: row.Type, ErrorType: row.ErrorType, Fingerprint: row.Fingerprint, First: row.FailedAt}
			byKind[kind] = g
			groups = append(groups, g)
		}
		g.Count++
		g.New++
		if row.FailedAt.Before(g.First) {
			g.First = row.FailedAt
		}
		if !row.FailedAt.Before(g.Last) {
			g.Last, g.Sample, g.Error = row.FailedAt, row.ID, row.Error
		}
	}
	slices.SortStableFunc(groups, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.Last.Compare(a.Last), cmp.Compare(a.Fingerprint, b.Fingerprint))
	})
	list := make([]Group, min(len(groups), limit))
	for i := range list {
		list[i] = *groups[i]
	}
	return list, nil
}

// Each calls fn for every dead letter of the topics, whole, as an indexer wants them: earlier deaths included.
func (t *Topics) Each(ctx context.Context, fn func(poison.Record) error) error {
	t.Skipped, t.SkippedWhy = 0, nil
	for _, topic := range t.topics {
		err := t.reader.Read(ctx, topic, brokers.Range{}, func(msg *message.Message) error {
			record, err := poison.Parse(msg)
			if err != nil {
				if t.Skipped++; t.SkippedWhy == nil {
					t.SkippedWhy = err
				}
				return nil
			}
			return fn(record)
		})
		if err != nil && !errors.Is(err, brokers.ErrNoTopic) {
			return err
		}
	}
	return nil
}

func (t *Topics) pending(ctx context.Context, f Filter, after Cursor, limit int) ([]Letter, Cursor, error) {
	if after.row == nil {
		var err error
		if t.found, err = t.scan(ctx, f); err != nil {
			return nil, after, err
		}
	}
	for len(t.found) > 0 {
		places := page(t.found, limit)
		letters, err := t.read(ctx, places)
		if err != nil {
			return nil, after, err
		}
		t.found = t.found[len(places):]
		if len(letters) > 0 { // else the broker has dropped them meanwhile
			return letters, Cursor{&places[len(places)-1].row}, nil
		}
	}
	return nil, after, nil
}

func (t *Topics) claim(_ context.Context, _ Claim, _ Filter, letters []Letter, _ Entry) ([]Letter, error) {
	return letters, nil
}

func (t *Topics) settle(_ context.Context, _ Claim, ids []string, _ State, _ Entry) ([]string, error) {
	return ids, nil
}

func (t *Topics) counts(ctx context.Context, f Filter) (map[State]int64, error) {
	return t.Count(ctx, f)
}

// Tail reads what is new on dead-letter topics since it was made: a [Watcher]'s eye for messages that fail again, also where nobody
// indexes.
type Tail struct {
	reader brokers.Reader
	topics []string
	next   map[string]map[int32]int64
	seen   []poison.Record
}

// NewTail begins at the topics' ends. A topic that is not there yet is read from its beginning.
func NewTail(ctx context.Context, reader brokers.Reader, topics ...string) (*Tail, error) {
	t := &Tail{reader: reader, topics: slices.Compact(slices.Sorted(slices.Values(topics))), next: map[string]map[int32]int64{}}
	for _, topic := range t.topics {
		ends, err := reader.Ends(ctx, topic)
		if err != nil && !errors.Is(err, brokers.ErrNoTopic) {
			return nil, err
		}
		if ends == nil {
			ends = map[int32]int64{}
		}
		t.next[topic] = ends
	}
	return t, nil
}

// Failed returns the dead letters that came since the tail was made and failed in batch, at most [MaxLimit].
func (t *Tail) Failed(ctx context.Context, batch string) ([]poison.Record, error) {
	for _, topic := range t.topics {
		next := t.next[topic]
		err := t.reader.Read(ctx, topic, brokers.Range{From: next}, func(msg *message.Message) error {
			if d := brokers.DeliveryOf(msg.Context()); d != nil {
				next[d.Partition] = d.Offset + 1
			}
			if record, err := poison.Parse(msg); err == nil && record.Batch == batch && len(t.seen) < MaxLimit {
				t.seen = append(t.seen, record)
			}
			return nil
		})
		if err != nil && !errors.Is(err, brokers.ErrNoTopic) {
			return nil, err
		}
	}
	return t.seen, nil
}

// OriginalFrom returns an [Original] that reads messages from the topics they were on. A topic that was made anew since, or
// that holds no such offset any more, is an error.
func OriginalFrom(reader brokers.Reader) Original {
	return func(ctx context.Context, r poison.Record) (poison.Record, error) {
		if r.Offset < 0 {
			return poison.Record{}, errors.New("its offset is not known")
		}
		var original *message.Message
		err := reader.Read(ctx, r.Topic, brokers.Range{
			Partitions: []int32{r.Partition},
			From:       map[int32]int64{r.Partition: r.Offset}, To: map[int32]int64{r.Partition: r.Offset + 1},
		}, func(msg *message.Message) error {
			if d := brokers.DeliveryOf(msg.Context()); d.Offset == r.Offset {
				original = msg
			}
			return nil
		})
		switch {
		case err != nil:
			return poison.Record{}, err
		case original == nil:
			return poison.Record{}, errors.New("it is not there any more: the broker has dropped it")
		}
		if d := brokers.DeliveryOf(original.Context()); r.Incarnation != "" && d.Incarnation != "" && r.Incarnation != d.Incarnation {
			return poison.Record{}, fmt.Errorf("the topic was made anew since: its incarnation is %s, not %s", d.Incarnation, r.Incarnation)
		}
		return poison.RecordOf(r.Consumer, original)
	}
}

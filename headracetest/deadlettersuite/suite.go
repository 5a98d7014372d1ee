// Package deadlettersuite is the conformance suite of the stores' tables of dead letters: what every [deadletter.Table] and
// [deadletter.Writer] promises, as tests. A store's own test runs it with [Run].
package deadlettersuite

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/poison"
)

// Harness is one empty, migrated database.
type Harness[Tx any] struct {
	// Table is the store's.
	Table deadletter.Table
	// Store is the inbox of the same database, whose transactions Writer adds to.
	Store  inbox.Store[Tx]
	Writer deadletter.Writer[Tx]
}

// limit bounds every wait of the suite.
const limit = 60 * time.Second

type bench[Tx any] struct {
	*testing.T
	Harness[Tx]
	ctx   context.Context
	store *deadletter.Store
}

// Run runs the suite. open is called for each test and cleans up by itself.
func Run[Tx any](t *testing.T, open func(t *testing.T) Harness[Tx]) {
	for _, tc := range []struct {
		name string
		run  func(*bench[Tx])
	}{
		{"LettersAreKeptByteForByte", (*bench[Tx]).bytes},
		{"IndexIsPartOfTheTransactionAndOnce", (*bench[Tx]).index},
		{"ALaterDeathTakesTheEarlierOnesPlace", (*bench[Tx]).supersede},
		{"FiltersAgreeWithTheirDefinition", (*bench[Tx]).filters},
		{"TextIsSearchedAsItIsWritten", (*bench[Tx]).text},
		{"PagesCoverAllInOrder", (*bench[Tx]).pages},
		{"Groups", (*bench[Tx]).groups},
		{"OneOfTwoClaims", (*bench[Tx]).claim},
		{"ManyOperatorsAtOnce", (*bench[Tx]).operators},
		{"AClaimEnds", (*bench[Tx]).claimEnds},
		{"AClaimedLetterIsLeftAlone", (*bench[Tx]).claimed},
		{"DiscardResolveAndTheirTrail", (*bench[Tx]).discard},
		{"EditReplaces", (*bench[Tx]).edit},
		{"PurgeLeavesNothingOfAPerson", (*bench[Tx]).purge},
		{"SealedColumnsTellNothing", (*bench[Tx]).sealed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			b := &bench[Tx]{T: t, Harness: open(t), ctx: ctx}
			b.store = b.newStore(deadletter.Protection{})
			tc.run(b)
		})
	}
}

func (b *bench[Tx]) newStore(p deadletter.Protection) *deadletter.Store {
	b.Helper()
	s, err := deadletter.NewStore(b.Table, p)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// record is the n-th dead letter: its own id, message and time.
func record(n int, change ...func(*poison.Record)) poison.Record {
	r := poison.Record{
		ID: fmt.Sprintf("dead-%03d", n), Version: poison.Version, Consumer: "billing.orders", Topic: "orders", Incarnation: "i",
		Partition: 1, Offset: int64(n), Time: start, Key: fmt.Appendf(nil, "order-%d", n%3),
		Payload: fmt.Appendf(nil, `{"n":%d}`, n), UUID: fmt.Sprintf("u-%d", n), MessageID: fmt.Sprintf("ce:/shop e-%d", n),
		Metadata: map[string]string{
			"ce_specversion": "1.0", "ce_id": fmt.Sprintf("e-%d", n), "ce_source": "/shop", "ce_type": "order.placed",
			"ce_subject": fmt.Sprintf("person-%d", n%2),
		},
		Attempts: 5, Deaths: 1, Verdict: classify.VerdictPoison, ErrorType: "timeout", Error: fmt.Sprintf("warehouse %d is down", n),
		FirstFailure: start, LastFailure: start.Add(time.Duration(n) * time.Second), Fingerprint: fmt.Sprintf("%016x", n%2),
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func (b *bench[Tx]) add(records ...poison.Record) {
	b.Helper()
	n, err := b.store.Add(b.ctx, records...)
	if err != nil || n != len(records) {
		b.Fatalf("Add %d letters: %d, %v", len(records), n, err)
	}
}

func (b *bench[Tx]) one(id string) deadletter.Letter {
	b.Helper()
	l, err := b.store.One(b.ctx, id)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

func (b *bench[Tx]) wantState(id string, want deadletter.State) {
	b.Helper()
	if got := b.one(id).State; got != want {
		b.Errorf("letter %s is %s, want %s", id, got, want)
	}
}

func (b *bench[Tx]) ids(f deadletter.Filter) []string {
	b.Helper()
	letters, _, err := b.store.List(b.ctx, f, false, deadletter.Cursor{}, deadletter.MaxLimit)
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]string, len(letters))
	for i := range letters {
		ids[i] = letters[i].ID
	}
	return ids
}

func (b *bench[Tx]) actions(id string) []string {
	b.Helper()
	trail, err := b.store.Trail(b.ctx, id)
	if err != nil {
		b.Fatal(err)
	}
	actions := make([]string, len(trail))
	for i, e := range trail {
		actions[i] = e.Action
		if e.At.IsZero() || time.Since(e.At).Abs() > time.Hour {
			b.Errorf("entry %+v of %s: want the time of now", e, id)
		}
	}
	return actions
}

var by = deadletter.By{Actor: "ann", Reason: "ticket 812"}

func (b *bench[Tx]) bytes() {
	for i, r := range []poison.Record{
		record(0),
		record(1, func(r *poison.Record) { r.Payload, r.Key, r.Metadata = nil, nil, nil }),
		record(2, func(r *poison.Record) {
			r.Payload, r.Key, r.Metadata = []byte("\xff\x00"), []byte{0xfe, 0}, map[string]string{"k\xff": "v\x00"}
			r.Headers = []brokers.Header{{Key: "a"}, {Key: "a", Value: []byte{0}}}
			r.Error, r.UUID, r.Topic = "nul \x00 and \xff", "\xff", strings.Repeat("t", 300)
		}),
		record(3, func(r *poison.Record) { r.ID = strings.Repeat("i", 300) }),
		record(4, func(r *poison.Record) { r.Reference, r.Payload, r.Metadata = true, nil, nil }),
		record(5, func(r *poison.Record) { r.LastFailure, r.FirstFailure, r.Time = time.Time{}, time.Time{}, time.Time{} }),
		record(6, func(r *poison.Record) { r.Payload = []byte(strings.Repeat("\xc3\xa4", 1<<19)) }),
	} {
		b.add(r)
		got := b.one(r.ID).Record
		want := r
		want.ID = got.ID // a long one is stored as a hash
		if r.ID != got.ID && len(r.ID) <= 255 {
			b.Errorf("record %d: id %q, want %q", i, got.ID, r.ID)
		}
		if i == 2 { // texts are text; JSON keeps what is not
			want.Error = got.Error
		}
		if !reflect.DeepEqual(got, want) {
			b.Errorf("record %d: got\n%.500q\nwant\n%.500q", i, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
		}
	}
	if n, err := b.store.Add(b.ctx, record(0)); n != 0 || err != nil {
		b.Errorf("the same letter again: %d, %v; want 0, nil", n, err)
	}
}

func (b *bench[Tx]) index() {
	index := deadletter.Index(b.Writer, deadletter.Protection{})
	errHandler := fmt.Errorf("after the index")
	claim := inbox.Claim{Consumer: "billing.deadletters", ID: "dead-000"}
	_, err := b.Store.Once(b.ctx, claim, func(ctx context.Context, tx Tx) error {
		if err := index(ctx, tx, record(0)); err != nil {
			return err
		}
		return errHandler
	})
	if err == nil || len(b.ids(deadletter.Filter{})) != 0 {
		b.Errorf("a transaction that failed left %q, error %v", b.ids(deadletter.Filter{}), err)
	}
	for i := range 2 { // an inbox that was emptied must not matter
		claim.ID = fmt.Sprintf("again-%d", i)
		if done, err := b.Store.Once(b.ctx, claim, func(ctx context.Context, tx Tx) error { return index(ctx, tx, record(0)) }); !done || err != nil {
			b.Fatalf("index: %t, %v", done, err)
		}
	}
	if got := b.ids(deadletter.Filter{}); !slices.Equal(got, []string{"dead-000"}) {
		b.Errorf("letters %q, want one", got)
	}
}

func (b *bench[Tx]) supersede() {
	death := func(n, deaths int) poison.Record {
		return record(n, func(r *poison.Record) {
			r.MessageID, r.Deaths, r.Batch, r.Hops = "ce:/shop same", deaths, "b-1", deaths-1
		})
	}
	b.add(death(0, 1))
	b.add(death(1, 2))
	b.wantState("dead-000", deadletter.Resolved)
	b.wantState("dead-001", deadletter.New)
	if got := b.actions("dead-000"); !slices.Equal(got, []string{"supersede"}) {
		b.Errorf("trail %q, want supersede", got)
	}
	b.add(death(3, 4))
	b.add(death(2, 3)) // it comes late
	b.wantState("dead-002", deadletter.Resolved)
	b.wantState("dead-003", deadletter.New)
	b.add(record(4, func(r *poison.Record) { r.MessageID, r.Consumer = "ce:/shop same", "another" }))
	b.wantState("dead-004", deadletter.New)
	for n := range 2 { // no id: nothing tells them apart from strangers
		b.add(record(5+n, func(r *poison.Record) { r.MessageID, r.Deaths = "", n+1 }))
	}
	b.wantState("dead-005", deadletter.New)
	// It was put away and replayed, so that its deaths are counted from 1 again: they are no old ones.
	if n, err := b.store.Discard(b.ctx, deadletter.Filter{IDs: []string{"dead-003"}}, by); n != 1 || err != nil {
		b.Fatalf("Discard: %d, %v; want 1", n, err)
	}
	replayed := func(n, deaths int) {
		r := death(n, deaths)
		r.Batch = "replay"
		b.add(r)
	}
	replayed(7, 1)
	b.wantState("dead-007", deadletter.New)
	replayed(8, 1) // and once more
	b.wantState("dead-007", deadletter.Resolved)
	b.wantState("dead-008", deadletter.New)
	late := death(9, 2) // of before the replays
	late.LastFailure = start.Add(time.Millisecond)
	b.add(late)
	b.wantState("dead-009", deadletter.Resolved)
	b.wantState("dead-008", deadletter.New)
	failed, err := b.store.Failed(b.ctx, "replay")
	if err != nil || len(failed) != 2 {
		b.Errorf("%d letters failed in the replays, %v; want 2", len(failed), err)
	}
	failed, err = b.store.Failed(b.ctx, "b-1")
	if err != nil || len(failed) != 5 {
		b.Errorf("%d letters failed in batch b-1, %v; want 5", len(failed), err)
	}
}

// filters compares the SQL with Filter.Match, on random letters and filters.
func (b *bench[Tx]) filters() {
	pick := func(t *rapid.T, name string, from ...string) string { return rapid.SampledFrom(from).Draw(t, name) }
	var rows []deadletter.Row
	n := 0
	rapid.Check(b, func(t *rapid.T) {
		for range rapid.IntRange(0, 3).Draw(t, "letters") {
			n++
			b.add(record(n, func(r *poison.Record) {
				r.Consumer, r.Topic = pick(t, "consumer", "a", "b", "A"), pick(t, "topic", "x", "y ")
				r.ErrorType, r.Fingerprint, r.Batch = pick(t, "type", "timeout", ""), pick(t, "print", "1", "2"), pick(t, "batch", "", "b")
				r.Error = pick(t, "error", "50% off", "under_score", `back\slash`, "Groß'e", "bang!", "")
				r.Key = []byte(pick(t, "key", "", "k", "K", "\xff", strings.Repeat("k", 300)))
				r.Deaths = rapid.IntRange(1, 3).Draw(t, "deaths")
				r.LastFailure = start.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "at")) * time.Microsecond)
			}))
		}
		all, err := b.Table.Select(b.ctx, deadletter.Query{Limit: deadletter.MaxLimit, Bodies: true})
		if err != nil {
			t.Fatal(err)
		}
		rows = all
		f := deadletter.Filter{
			Consumer: pick(t, "f.consumer", "", "a", "A", "none"), Topic: pick(t, "f.topic", "", "", "x", "y", "y "),
			ErrorType: pick(t, "f.type", "", "", "timeout"), Fingerprint: pick(t, "f.print", "", "", "1"), Batch: pick(t, "f.batch", "", "", "b"),
			Key:  pick(t, "f.key", "", "", "", "k", "K", strings.Repeat("k", 300)),
			Text: pick(t, "f.text", "", "", "%", "_", `\`, "OFF", "groß'E", "!", "order.placed", "e-1"), MinDeaths: rapid.IntRange(0, 3).Draw(t, "f.deaths"),
		}
		if rapid.Bool().Draw(t, "f.since?") {
			f.Since = start.Add(time.Duration(rapid.IntRange(0, 4999).Draw(t, "f.since")) * time.Nanosecond)
		}
		if rapid.Bool().Draw(t, "f.until?") {
			f.Until = start.Add(time.Duration(rapid.IntRange(5000, 9000).Draw(t, "f.until")) * time.Nanosecond)
		}
		for _, s := range deadletter.States[:2] {
			if rapid.Bool().Draw(t, "f.state") {
				f.States = append(f.States, s)
			}
		}
		oracle := f
		if f.Key != "" {
			oracle.Key = deadletter.KeyText([]byte(f.Key))
		}
		var want []string
		for i := range rows {
			// The columns do not tell what is searched: make it again.
			rows[i].Search = b.searched(rows[i])
			if oracle.Match(&rows[i]) {
				want = append(want, rows[i].ID)
			}
		}
		if got := b.ids(f); !slices.Equal(got, want) {
			t.Fatalf("filter %+v\ngot  %q\nwant %q", f, got, want)
		}
		counts, err := b.store.Count(b.ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		if total := counts[deadletter.New] + counts[deadletter.Resolved] + counts[deadletter.Redriving]; int(total) != len(want) {
			t.Fatalf("filter %+v counts %v, want %d", f, counts, len(want))
		}
	})
}

// searched makes what a row is searched by anew.
func (b *bench[Tx]) searched(row deadletter.Row) string {
	r, err := poison.ParseDocument(row.ID, row.Document, row.Payload)
	if err != nil {
		b.Fatal(err)
	}
	return deadletter.Fold(strings.Join([]string{r.Error, row.Key, row.Type, row.MessageID, row.CorrelationID, row.Subject, row.ID, string(r.Payload)}, "\n"))
}

func (b *bench[Tx]) text() {
	b.add(record(0, func(r *poison.Record) { r.Error = "100% of Orders_x lost" }), record(1))
	for text, want := range map[string]int{
		"100%": 1, "orders_x": 1, "ordersyx": 0, "%": 1, "WAREHOUSE 1": 1, `{"n":`: 2, "person-1": 1, "nothing": 0, "dead-00": 2,
	} {
		if got := b.ids(deadletter.Filter{Text: text}); len(got) != want {
			b.Errorf("text %q finds %q, want %d", text, got, want)
		}
	}
}

func (b *bench[Tx]) pages() {
	var want []string
	for n := range 25 {
		// Several fail at one moment.
		b.add(record(n, func(r *poison.Record) { r.LastFailure = start.Add(time.Duration(n/4) * time.Second) }))
		want = append(want, fmt.Sprintf("dead-%03d", n))
	}
	for _, newest := range []bool{false, true} {
		var got []string
		var at deadletter.Cursor
		for {
			letters, next, err := b.store.List(b.ctx, deadletter.Filter{Consumer: "billing.orders"}, newest, at, 4)
			if err != nil {
				b.Fatal(err)
			}
			if len(letters) == 0 {
				break
			}
			for _, l := range letters {
				got = append(got, l.ID)
			}
			at = next
		}
		if newest {
			slices.Reverse(got)
		}
		if !slices.Equal(got, want) {
			b.Errorf("newest %t: got %q, want %q", newest, got, want)
		}
	}
	if _, _, err := b.store.List(b.ctx, deadletter.Filter{}, false, deadletter.Cursor{}, 0); err == nil {
		b.Error("a limit of 0: no error")
	}
}

func (b *bench[Tx]) groups() {
	for n := range 5 {
		b.add(record(n))
	}
	if _, err := b.store.Discard(b.ctx, deadletter.Filter{IDs: []string{"dead-000"}}, by); err != nil {
		b.Fatal(err)
	}
	got, err := b.store.Groups(b.ctx, deadletter.Filter{}, 10)
	want := []deadletter.Group{
		{
			Consumer: "billing.orders", Topic: "orders", Type: "order.placed", ErrorType: "timeout", Fingerprint: "0000000000000000",
			Count: 3, New: 2, First: start, Last: start.Add(4 * time.Second), Sample: "dead-004", Error: "warehouse 4 is down",
		},
		{
			Consumer: "billing.orders", Topic: "orders", Type: "order.placed", ErrorType: "timeout", Fingerprint: "0000000000000001",
			Count: 2, New: 2, First: start.Add(time.Second), Last: start.Add(3 * time.Second), Sample: "dead-003", Error: "warehouse 3 is down",
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		b.Errorf("groups %v\n%+v\nwant\n%+v", err, got, want)
	}
	if got, err := b.store.Groups(b.ctx, deadletter.Filter{Text: "warehouse 3"}, 1); err != nil || len(got) != 1 || got[0].Count != 1 {
		b.Errorf("groups of a filter: %+v, %v", got, err)
	}
}

func claimOf(token string, ttl time.Duration) deadletter.Claim {
	return deadletter.Claim{Token: token, Owner: "owner of " + token, TTL: ttl}
}

func change(to deadletter.State, ids ...string) deadletter.Change {
	return deadletter.Change{
		IDs: ids, From: []deadletter.State{deadletter.New}, To: to,
		Entry: deadletter.Entry{Actor: "ann", Action: "test", Reason: "why", Batch: "b"},
	}
}

func (b *bench[Tx]) claimAll(token string, ttl time.Duration, ids ...string) []string {
	b.Helper()
	got, err := b.Table.Claim(b.ctx, claimOf(token, ttl), change(deadletter.Redriving, ids...))
	if err != nil {
		b.Fatal(err)
	}
	return got
}

func (b *bench[Tx]) claim() {
	b.add(record(0), record(1), record(2))
	if got := b.claimAll("one", time.Minute, "dead-001", "dead-000"); !slices.Equal(got, []string{"dead-000", "dead-001"}) {
		b.Errorf("the first claim got %q", got)
	}
	if got := b.claimAll("two", time.Minute, "dead-000", "dead-001", "dead-002", "none"); !slices.Equal(got, []string{"dead-002"}) {
		b.Errorf("the second claim got %q, want what was left", got)
	}
	l := b.one("dead-000")
	if l.State != deadletter.Redriving || l.ClaimedBy != "owner of one" || time.Until(l.ClaimedUntil) <= 0 {
		b.Errorf("claimed letter: %s by %q until %v", l.State, l.ClaimedBy, l.ClaimedUntil)
	}
	if got, err := b.Table.Settle(b.ctx, claimOf("two", time.Minute), change(deadletter.Redriven, "dead-000")); err != nil || len(got) != 0 {
		b.Errorf("a stranger settled %q, %v", got, err)
	}
	if got, err := b.Table.Settle(b.ctx, claimOf("one", time.Minute), change(deadletter.Redriven, "dead-000")); err != nil || !slices.Equal(got, []string{"dead-000"}) {
		b.Errorf("the owner settled %q, %v", got, err)
	}
	if got, err := b.Table.Settle(b.ctx, claimOf("one", time.Minute), change("", "dead-001")); err != nil || !slices.Equal(got, []string{"dead-001"}) {
		b.Errorf("the owner gave back %q, %v", got, err)
	}
	b.wantState("dead-000", deadletter.Redriven)
	b.wantState("dead-001", deadletter.New)
	if got := b.one("dead-001").ClaimedBy; got != "" {
		b.Errorf("a letter that was given back is claimed by %q", got)
	}
	if got := b.claimAll("three", time.Minute, "dead-000"); len(got) != 0 {
		b.Errorf("what was redriven was claimed as new: %q", got)
	}
	again := change(deadletter.Redriving, "dead-000")
	again.From = []deadletter.State{deadletter.Redriven}
	if got, err := b.Table.Claim(b.ctx, claimOf("four", time.Minute), again); err != nil || len(got) != 1 {
		b.Errorf("claim of what was redriven, by its state: %q, %v", got, err)
	}
	if _, err := b.Table.Settle(b.ctx, claimOf("four", time.Minute), change("", "dead-000")); err != nil {
		b.Error(err)
	}
	b.wantState("dead-000", deadletter.Redriven)
	if got := b.actions("dead-000"); len(got) != 4 {
		b.Errorf("trail %q, want 4 entries", got)
	}
}

// operators claim the same letters in different orders at the same time.
func (b *bench[Tx]) operators() {
	const operators, letters = 6, 40
	ids := make([]string, letters)
	for n := range letters {
		b.add(record(n))
		ids[n] = fmt.Sprintf("dead-%03d", n)
	}
	got := make([][]string, operators)
	var wg sync.WaitGroup
	for o := range operators {
		wg.Go(func() {
			mine := slices.Clone(ids)
			if o%2 == 1 {
				slices.Reverse(mine)
			}
			for part := range slices.Chunk(mine, 10) {
				claimed, err := b.Table.Claim(b.ctx, claimOf(fmt.Sprint("operator ", o), time.Minute), change(deadletter.Redriving, part...))
				if err != nil {
					b.Errorf("operator %d: %v", o, err)
				}
				got[o] = append(got[o], claimed...)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(got...)
	slices.Sort(all)
	if !slices.Equal(all, ids) {
		b.Errorf("the operators together got %d claims: %q\nwant each letter once", len(all), all)
	}
}

func (b *bench[Tx]) claimEnds() {
	b.add(record(0))
	b.claimAll("dead operator", 5*time.Millisecond, "dead-000")
	for deadline := time.Now().Add(limit); ; {
		if got := b.claimAll("next", time.Minute, "dead-000"); len(got) == 1 {
			break
		}
		if time.Now().After(deadline) {
			b.Fatal("a claim of 5 ms did not end")
		}
	}
	if got, err := b.Table.Settle(b.ctx, claimOf("dead operator", time.Minute), change(deadletter.Redriven, "dead-000")); err != nil || len(got) != 0 {
		b.Errorf("a zombie settled %q, %v", got, err)
	}
	if got, err := b.Table.Settle(b.ctx, claimOf("next", time.Minute), change("", "dead-000")); err != nil || len(got) != 1 {
		b.Errorf("the next owner gave back %q, %v", got, err)
	}
	b.wantState("dead-000", deadletter.New)
	if _, err := b.Table.Claim(b.ctx, claimOf("x", 0), change(deadletter.Redriving, "dead-000")); err == nil {
		b.Error("a claim without a time: no error")
	}
	if _, err := b.Table.Claim(b.ctx, claimOf("", time.Minute), change(deadletter.Redriving, "dead-000")); err == nil {
		b.Error("a claim without a token: no error")
	}
}

func (b *bench[Tx]) claimed() {
	b.add(record(0), record(1))
	b.claimAll("one", time.Minute, "dead-000")
	f := deadletter.Filter{Consumer: "billing.orders"}
	if n, err := b.store.Discard(b.ctx, f, by); n != 1 || err != nil {
		b.Errorf("Discard: %d, %v; want 1: the other one is being redriven", n, err)
	}
	if _, err := b.store.Edit(b.ctx, "dead-000", deadletter.Edit{Payload: []byte("{}")}, by); err == nil {
		b.Error("Edit of a claimed letter: no error")
	}
	if n, err := b.store.Purge(b.ctx, f, by); n != 1 || err != nil {
		b.Errorf("Purge: %d, %v; want 1", n, err)
	}
	b.wantState("dead-000", deadletter.Redriving)
	if got := b.ids(deadletter.Filter{}); len(got) != 1 {
		b.Errorf("letters %q; an edit that was refused left a copy?", got)
	}
}

func (b *bench[Tx]) discard() {
	for n := range 3 {
		b.add(record(n))
	}
	if n, err := b.store.Discard(b.ctx, deadletter.Filter{Subject: "person-0"}, by); n != 2 || err != nil {
		b.Fatalf("Discard: %d, %v; want 2", n, err)
	}
	if n, err := b.store.Resolve(b.ctx, deadletter.Filter{IDs: []string{"dead-001", "dead-000"}}, by); n != 1 || err != nil {
		b.Fatalf("Resolve: %d, %v; want 1: the other one is discarded", n, err)
	}
	b.wantState("dead-000", deadletter.Discarded)
	b.wantState("dead-001", deadletter.Resolved)
	trail, err := b.store.Trail(b.ctx, "dead-002")
	if err != nil || len(trail) != 1 || trail[0].Actor != by.Actor || trail[0].Reason != by.Reason || trail[0].Action != deadletter.ActionDiscard {
		b.Errorf("trail %+v, %v", trail, err)
	}
	for _, bad := range []deadletter.By{{}, {Actor: "ann"}, {Reason: "x"}, {Actor: "a\x00", Reason: "x"}} {
		if _, err := b.store.Discard(b.ctx, deadletter.Filter{}, bad); err == nil {
			b.Errorf("Discard by %+v: no error", bad)
		}
	}
}

func (b *bench[Tx]) edit() {
	b.add(record(0))
	copied, err := b.store.Edit(b.ctx, "dead-000", deadletter.Edit{Payload: []byte(`{"n":7}`), Metadata: map[string]string{"x": "1"}}, by)
	if err != nil {
		b.Fatal(err)
	}
	b.wantState("dead-000", deadletter.Resolved)
	if string(copied.Payload) != `{"n":7}` || copied.Metadata["x"] != "1" || copied.EditedFrom != "dead-000" || copied.State != deadletter.New {
		b.Errorf("copy: %+v", copied)
	}
	if copied.ID == "dead-000" || copied.MessageID == "ce:/shop e-0" || copied.Metadata["ce_causationid"] != "e-0" {
		b.Errorf("copy: id %s, message id %s, caused by %s; want new ones, caused by e-0", copied.ID, copied.MessageID, copied.Metadata["ce_causationid"])
	}
	for _, id := range []string{"dead-000", copied.ID} {
		trail, err := b.store.Trail(b.ctx, id)
		if err != nil || len(trail) != 1 || !strings.Contains(trail[0].Detail, `-  "n": 0`) || !strings.Contains(trail[0].Detail, `+  "n": 7`) || !strings.Contains(trail[0].Detail, "+x: 1") {
			b.Errorf("trail of %s: %+v, %v; want the difference", id, trail, err)
		}
	}
	if _, err := b.store.Edit(b.ctx, "dead-000", deadletter.Edit{Payload: []byte("{}")}, by); err == nil {
		b.Error("a second edit of a resolved letter: no error")
	}
	// A message was redriven and succeeded; the edited copy of its letter made the effect a second time.
	b.add(record(1))
	b.claimAll("one", time.Minute, "dead-001")
	if got, err := b.Table.Settle(b.ctx, claimOf("one", time.Minute), change(deadletter.Redriven, "dead-001")); err != nil || len(got) != 1 {
		b.Fatalf("settle: %q, %v", got, err)
	}
	mend := deadletter.Edit{Payload: []byte(`{"n":8}`)}
	if _, err := b.store.Edit(b.ctx, "dead-001", mend, by); !errors.Is(err, deadletter.ErrBusy) {
		b.Errorf("an edit of what was redriven: %v, want ErrBusy", err)
	}
	b.wantState("dead-001", deadletter.Redriven)
	mend.Force = true
	if _, err := b.store.Edit(b.ctx, "dead-001", mend, by); err != nil {
		b.Errorf("an edit of what was redriven, by force: %v", err)
	}
	b.wantState("dead-001", deadletter.Resolved)
	// Whoever claimed it and died may have sent it.
	b.add(record(2))
	b.claimAll("dead operator", 5*time.Millisecond, "dead-002")
	mend.Force = false
	for ends := b.one("dead-002").ClaimedUntil; time.Since(ends) < 20*time.Millisecond; {
		runtime.Gosched()
	}
	if _, err := b.store.Edit(b.ctx, "dead-002", mend, by); !errors.Is(err, deadletter.ErrBusy) {
		b.Errorf("an edit of what a dead operator may have sent: %v, want ErrBusy", err)
	}
	mend.Force = true
	for deadline := time.Now().Add(limit); ; {
		_, err := b.store.Edit(b.ctx, "dead-002", mend, by)
		if err == nil {
			break
		}
		if !errors.Is(err, deadletter.ErrBusy) || time.Now().After(deadline) {
			b.Fatalf("the same by force: %v", err)
		}
	}
}

func (b *bench[Tx]) purge() {
	for n := range 6 {
		b.add(record(n))
	}
	if _, err := b.store.Edit(b.ctx, "dead-000", deadletter.Edit{Payload: []byte("secret of person-0")}, by); err != nil {
		b.Fatal(err)
	}
	if n, err := b.store.Purge(b.ctx, deadletter.Filter{Subject: "person-0"}, by); n != 4 || err != nil {
		b.Fatalf("Purge: %d, %v; want 3 and the edited copy", n, err)
	}
	if got := b.ids(deadletter.Filter{}); !slices.Equal(got, []string{"dead-001", "dead-003", "dead-005"}) {
		b.Errorf("left: %q", got)
	}
	if got := b.actions("dead-000"); len(got) != 0 {
		b.Errorf("the trail of a purged letter is there: %q", got)
	}
	trail, err := b.store.Trail(b.ctx, "")
	if err != nil || len(trail) != 1 || trail[0].Action != deadletter.ActionPurge || trail[0].Actor != "ann" || trail[0].Detail != "4 dead letters" {
		b.Errorf("trail of the purge: %+v, %v", trail, err)
	}
	if _, err := b.store.Purge(b.ctx, deadletter.Filter{}, by); err == nil {
		b.Error("a purge of everything by an empty filter: no error")
	}
	old := deadletter.Filter{Until: start.Add(4 * time.Second)}
	if n, err := b.store.Purge(b.ctx, old, by); n != 2 || err != nil {
		b.Errorf("Purge of what is old: %d, %v; want 2", n, err)
	}
}

func (b *bench[Tx]) sealed() {
	c, err := deadletter.NewCipher(deadletter.NewSecret(), deadletter.Key{ID: "k1", Secret: deadletter.NewSecret()})
	if err != nil {
		b.Fatal(err)
	}
	p := deadletter.Protection{Cipher: c}
	clear := b.store
	b.store = b.newStore(p)
	b.add(record(0), record(1))
	rows, err := b.Table.Select(b.ctx, deadletter.Query{Limit: 10, Bodies: true})
	if err != nil {
		b.Fatal(err)
	}
	for _, row := range rows {
		text := fmt.Sprintf("%+v %s %s", row, row.Document, row.Payload)
		for _, secret := range []string{"order-", "person-", "warehouse", "e-0", "e-1"} {
			if strings.Contains(text, secret) {
				b.Errorf("row %s tells %q: %s", row.ID, secret, text)
			}
		}
	}
	if got := b.one("dead-001").Record; !reflect.DeepEqual(got, record(1)) {
		b.Errorf("got %+v, want %+v", got, record(1))
	}
	if got := b.ids(deadletter.Filter{Subject: "person-1"}); !slices.Equal(got, []string{"dead-001"}) {
		b.Errorf("by subject: %q", got)
	}
	if got := b.ids(deadletter.Filter{Key: "order-0"}); !slices.Equal(got, []string{"dead-000"}) {
		b.Errorf("by key: %q", got)
	}
	if _, _, err := b.store.List(b.ctx, deadletter.Filter{Text: "x"}, false, deadletter.Cursor{}, 1); err == nil {
		b.Error("a search for text among encrypted letters: no error")
	}
	if _, err := clear.One(b.ctx, "dead-000"); err == nil || !strings.Contains(err.Error(), "encrypted") {
		b.Errorf("read without the cipher: %v", err)
	}
	if n, err := b.store.Purge(b.ctx, deadletter.Filter{Subject: "person-1"}, by); n != 1 || err != nil {
		b.Errorf("Purge by subject: %d, %v", n, err)
	}
}

package history_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	. "github.com/headrace-go/headrace/integration/history"
)

var promised = Options{Once: []string{"once"}, Drained: true}

// short writes a history as "kind process consumer id", with the key before the id's dash and the number behind it.
func short(lines ...string) []Record {
	records := make([]Record, len(lines))
	for i, line := range lines {
		r := Record{Time: int64(i), Partition: "0"}
		words := append(strings.Fields(line), "", "")
		r.Kind, r.Process, r.Consumer, r.ID = Kind(words[0]), words[1], words[2], words[3]
		if key, n, ok := strings.Cut(r.ID, "-"); ok {
			r.Key = key
			r.Seq, _ = strconv.ParseInt(n, 10, 64)
		}
		if r.Kind == Published {
			r.Consumer = ""
		}
		records[i] = r
	}
	return records
}

func TestEachRuleHasAHistoryThatBreaksIt(t *testing.T) {
	shown := map[Rule]bool{}
	for _, tt := range []struct {
		name string
		rule Rule
		log  []string
	}{
		{"a message that nobody handled", Lost, []string{
			"published p once a-1", "published p once a-2", "start c once a-1", "effect c once a-1", "end c once a-1", "ack c once a-1",
		}},
		{"a message that was released and never came again", Lost, []string{
			"published p once a-1", "start c once a-1", "release c once a-1",
		}},
		{"two effects after a crash", DoubledEffect, []string{
			"published p once a-1", "start c once a-1", "effect c once a-1", "crash c", "start d once a-1", "effect d once a-1", "ack d once a-1",
		}},
		{"a later message first", Inversion, []string{
			"published p once a-1", "published p once a-2", "start c once a-2", "effect c once a-2", "end c once a-2",
			"start c once a-1", "effect c once a-1", "end c once a-1",
		}},
		{"a dead letter after a later message", Inversion, []string{
			"published p once a-1", "published p once a-2", "effect c once a-2", "dead c once a-1",
		}},
		{"two of a key at once", Overlap, []string{
			"published p once a-1", "published p once a-2", "start c once a-1", "start c once a-2",
			"effect c once a-1", "effect c once a-2",
		}},
		{"one message twice at once", Overlap, []string{
			"published p many a", "start c many a", "release d many a", "start c many a", "effect c many a",
		}},
		{"an ack of a failure", AckBeforeOutcome, []string{
			"published p once a-1", "start c once a-1", "failed c once a-1", "ack c once a-1", "effect d once a-1",
		}},
		{"a zombie", EffectAfterRevoke, []string{
			"published p once a-1", "assign c once x", "start c once a-1", "revoke c once x", "effect c once a-1",
		}},
		{"a second attempt after the ack", UnexplainedDuplicate, []string{
			"published p many a-1", "start c many a-1", "effect c many a-1", "end c many a-1", "ack c many a-1",
			"start c many a-1", "effect c many a-1", "end c many a-1",
		}},
		{"the crash of another process", UnexplainedDuplicate, []string{
			"published p many a-1", "start c many a-1", "effect c many a-1", "end c many a-1", "crash d", "start c many a-1", "end c many a-1",
		}},
		{"a second redelivery for one crash", UnexplainedDuplicate, []string{
			"published p many a-1", "start c many a-1", "crash c", "start d many a-1", "effect d many a-1", "end d many a-1",
			"start d many a-1", "end d many a-1",
		}},
		{"a message behind a parked one", ParkedKeyOvertaken, []string{
			"published p once a-1", "published p once a-2", "park c once a-1", "effect c once a-2",
		}},
		{"a message behind one that was taken out and has no effect yet", ParkedKeyOvertaken, []string{
			"published p once a-1", "published p once a-2", "park c once a-1", "unpark c once a-1", "effect c once a-2", "effect c once a-1",
		}},
		{"nobody's message", Unknown, []string{"start c once a-1", "effect c once a-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			shown[tt.rule] = true
			v := Check(short(tt.log...), promised)
			if v.Broken[tt.rule] == 0 {
				t.Errorf("history %q: broken %v; want %q", tt.log, v.Broken, tt.rule)
			}
			for _, got := range v.Violations {
				if got.Rule != tt.rule && tt.rule != Unknown {
					t.Errorf("history %q: also %v", tt.log, got)
				}
			}
		})
	}
	for _, rule := range Rules {
		if !shown[rule] {
			t.Errorf("no history breaks the rule %q", rule)
		}
	}
}

func TestWhatIsExplainedBreaksNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		log  []string
	}{
		{"a crash between effect and ack", []string{
			"published p once a-1", "start c once a-1", "effect c once a-1", "crash c", "start d once a-1", "skipped d once a-1", "end d once a-1", "ack d once a-1",
		}},
		{"a process that froze between its commit and the record of it", []string{
			"published p once a-1", "published p once a-2", "start c once a-1", "crash c", "start d once a-1", "skipped d once a-1", "end d once a-1",
			"start d once a-2", "effect d once a-2", "end d once a-2", "effect c once a-1",
		}},
		{"a retry", []string{
			"published p once a-1", "start c once a-1", "failed c once a-1", "start c once a-1", "effect c once a-1", "end c once a-1", "ack c once a-1",
		}},
		{"a partition that moved", []string{
			"published p many a-1", "start c many a-1", "effect c many a-1", "end c many a-1", "revoke c many x",
			"start d many a-1", "effect d many a-1", "end d many a-1", "ack d many a-1",
		}},
		{"a producer that published twice", []string{
			"published p once a-1", "published p once a-1", "start c once a-1", "effect c once a-1", "end c once a-1", "ack c once a-1",
			"start c once a-1", "skipped c once a-1", "end c once a-1", "ack c once a-1",
		}},
		{"a delivery before its publish was confirmed", []string{
			"start c once a-1", "effect c once a-1", "end c once a-1", "published p once a-1", "ack c once a-1",
		}},
		{"a redrive, which leaves the order", []string{
			"published p once a-1", "published p once a-2", "start c once a-1", "failed c once a-1", "dead c once a-1", "ack c once a-1",
			"start c once a-2", "effect c once a-2", "end c once a-2", "ack c once a-2",
			"redrive o once a-1", "start c once a-1", "effect c once a-1", "end c once a-1", "ack c once a-1",
		}},
		{"a parked key that is worked off", []string{
			"published p once a-1", "published p once a-2", "published p once b-1",
			"start c once a-1", "failed c once a-1", "park c once a-1", "dead c once a-1", "ack c once a-1",
			"start c once a-2", "park c once a-2", "end c once a-2", "ack c once a-2",
			"start c once b-1", "effect c once b-1", "end c once b-1", "ack c once b-1",
			"unpark o once a-1", "start d once a-1", "effect d once a-1", "end d once a-1",
			"unpark o once a-2", "start d once a-2", "effect d once a-2", "end d once a-2",
		}},
		{"an older version that was skipped as stale", []string{
			"published p once a-1", "published p once a-2", "effect c once a-2", "skipped c once a-1", "ack c once a-1", "ack c once a-2",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if v := Check(short(tt.log...), promised); !v.OK() {
				t.Errorf("history %q: %v", tt.log, v.Violations)
			}
		})
	}
}

func TestLimitBoundsWhatIsKeptAndNotWhatIsCounted(t *testing.T) {
	var log []Record
	for i := range 50 {
		log = append(log, Record{Kind: Published, ID: strconv.Itoa(i)})
	}
	log = append(log, Record{Kind: Skipped, Consumer: "once", ID: "0"})
	o := promised
	o.Limit = 3
	v := Check(log, o)
	if got, want := len(v.Violations), 3; got != want {
		t.Errorf("violations kept: %d, want %d", got, want)
	}
	if got, want := v.Broken[Lost], 49; got != want {
		t.Errorf("lost: %d, want %d", got, want)
	}
}

// A simulation of an honest runtime: whatever crashes, moves and retries there are, its history is good. Then one thing
// is made wrong in it, and the rule for that thing finds it.
func TestHonestHistoriesAreGoodAndEachFaultInThemIsFound(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		log := simulate(rt)
		if v := Check(log, promised); !v.OK() {
			rt.Fatalf("an honest history of %d records: %v", len(log), v.Violations)
		}
		fault := rapid.SampledFrom(faults).Draw(rt, "fault")
		bad, ok := fault.make(rt, slices.Clone(log))
		if !ok {
			return // there is nothing in it that could go wrong in this way
		}
		if v := Check(bad, promised); v.Broken[fault.rule] == 0 {
			rt.Fatalf("%s: broken %v, want %q", fault.name, v.Broken, fault.rule)
		}
	})
}

// pick returns the index of a random record that is like.
func pick(rt *rapid.T, log []Record, like func(Record) bool) int {
	var at []int
	for i, r := range log {
		if like(r) {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return -1
	}
	return rapid.SampledFrom(at).Draw(rt, "record")
}

var faults = []struct {
	name string
	rule Rule
	make func(*rapid.T, []Record) ([]Record, bool)
}{
	{"everything about a message is missing", Lost, func(rt *rapid.T, log []Record) ([]Record, bool) {
		i := pick(rt, log, func(r Record) bool { return r.Kind == Published })
		if i < 0 {
			return nil, false
		}
		id := log[i].ID
		left := slices.DeleteFunc(log, func(r Record) bool { return r.ID == id && r.Kind != Published })
		return left, slices.ContainsFunc(left, func(r Record) bool { return r.Consumer != "" })
	}},
	{"an effect twice", DoubledEffect, func(rt *rapid.T, log []Record) ([]Record, bool) {
		i := pick(rt, log, func(r Record) bool { return r.Kind == Effect })
		if i < 0 {
			return nil, false
		}
		return append(log, log[i]), true
	}},
	{"an ack at the beginning", AckBeforeOutcome, func(rt *rapid.T, log []Record) ([]Record, bool) {
		i := pick(rt, log, func(r Record) bool { return r.Kind == Ack })
		if i < 0 {
			return nil, false
		}
		return slices.Insert(log, 0, log[i]), true
	}},
	{"an attempt after all is done", UnexplainedDuplicate, func(rt *rapid.T, log []Record) ([]Record, bool) {
		i := pick(rt, log, func(r Record) bool { return r.Kind == Ack })
		if i < 0 {
			return nil, false
		}
		again := log[i]
		again.Kind, again.Process = Start, "stranger"
		// As often as excuses could be left over.
		for range log {
			log = append(log, again)
		}
		return log, true
	}},
	{"two first outcomes of a key change places", Inversion, func(rt *rapid.T, log []Record) ([]Record, bool) {
		i := pick(rt, log, func(r Record) bool { return r.Kind == Effect })
		if i < 0 {
			return nil, false
		}
		for j := i + 1; j < len(log); j++ {
			if log[j].Kind == Skipped && log[j].ID == log[i].ID {
				return nil, false // the record of its effect would be a late one
			}
			if log[j].Kind == Effect && log[j].Key == log[i].Key {
				log[i], log[j] = log[j], log[i]
				return log, true
			}
		}
		return nil, false
	}},
	{"a start without an end before it", Overlap, func(rt *rapid.T, log []Record) ([]Record, bool) {
		i := pick(rt, log, func(r Record) bool { return r.Kind == Start })
		if i < 0 {
			return nil, false
		}
		return slices.Insert(log, i, log[i]), true
	}},
}

// simulate is a few processes that handle the keys of a broker which delivers again what was not acked.
func simulate(rt *rapid.T) []Record {
	var log []Record
	write := func(kind Kind, process, id, key string, seq int64) {
		r := Record{Time: int64(len(log)), Kind: kind, Process: process, ID: id, Key: key}
		if kind == Published {
			r.Seq = seq
		} else {
			r.Consumer = "once"
		}
		log = append(log, r)
	}
	processes := 0
	for k := range rapid.IntRange(1, 3).Draw(rt, "keys") {
		key := string(rune('a' + k))
		for seq := range int64(rapid.IntRange(1, 5).Draw(rt, "messages")) {
			id := fmt.Sprintf("%s%d", key, seq+1)
			write(Published, "producer", id, key, seq+1)
			process, done := fmt.Sprint("c", processes), false
			for acked := false; !acked; {
				write(Start, process, id, key, 0)
				switch what := rapid.SampledFrom([]string{"ok", "ok", "fail", "crash", "crash after", "release", "poison"}).Draw(rt, "what"); {
				case what == "fail":
					write(Failed, process, id, key, 0)
				case what == "release":
					write(Release, process, id, key, 0)
				case what == "crash":
					log = append(log, Record{Time: int64(len(log)), Kind: Crash, Process: process})
					processes++
					process = fmt.Sprint("c", processes)
				case done:
					write(Skipped, process, id, key, 0)
					write(End, process, id, key, 0)
					write(Ack, process, id, key, 0)
					acked = true
				case what == "crash after":
					write(Effect, process, id, key, 0)
					done = true
					log = append(log, Record{Time: int64(len(log)), Kind: Crash, Process: process})
					processes++
					process = fmt.Sprint("c", processes)
				default:
					kind := Effect
					if what == "poison" {
						kind = Dead
					}
					write(kind, process, id, key, 0)
					write(End, process, id, key, 0)
					write(Ack, process, id, key, 0)
					acked = true
				}
			}
		}
	}
	return log
}

package postgres

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"
)

// Whatever a message has comes back, through each of the two forms.
func TestMetadataSurvivesTheTable(t *testing.T) {
	texts := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"", "\x00", `"`, `\`, "\xff", "a\nb", "\u2028", "{", `\u0041`}))
	rapid.Check(t, func(t *rapid.T) {
		want := message.NewMessage(texts.Draw(t, "uuid"), nil)
		maps.Copy(want.Metadata, rapid.MapOfN(texts, texts, 0, 5).Draw(t, "metadata"))
		uuid, metadata := encode(want)
		if !isText(uuid) || !isText(metadata) {
			t.Fatalf("%q %v is stored as %q, %q, which the table cannot hold", want.UUID, want.Metadata, uuid, metadata)
		}
		got := message.NewMessage("", nil)
		if err := decode(got, uuid, metadata); err != nil {
			t.Fatalf("%q %v is stored as %q, %q: %v", want.UUID, want.Metadata, uuid, metadata, err)
		}
		if got.UUID != want.UUID || !maps.Equal(got.Metadata, want.Metadata) {
			t.Fatalf("%q %v is stored as %q, %q and came back as %q %v", want.UUID, want.Metadata, uuid, metadata, got.UUID, got.Metadata)
		}
	})
}

func TestDecodeOfWhatOthersWrote(t *testing.T) {
	for _, tt := range []struct {
		metadata string
		want     message.Metadata // nil: an error
	}{
		{`{}`, message.Metadata{}},
		{` { "a" : "b" } `, message.Metadata{"a": "b"}},
		{`{"a":"b","a":"c"}`, message.Metadata{"a": "c"}},
		{`{"a":"\u0041\n"}`, message.Metadata{"a": "A\n"}},
		{`["aWQ=","YQ==","Yg=="]`, message.Metadata{"a": "b"}},
		{``, nil},
		{`{`, nil},
		{`{"a":"b"`, nil},
		{`{"a":"b",}`, nil},
		{`{"a":}`, nil},
		{`{"a":7}`, nil},
		{`{"a":null}`, nil},
		{`{"a":"b"}x`, nil},
		{"{\"a\":\"line\nbreak\"}", nil},
		{`null`, nil},
		{`7`, nil},
		{`[]`, nil},
		{`["aWQ=","YQ=="]`, nil},
		{`["not base 64"]`, nil},
	} {
		m := message.NewMessage("", nil)
		err := decode(m, "column", tt.metadata)
		switch {
		case tt.want == nil && (err == nil || m.UUID != "column" || len(m.Metadata) > 0):
			t.Errorf("decode(%q) gave %q %v, error %v; want the column's uuid, no metadata and an error", tt.metadata, m.UUID, m.Metadata, err)
		case tt.want != nil && (err != nil || !maps.Equal(m.Metadata, tt.want)):
			t.Errorf("decode(%q) gave %v, error %v; want %v", tt.metadata, m.Metadata, err, tt.want)
		}
	}
}

// A message in back-off holds its own key and no other.
func TestDelayedEntryHoldsItsKeyOnly(t *testing.T) {
	now := time.Now()
	b := &bucket{}
	for i, key := range []string{"a", "b", "a", "", "c"} {
		e := &entry{id: int64(i + 1)}
		if key != "" {
			e.key = []byte(key)
		}
		if i == 0 {
			e.notBefore = now.Add(time.Second)
		}
		b.add(e)
	}
	var got []int64
	for {
		e, again := b.next(now)
		if e == nil {
			if want := now.Add(time.Second); !again.Equal(want) {
				t.Errorf("next tells to come again at %v, want %v", again, want)
			}
			break
		}
		got = append(got, e.id)
	}
	for e, _ := b.next(now.Add(time.Second)); e != nil; e, _ = b.next(now.Add(time.Second)) {
		got = append(got, e.id)
	}
	if want := []int64{2, 4, 5, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("entries came in the order %v, want %v", got, want)
	}
}

// Whatever is added and given back, entries of one key come by id, as long as they are there.
func TestBucketKeepsKeysInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := &bucket{}
		now := time.Unix(0, 0)
		waiting := map[int64]*entry{}
		var out []*entry
		id := int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				id++
				e := &entry{id: id, key: []byte(strconv.Itoa(rapid.IntRange(0, 2).Draw(t, "key")))}
				waiting[id] = e
				b.add(e)
			},
			"give back": func(t *rapid.T) {
				if len(out) == 0 {
					t.Skip("nothing is out")
				}
				i := rapid.IntRange(0, len(out)-1).Draw(t, "i")
				e := out[i]
				out = append(out[:i:i], out[i+1:]...)
				e.notBefore = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "delay")))
				waiting[e.id] = e
				b.add(e)
			},
			"time": func(*rapid.T) { now = now.Add(1) },
			"next": func(t *rapid.T) {
				e, again := b.next(now)
				if e == nil {
					if len(waiting) > 0 && !again.After(now) {
						t.Fatalf("%d entries wait, and next tells %v at %v", len(waiting), again, now)
					}
					return
				}
				if e.notBefore.After(now) {
					t.Fatalf("entry %d came at %v, before its time %v", e.id, now, e.notBefore)
				}
				for _, w := range waiting {
					if w.id < e.id && bytes.Equal(w.key, e.key) {
						t.Fatalf("entry %d came before entry %d of its key %s", e.id, w.id, e.key)
					}
				}
				delete(waiting, e.id)
				out = append(out, e)
			},
		})
	})
}

// Transactions take ids and end in any order; looks are not atomic. What is proven must be true.
func TestProofIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p proof
		last := int64(0)
		open := map[string]int64{} // transactions: the lowest id they have
		n := 0
		writers := func() []string { return slices.Sorted(maps.Keys(open)) }
		act := func(t *rapid.T) {
			switch rapid.IntRange(0, 2).Draw(t, "act") {
			case 0: // the lock first, then ids
				n++
				open[strconv.Itoa(n)] = 1 << 62
			case 1:
				if len(open) > 0 {
					w := rapid.SampledFrom(writers()).Draw(t, "takes an id")
					last++
					open[w] = min(open[w], last)
				}
			case 2:
				if len(open) > 0 {
					delete(open, rapid.SampledFrom(writers()).Draw(t, "ends"))
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"act": act,
			"look": func(t *rapid.T) {
				var seen int64
				var list []string
				if rapid.Bool().Draw(t, "last first") {
					seen = last
					act(t)
					list = writers()
				} else {
					list = writers()
					act(t)
					seen = last
				}
				proven, void := p.saw(seen, time.Unix(1, 0), list)
				if void {
					t.Fatal("the server has not changed")
				}
				for w, low := range open {
					if low <= proven {
						t.Fatalf("proven up to %d, but transaction %s is open and has id %d", proven, w, low)
					}
				}
			},
		})
	})
}

func TestProofIsVoidOnAnotherServer(t *testing.T) {
	at := time.Unix(1, 0)
	for _, tt := range []struct {
		name    string
		last    int64
		started time.Time
	}{{"restarted", 101, at.Add(1)}, {"went back", 99, at}} {
		var p proof
		for range 3 {
			if _, void := p.saw(100, at, nil); void {
				t.Fatal("void while nothing has changed")
			}
		}
		if proven, void := p.saw(tt.last, tt.started, nil); proven != 0 || !void {
			t.Errorf("%s: saw gave %d, void %v; want nothing proven and all void", tt.name, proven, void)
		}
	}
}

package ledgersuite

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headrace-go/headrace/internal/ledgerbook"
	"github.com/headrace-go/headrace/ledger"
)

// modelSteps is how many calls testModel makes.
const modelSteps = 400

// testModel makes the same random calls of the store and of the state machine, which must answer the same.
func testModel(t *testing.T, s subject) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	book, now := ledgerbook.New(), time.Unix(1e9, 0)
	runs := []ledger.Run{}
	for step := range modelSteps {
		now = now.Add(time.Microsecond)
		if len(runs) == 0 || random.IntN(8) == 0 {
			r := s.on(fmt.Sprintf("run %03d", step), fmt.Sprint("host", random.IntN(3)))
			runs = append(runs, r)
			got, err := s.Begin(s.context(), r, terms)
			s.must("begin", err)
			want := book.Begin(now, r, terms)
			wantStanding(t, step, "begin", got, want)
			continue
		}
		r := runs[max(0, len(runs)-1-random.IntN(6))]
		list := func() (list []ledger.Key) {
			for i := range 6 {
				if random.IntN(3) == 0 {
					list = append(list, key(fmt.Sprint(i)))
				}
			}
			return list
		}
		k := key(fmt.Sprint(random.IntN(6)))
		switch random.IntN(12) {
		case 0:
			got, err := s.Beat(s.context(), r, terms)
			s.must("beat", err)
			wantStanding(t, step, "beat", got, book.Beat(now, r, terms))
		case 1:
			s.must("stopping", s.Stopping(s.context(), r))
			book.Stopping(r)
		case 2:
			s.must("end", s.End(s.context(), r))
			book.End(r)
		case 3, 4, 5, 6:
			done, begun := list(), list()
			got, err := s.Record(s.context(), r, done, begun)
			want, wantErr := book.Record(now, r, done, begun)
			wantSame(t, step, "record", got, want, err, wantErr)
		case 7, 8, 9:
			force := random.IntN(2) == 0
			got, err := s.Alone(s.context(), r, k, force)
			want, wantErr := book.Alone(now, r, k, force)
			wantSame(t, step, "alone", []ledger.Suspect{got}, []ledger.Suspect{want}, err, wantErr)
		case 10:
			s.must("clear", s.Clear(s.context(), r, k))
			book.Clear(r, k)
		case 11:
			got, err := s.Suspects(s.context(), s.service, terms.Retention, 4)
			s.must("suspects", err)
			if want := book.Suspects(now, s.service, terms.Retention, 4); !slices.Equal(got, want) {
				t.Fatalf("step %d: suspects: got %v, want %v", step, got, want)
			}
		}
		if t.Failed() {
			return
		}
	}
}

func wantStanding(t *testing.T, step int, what string, got, want ledger.Standing) {
	t.Helper()
	got.SinceAlarm, want.SinceAlarm = 0, 0
	if got != want {
		t.Errorf("step %d: %s: got %+v, want %+v", step, what, got, want)
	}
}

func wantSame(t *testing.T, step int, what string, got, want []ledger.Suspect, err, wantErr error) {
	t.Helper()
	if errors.Is(err, ledger.ErrLost) != errors.Is(wantErr, ledger.ErrLost) || err != nil && wantErr == nil {
		t.Errorf("step %d: %s: got the error %v, want %v", step, what, err, wantErr)
	}
	if texts, wanted := named(got), named(want); !slices.Equal(texts, wanted) {
		t.Errorf("step %d: %s: got\n%q\nwant\n%q", step, what, texts, wanted)
	}
}

// named gives each suspect's name and starts, in order of name: the order of suspects is the store's own.
func named(list []ledger.Suspect) []string {
	texts := make([]string, len(list))
	for i, suspect := range list {
		texts[i] = fmt.Sprintf("%s: %s, elsewhere %t", suspect.ID, starts(suspect), suspect.Elsewhere)
	}
	slices.Sort(texts)
	return texts
}

package history_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	. "github.com/headrace-go/headrace/integration/history"
)

func TestLogsAreMergedByTime(t *testing.T) {
	a := `{"t":1,"kind":"published","id":"m"}
{"t":5,"kind":"ack","process":"c","consumer":"x","id":"m"}
`
	b := `{"t":3,"kind":"effect","consumer":"x","id":"m"}
`
	records, err := Read(strings.NewReader(a), strings.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, r := range records {
		kinds = append(kinds, string(r.Kind))
	}
	if got, want := strings.Join(kinds, " "), "published effect ack"; got != want {
		t.Errorf("order: %s, want %s", got, want)
	}
}

func TestBadLinesAreNamed(t *testing.T) {
	for _, tt := range []struct{ name, log, want string }{
		{"no JSON", "{\"t\":1,\"kind\":\"crash\",\"process\":\"p\"}\nnope\n", "line 2"},
		{"unknown kind", `{"kind":"lunch"}` + "\n", `"lunch"`},
		{"unknown field", `{"kind":"crash","process":"p","lunch":"q"}` + "\n", "lunch"},
		{"no id", `{"kind":"effect","consumer":"x"}` + "\n", "no id"},
		{"no process", `{"kind":"start","consumer":"x","id":"m"}` + "\n", "no process"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tt.log))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Read(%q): %v; want an error with %q", tt.log, err, tt.want)
			}
		})
	}
}

func TestLineThatAKillCutOffIsPassedOver(t *testing.T) {
	records, err := Read(strings.NewReader("{\"t\":1,\"kind\":\"crash\",\"process\":\"p\"}\n{\"t\":2,\"ki"))
	if err != nil || len(records) != 1 {
		t.Errorf("Read: %d records, %v; want 1 and no error", len(records), err)
	}
}

func TestLogWritesWhatReadReads(t *testing.T) {
	var text strings.Builder
	log := NewLog(&text)
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 25 {
				log.Write(Record{Kind: Crash, Process: "p"})
			}
		})
	}
	writers.Wait()
	if err := log.Err(); err != nil {
		t.Fatal(err)
	}
	records, err := Read(strings.NewReader(text.String()))
	if err != nil || len(records) != 100 {
		t.Fatalf("Read: %d records, %v; want 100", len(records), err)
	}
	log.Write(Record{Kind: Effect})
	if log.Err() == nil {
		t.Error("Err after a record without an id is nil")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestHoleInALogIsAnError(t *testing.T) {
	log := NewLog(full{})
	log.Write(Record{Kind: Crash, Process: "p"})
	if err := log.Err(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Err: %v, want disk full", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"t":1,"kind":"published","id":"m","key":"k","seq":1}` + "\n")
	f.Add(`{"t":1,"kind":"effect","consumer":"x","id":"m"}`)
	f.Fuzz(func(t *testing.T, text string) {
		records, err := Read(strings.NewReader(text))
		if err == nil {
			Check(records, Options{All: true, Drained: true})
		}
	})
}

package main

import (
	"encoding/csv"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// steady is a run in which nothing changes but what change does to each sample.
func steady(change func(part float64, s *sample)) []sample {
	all := make([]sample, 100)
	for i := range all {
		all[i] = sample{
			seconds: float64(10 * (i + 1)), perSecond: 1000, waiting: 50, p50: 5, p99: 20,
			heap: 30, memory: 80, goroutines: 300, files: 40, tables: 100,
		}
		if change != nil {
			change(float64(i)/99, &all[i])
		}
	}
	return all
}

func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(part float64, s *sample)
		broken string // what is not flat; empty: nothing
	}{
		{"nothing changes", nil, ""},
		{"it only warms up", func(part float64, s *sample) { s.heap = min(30, 200*part) }, ""},
		{"one sample is out of line", func(part float64, s *sample) {
			if part > 0.95 && part < 0.96 {
				s.heap, s.p99 = 300, 5000
			}
		}, ""},
		{"a leak of memory", func(part float64, s *sample) { s.heap *= 1 + part/2 }, "live heap, MiB"},
		{"a leak of goroutines", func(part float64, s *sample) { s.goroutines += 60 * part }, "goroutines"},
		{"a leak of files", func(part float64, s *sample) { s.files += 30 * part }, "open files"},
		{"it does not keep up", func(part float64, s *sample) { s.waiting += 5000 * part }, "waiting"},
		{"it becomes slower", func(part float64, s *sample) { s.p99 += 300 * part }, "p99, ms"},
		{"it does less", func(part float64, s *sample) { s.perSecond -= 200 * part }, "messages/s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, v := range judge(steady(tt.change), 1000) {
				if v.ok == (v.what == tt.broken) {
					t.Errorf("%v", v)
				}
			}
		})
	}
	if v := judge(steady(nil)[:4], 1000); len(v) != 1 || v[0].ok {
		t.Errorf("four samples are judged: %v", v)
	}
}

func TestFiles(t *testing.T) {
	var table, drawing strings.Builder
	if err := writeCSV(&table, steady(nil)); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(table.String())).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 101 || rows[0][3] != "p50_ms" || rows[1][3] != "5.00" || rows[100][0] != "1000.00" {
		t.Errorf("%d rows: %v, %v ... %v", len(rows), rows[0], rows[1], rows[len(rows)-1])
	}
	if err := draw(&drawing, steady(func(part float64, s *sample) { s.heap = 30 * part })); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for d := xml.NewDecoder(strings.NewReader(drawing.String())); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("the drawing is no XML: %v", err)
		}
		if start, is := token.(xml.StartElement); is && start.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != len(panels) {
		t.Errorf("%d lines, want %d", lines, len(panels))
	}
	if !strings.Contains(drawing.String(), "7.2,90.0") || !strings.Contains(drawing.String(), "720.0,0.0") {
		t.Error("a measure that grows from 0 to its most is no line from the bottom left to the top right")
	}
	if err := draw(&drawing, steady(nil)[:1]); err == nil {
		t.Error("one sample is drawn")
	}
}

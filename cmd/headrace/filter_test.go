package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headrace-go/headrace/stores/schema"
)

func TestTimesOfFilters(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"2h":                        now.Add(-2 * time.Hour),
		"90s":                       now.Add(-90 * time.Second),
		"3d":                        now.AddDate(0, 0, -3),
		"0.5d":                      now.Add(-12 * time.Hour),
		"1w":                        now.AddDate(0, 0, -7),
		"0s":                        now,
		"2026-01-31":                time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
		"2026-01-31T15:04":          time.Date(2026, 1, 31, 15, 4, 0, 0, time.UTC),
		"2026-01-31 15:04:05":       time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
		"2026-01-31T15:04:05+02:00": time.Date(2026, 1, 31, 13, 4, 5, 0, time.UTC),
	} {
		if got, err := parseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"soon", "-2h", "2", "1e99d", "NaNd", "99999w", "d", "1000000h", "2026-13-01"} {
		if got, err := parseTime(text, now); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

// FuzzFilters: whatever is written behind the flags, the command ends with a code of its own, and what it lists is what was asked for.
func FuzzFilters(f *testing.F) {
	f.Add("order-1", "CONNECTION", "2h", "2026-12-01", "new", 1)
	f.Add("", "%", "", "", "", 0)
	f.Add("a_b", "!_'\"\\", "1w", "x", "resolved,new", -1)
	f.Add("\xff", "\x00", "-1h", "9999-12-31", ",", 1<<31)
	f.Add("k", "ß", "0001-01-01", "1d", "new", 2)
	s := onJetStream(f)
	s.disaster()
	if r := s.run("dlt", "index", "--topic", "orders"); r.code != exitDone {
		f.Fatal(r.err)
	}
	s.env["HEADRACE_BROKER"] = ""
	f.Fuzz(func(t *testing.T, key, text, since, until, state string, deaths int) {
		s := *s
		s.t = t
		args := []string{"dlt", "ls", "-o", "json", "--key=" + key, "--text=" + text, "--since=" + since, "--until=" + until, "--state=" + state}
		args = append(args, fmt.Sprint("--min-deaths=", deaths))
		r := s.run(args...)
		if r.code != exitDone && r.code != exitNothing && r.code != exitUsage {
			t.Fatalf("headrace %q: exit code %d: %s", args, r.code, r.err)
		}
		if r.code == exitUsage {
			if strings.TrimSpace(r.err) == "headrace:" {
				t.Fatalf("headrace %q: no reason", args)
			}
			return
		}
		var views []view
		if err := json.Unmarshal([]byte(r.out), &views); err != nil {
			t.Fatalf("headrace %q: %v\n%s", args, err, r.out)
		}
		from, err1 := parseTime(since, time.Now())
		to, err2 := parseTime(until, time.Now())
		if err1 != nil || err2 != nil || !utf8.ValidString(text) {
			t.Fatalf("headrace %q was accepted: %v, %v", args, err1, err2)
		}
		for _, v := range views {
			if key != "" && v.Key != key || !from.IsZero() && v.FailedAt.Before(from.Add(-time.Minute)) || !to.IsZero() && !v.FailedAt.Before(to) || v.Deaths < deaths {
				t.Errorf("headrace %q lists %+v", args, v)
			}
		}
		if (key == "" && text == "" && from.IsZero() && to.IsZero() && state == "" && deaths <= 1) && len(views) != 13 {
			t.Errorf("no filter lists %d letters", len(views))
		}
	})
}

// FuzzURLs: an address is refused or understood; nothing panics, and a password is never shown.
func FuzzURLs(f *testing.F) {
	f.Add("kafka://u:secret@localhost:9092,other:9092?tls=true&sasl=scram-sha-256")
	f.Add("mysql://u:secret@host/db?x=y")
	f.Add("postgres://[::1")
	f.Add("nats://%zz")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := kafkaConfig(text); err == nil && len(c.Seeds) == 0 {
			t.Errorf("%q: no seeds and no error", text)
		}
		if dialect, _, dsn, err := dataSource(text); err == nil && (dsn == "" || dialect == "" || dialect == schema.MySQL && !strings.Contains(dsn, "/")) {
			t.Errorf("%q: %q, %q and no error", text, dialect, dsn)
		}
		_ = redacted(text)
	})
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/internal/testconsumer"
)

// sites are the pairs of broker and database that the command is tested on.
var sites = map[string]func(testing.TB) *site{"jetstream-sqlite": onJetStream, "kafka-postgres": onKafka, "jetstream-mysql": onMySQL}

// What the commands print and return is a contract with scripts and with whoever reads it at night.
func TestCommandsGolden(t *testing.T) {
	for name, on := range sites {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			s.disaster()
			s.redriveTopic()
			var b strings.Builder
			do := func(in string, args ...string) {
				r := s.runWith(in, args...)
				fmt.Fprintf(&b, "$ headrace %s\n%s", strings.Join(quoted(args), " "), r.out)
				if r.err != "" {
					b.WriteString("! " + strings.TrimSuffix(r.err, "\n") + "\n")
				}
				fmt.Fprintf(&b, "= %d\n\n", r.code)
			}
			orders, consumer := s.name("orders"), s.name("billing.orders")
			do("", "dlt", "ls")
			do("", "dlt", "index", "--topic", orders)
			do("", "dlt", "index", "--topic", orders)
			do("", "dlt", "groups")
			do("", "dlt", "groups", "-o", "json")
			do("", "dlt", "ls", "--error-type", "validation")
			do("", "dlt", "ls", "--key", "order-3", "-o", "json")
			do("", "dlt", "ls", "--text", "ORDER 1", "--oldest", "--limit", "2")
			do("", "dlt", "ls", "--consumer", "nobody")
			do("", "dlt", "ls", "--state", "lost")
			do("", "dlt", "ls", "--since", "soon")
			do("", "dlt", "redrive", "--consumer", consumer, "--dry-run")
			do("", "dlt", "redrive", "--consumer", consumer, "--dry-run", "-o", "json")
			do("", "dlt", "redrive", "--consumer", consumer)
			do("", "dlt", "redrive", "--reason", "x")
			do("n\n", "dlt", "redrive", "--error-type", "unavailable", "--reason", "warehouse is back", "--limit", "3")
			do("y\n", "dlt", "redrive", "--error-type", "unavailable", "--reason", "warehouse is back", "--limit", "3", "--batch", "b-1")
			do("", "dlt", "redrive", "--error-type", "unavailable", "--reason", "warehouse is back", "--yes", "--batch", "b-2", "-o", "json")
			do("", "dlt", "redrive", "--error-type", "unavailable", "--reason", "again", "--yes")
			do("", "dlt", "discard", "--key", "order-13", "--reason", "sent by mistake", "--dry-run")
			do("", "dlt", "discard", "--reason", "sent by mistake", "--yes")
			do("", "dlt", "discard", "--key", "order-13", "--reason", "sent by mistake", "--yes")
			do("", "dlt", "ls", "--state", "discarded", "--limit", "1")
			do("", "dlt", "purge", "--subject", "customer-13", "--reason", "erasure request 12", "--yes", "-o", "json")
			do("", "dlt", "purge", "--subject", "customer-13", "--reason", "erasure request 12", "--yes")
			do("", "inbox", "stat")
			do("", "outbox", "ls")
			do("", "park", "ls", "--consumer", consumer)
			do("", "park", "release", "--consumer", consumer, "--key", "k", "--reason", "x", "--yes")
			do("", "park", "skip", "--consumer", consumer, "--key", "k", "--seq", "1", "--reason", "x", "--yes")
			do("", "replay", "--consumer", consumer, "--topic", orders, "--from-start", "--dry-run")
			do("", "replay", "--consumer", consumer, "--topic", orders, "--from-start", "--key", "order-5", "--yes")
			do("", "replay", "--consumer", consumer, "--topic", s.name("none"), "--from-start")
			do("", "doctor", "--consumer", consumer+"="+orders)
			golden(t, name+".txt", s.stable(b.String()))
		})
	}
}

func quoted(args []string) []string {
	list := make([]string, len(args))
	for i, a := range args {
		if list[i] = a; a == "" || strings.ContainsAny(a, " \n") {
			list[i] = "'" + a + "'"
		}
	}
	return list
}

func TestShowTellsEverythingAndWritesPayloadsByteForByte(t *testing.T) {
	for name, on := range sites {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			s.die(1, "\xff\x00 not text", classify.VerdictPoison, "decode", "bad bytes")
			s.die(2, `{"order_id":"2"}`, classify.VerdictPoison, "validation", "no cents")
			s.indexes()
			letters, _, err := s.letters().List(t.Context(), deadletter.Filter{}, false, deadletter.Cursor{}, 2)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.must(exitDone, "dlt", "show", letters[0].ID, "--payload").out; got != "\xff\x00 not text" {
				t.Errorf("payload %q", got)
			}
			text := s.must(exitDone, "dlt", "show", letters[1].ID).out
			for _, want := range []string{"order.placed", "ce:/shop e-2", "validation: no cents", "ce_correlationid: conv-7", `"order_id": "2"`, "5 attempts", "1 death"} {
				if !strings.Contains(text, want) {
					t.Errorf("show lacks %q:\n%s", want, text)
				}
			}
			var got struct {
				ID            string
				State         string
				Payload       *string
				PayloadBase64 string `json:"payload_base64"`
				Metadata      map[string]string
			}
			for i, want := range []string{"", `{"order_id":"2"}`} {
				if err := json.Unmarshal([]byte(s.must(exitDone, "dlt", "show", letters[i].ID, "-o", "json").out), &got); err != nil {
					t.Fatal(err)
				}
				if want != "" && (got.Payload == nil || *got.Payload != want) || want == "" && got.PayloadBase64 != "/wAgbm90IHRleHQ=" || got.ID != letters[i].ID || got.Metadata["ce_id"] == "" {
					t.Errorf("JSON of %d: %+v", i, got)
				}
			}
			s.must(exitNothing, "dlt", "show", "no-such-id")
			if s.prefix == "" && name == "jetstream-sqlite" { // without a database
				delete(s.env, "HEADRACE_DATABASE")
				if got := s.must(exitDone, "dlt", "show", letters[0].ID, "--payload", "--topic", "orders").out; got != "\xff\x00 not text" {
					t.Errorf("payload from the topic: %q", got)
				}
				s.must(exitNothing, "dlt", "show", "no-such-id", "--topic", "orders")
			}
		})
	}
}

func TestWithoutADatabaseTheTopicIsWorked(t *testing.T) {
	for _, name := range []string{"jetstream-sqlite", "kafka-postgres"} {
		t.Run(name, func(t *testing.T) {
			s := sites[name](t)
			s.disaster()
			s.redriveTopic()
			delete(s.env, "HEADRACE_DATABASE")
			s.tableOpt = nil
			s.must(exitUsage, "dlt", "ls")
			if got := s.must(exitDone, "dlt", "ls", "--topic", s.name("orders")).out; strings.Count(got, "\n") != 14 {
				t.Errorf("dlt ls:\n%s", got)
			}
			if got := s.must(exitDone, "dlt", "groups", "--dlt", s.name("orders.DLT")).out; strings.Count(got, "\n") != 3 {
				t.Errorf("dlt groups:\n%s", got)
			}
			s.must(exitNothing, "dlt", "ls", "--topic", s.name("none"))
			s.must(exitUsage, "dlt", "discard", "--topic", s.name("orders"), "--reason", "x", "--yes")
			s.must(exitUsage, "dlt", "edit", "x", "--reason", "x")
			s.must(exitUsage, "dlt", "index", "--topic", s.name("orders"))
			r := s.must(exitDone, "dlt", "redrive", "--topic", s.name("orders"), "--key", "order-4", "--reason", "x", "--yes")
			if got := s.redriven(); len(got) != 1 {
				t.Errorf("redriven %q, want one\n%s", got, r.out)
			}
		})
	}
}

// Two operators saw the same alarm and typed the same command.
func TestTwoOperatorsAtOnce(t *testing.T) {
	for name, on := range sites {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			s.disaster()
			s.redriveTopic()
			s.indexes()
			var wg sync.WaitGroup
			results := make([]result, 3)
			for i := range results {
				wg.Go(func() {
					results[i] = s.run("dlt", "redrive", "--all", "--reason", "x", "--yes", "--rate", "1000", "--actor", fmt.Sprint("operator ", i))
				})
			}
			wg.Wait()
			got := s.redriven()
			slices.Sort(got)
			if n := len(slices.Compact(slices.Clone(got))); len(got) != 13 || n != 13 {
				t.Errorf("%d messages, %d different ones, were redriven; want 13", len(got), n)
			}
			for _, r := range results {
				if r.code != exitDone && r.code != exitPartly && r.code != exitNothing {
					t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
				}
			}
			if counts, err := s.letters().Count(t.Context(), deadletter.Filter{}); err != nil || counts[deadletter.Redriven] != 13 {
				t.Errorf("states %v, %v", counts, err)
			}
		})
	}
}

// The fix was none: all 12 were redriven at once, failed again, and paged everybody a second time.
func TestCanaryStopsAndThenGoesThrough(t *testing.T) {
	for name, on := range sites {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			c := testconsumer.Start(t, s.broker, s.store, s.name("billing.orders"), s.name("orders"), s.effects)
			c.Failing(func(string) error { return errors.New("warehouse: connection refused") })
			for n := range 20 {
				s.order(n, "{}")
			}
			await(t, "20 dead letters", func() bool {
				s.run("dlt", "index", "--topic", s.name("orders"))
				counts, err := s.letters().Count(t.Context(), deadletter.Filter{})
				return err == nil && counts[deadletter.New] == 20
			})
			redrive := []string{"dlt", "redrive", "--consumer", s.name("billing.orders"), "--reason", "fixed", "--yes", "--canary"}
			r := s.must(exitCanary, redrive...)
			if got := s.redriven(); len(got) != 1 {
				t.Errorf("%d messages were redriven, want the canary alone\n%s%s", len(got), r.out, r.err)
			}
			if !strings.Contains(r.err, "connection refused") || !strings.Contains(r.out, "failed again: ") {
				t.Errorf("it does not tell why: %s%s", r.out, r.err)
			}
			c.Failing(nil)
			s.indexes() // the second death
			r = s.must(exitDone, redrive...)
			if !strings.Contains(r.out, "redriven 20 of 20") {
				t.Errorf("after the fix: %s%s", r.out, r.err)
			}
			await(t, "the effects", func() bool { return len(c.Effects(t)) == 20 })
			for id, n := range c.Effects(t) {
				if n != 1 {
					t.Errorf("%s took effect %d times", id, n)
				}
			}
			s.must(exitNothing, redrive...)

			// What was handled is remembered; what is forgotten takes effect again.
			if got := s.must(exitDone, "inbox", "stat").out; !strings.Contains(got, s.name("billing.orders")) || !strings.Contains(got, "20") {
				t.Errorf("inbox stat: %s", got)
			}
			s.must(exitNothing, "inbox", "forget", "--consumer", s.name("billing.orders"), "ce:/shop none", "--yes")
			s.must(exitDone, "inbox", "forget", "--consumer", s.name("billing.orders"), "ce:/shop e-7", "--yes")
			s.must(exitDone, "replay", "--consumer", s.name("billing.orders"), "--topic", s.name("orders"), "--from-start", "--rate", "5000", "--yes")
			await(t, "the second effect of e-7", func() bool { return c.Effects(t)["e-7"] == 2 })
			s.order(99, "{}")
			await(t, "the last one", func() bool { return c.Effects(t)["e-99"] == 1 })
			for id, n := range c.Effects(t) {
				if want := map[bool]int{true: 2, false: 1}[id == "e-7"]; n != want {
					t.Errorf("after the replay %s took effect %d times, want %d", id, n, want)
				}
			}
		})
	}
}

func TestEditedCopyTakesEffect(t *testing.T) {
	s := onJetStream(t)
	c := testconsumer.Start(t, s.broker, s.store, "billing.orders", "orders", "effects")
	s.die(13, `{"cents":-1}`, classify.VerdictPoison, "validation", "cents is -1")
	s.indexes()
	await(t, "the live message", func() bool { return c.Effects(t)["e-13"] == 1 }) // die publishes it as well
	letters, err := s.letters().Get(t.Context(), s.one())
	if err != nil || len(letters) != 1 {
		t.Fatal(letters, err)
	}
	file := filepath.Join(t.TempDir(), "order.json")
	if err := os.WriteFile(file, []byte(`{"cents":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	id := letters[0].ID
	if got := s.must(exitDone, "dlt", "edit", id, "--payload", file, "--reason", "sign", "--dry-run").out; !strings.Contains(got, `-  "cents": -1`) || !strings.Contains(got, `+  "cents": 1`) {
		t.Errorf("dry run: %s", got)
	}
	s.must(exitUsage, "dlt", "edit", id, "--payload", file+".none", "--reason", "sign")
	s.must(exitUsage, "dlt", "edit", id, "--set", "=x", "--reason", "sign")
	s.must(exitUnconfirmed, "dlt", "edit", id, "--payload", file, "--reason", "sign")
	out := s.must(exitDone, "dlt", "edit", id, "--payload", file, "--reason", "sign", "--yes").out
	command := regexp.MustCompile(`headrace (dlt redrive --id \S+)`).FindStringSubmatch(out)
	if command == nil {
		t.Fatalf("edit does not tell how to go on: %s", out)
	}
	s.must(exitDone, append(strings.Fields(command[1]), "--reason", "sign", "--yes")...)
	await(t, "the copy's effect", func() bool { return len(c.Effects(t)) == 2 })
	s.must(exitPartly, "dlt", "edit", id, "--payload", file, "--reason", "sign", "--yes")
	if r := s.runWith(`{"cents":2}`, "dlt", "edit", id, "--payload", "-", "--reason", "sign", "--yes"); r.code != exitPartly {
		t.Errorf("edit of what is resolved, from the standard input: %d %s", r.code, r.err)
	}
}

// one is the id of the only letter.
func (s *site) one() string {
	s.t.Helper()
	letters, _, err := s.letters().List(s.t.Context(), deadletter.Filter{}, false, deadletter.Cursor{}, 2)
	if err != nil || len(letters) != 1 {
		s.t.Fatalf("%d letters, %v; want one", len(letters), err)
	}
	return letters[0].ID
}

// A redrive to a consumer whose name was mistyped went to a topic that nobody reads.
func TestRedriveToNobodyIsRefused(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.indexes() // no service has ever made the redrive topic
	r := s.must(exitFailed, "dlt", "redrive", "--all", "--reason", "x", "--yes")
	if !strings.Contains(r.err, "billing.orders.REDRIVE") {
		t.Errorf("the error does not name the topic: %s", r.err)
	}
	if counts, err := s.letters().Count(t.Context(), deadletter.Filter{}); err != nil || counts[deadletter.New] != 13 {
		t.Errorf("states %v, %v; want all new", counts, err)
	}
}

func TestInterruptedCommand(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.redriveTopic()
	s.indexes()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs strings.Builder
	if code := run(ctx, []string{"dlt", "redrive", "--all", "--reason", "x", "--yes"}, func(k string) string { return s.env[k] }, strings.NewReader(""), &out, &errs); code != exitInterrupted {
		t.Errorf("exit code %d, want %d: %s", code, exitInterrupted, errs.String())
	}
	s.must(exitFailed, "dlt", "ls", "--timeout", "1ns")
	s.must(exitUsage, "dlt", "ls", "--timeout", "-1s")
	s.must(exitDone, "dlt", "redrive", "--all", "--reason", "x", "--yes")
}

func TestUsageErrorsSayWhatIsWrong(t *testing.T) {
	s := onJetStream(t)
	for want, args := range map[string]string{
		"unknown command":              "frob",
		"name one of its commands":     "dlt",
		"unknown flag: --frob":         "dlt ls --frob",
		"accepts 1 arg":                "dlt show",
		`want text or json`:            "dlt ls -o yaml",
		"--limit is 0":                 "dlt ls --limit 0",
		"MinDeaths is -1":              "dlt ls --min-deaths -1",
		"not before Until":             "dlt ls --since 1h --until 2h",
		"want one of":                  "dlt ls --state x",
		"Rate is -1":                   "dlt redrive --all --reason x --rate -1",
		"MaxHops is -1":                "dlt redrive --all --reason x --max-hops -1",
		"ClaimTTL is 1ms":              "dlt redrive --all --reason x --claim-ttl 1ms",
		"name which dead letters":      "dlt purge --reason x",
		"--reason is empty":            "dlt discard --all",
		"is no number":                 "outbox retry x",
		"or --all":                     "outbox retry",
		"--consumer is empty":          "inbox forget x",
		"requires at least 1 arg":      "inbox forget",
		"give one of --from-start":     "replay --consumer c --topic t",
		`want PARTITION:OFFSET`:        "replay --consumer c --topic t --from-offset x",
		"has no partition 3":           "replay --consumer c --topic orders --from-offset 3:1",
		"--rate is -1":                 "replay --consumer c --topic t --from-start --rate -1",
		"want kafka://":                "dlt index --topic orders --broker http://x",
		"want postgres://":             "dlt ls --database oracle://x",
		"missing port in address":      "dlt index --topic x --broker kafka://localhost",
		`parameter "x"`:                "dlt index --topic x --broker kafka://localhost:1?x=1",
		`sasl is "magic"`:              "dlt index --topic x --broker kafka://u:p@localhost:1?sasl=magic",
		"there is no user":             "dlt index --topic x --broker kafka://localhost:1?sasl=plain",
		"no such file":                 "dlt ls --database sqlite:/no/such.db",
		"want mysql://USER":            "dlt ls --database mysql://host",
		"only Postgres has one":        "dlt ls --schema x",
		"nothing to check":             "doctor --broker= --database=",
		"want NAME=TOPIC":              "doctor --consumer x",
		"--config":                     "doctor --config /no/such.json",
		"name --consumer, --key and":   "park skip --consumer c --reason x",
		"name one --key, or --all":     "park release --consumer c --reason x",
		"park ls: --consumer is empty": "park ls",
		"name the dead-letter topics":  "dlt index",
		"want a time (2026-01-31":      "dlt ls --until yesterday",
		"it has":                       "replay --consumer c --topic orders --from-offset 9:0",
		"1 to 10000":                   "outbox ls --limit -5",
		"--actor is empty":             "dlt discard --all --reason x --actor=",
		"accepts at most 0 arg(s)":     "",
		`unknown command "x" for`:      "dlt ls x",
	} {
		if args == "" {
			continue
		}
		if strings.Contains(args, "orders --from-offset") {
			s.order(1, "{}")
		}
		env := s.env
		if strings.Contains(args, "--actor=") || strings.HasPrefix(args, "doctor --broker=") {
			s.env = map[string]string{"HEADRACE_DATABASE": env["HEADRACE_DATABASE"]}
			if strings.HasPrefix(args, "doctor") {
				s.env = map[string]string{}
			}
		}
		r := s.run(strings.Fields(args)...)
		s.env = env
		if r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("headrace %s: exit code %d, %q; want %d and %q", args, r.code, r.err, exitUsage, want)
		}
	}
}

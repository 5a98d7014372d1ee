package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/internal/testconsumer"
	"github.com/headrace-go/headrace/parking"
)

// parks starts a consumer that parks, has it fail n orders, and indexes their dead letters.
func (s *site) parks(n int) *testconsumer.Consumer {
	s.t.Helper()
	c := testconsumer.StartParking(s.t, s.broker, s.store, s.name("billing.orders"), s.name("orders"), s.effects, &parking.Policy{
		Poll: 10 * time.Millisecond, HoldDelay: 10 * time.Millisecond, MaxHoldDelay: 10 * time.Millisecond,
	})
	c.Failing(func(string) error { return errors.New("warehouse: connection refused") })
	for i := range n {
		s.order(i, "{}")
	}
	await(s.t, "the dead letters and the parked keys", func() bool {
		s.run("dlt", "index", "--topic", s.name("orders"))
		counts, err := s.letters().Count(s.t.Context(), deadletter.Filter{})
		parked, err2 := s.store.Parking().Count(s.t.Context(), s.name("billing.orders"))
		return err == nil && counts[deadletter.New] == int64(n) && err2 == nil && parked.Keys == n
	})
	return c
}

// A payment was discarded, but still was the first of its parked key: the release of the key made it. An edited one was made twice.
func TestWhatIsParkedIsNotGivenUpInPart(t *testing.T) {
	for name, on := range sites {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			c := s.parks(4)
			file := filepath.Join(t.TempDir(), "order.json")
			if err := os.WriteFile(file, []byte(`{"cents":1}`), 0o600); err != nil {
				t.Fatal(err)
			}
			idOf := func(n int) string {
				letters, _, err := s.letters().List(t.Context(), deadletter.Filter{MessageID: fmt.Sprint("ce:/shop e-", n)}, false, deadletter.Cursor{}, 2)
				if err != nil || len(letters) != 1 {
					t.Fatal(letters, err)
				}
				return letters[0].ID
			}
			commands := [][]string{
				{"dlt", "discard", "--id", idOf(0)},
				{"dlt", "resolve", "--id", idOf(1)},
				{"dlt", "edit", idOf(2), "--payload", file},
				{"dlt", "purge", "--id", idOf(3)},
			}
			flags := []string{"--reason", "INC 1's", "--yes"}
			for n, args := range commands {
				r := s.must(exitPartly, append(args, flags...)...)
				want := fmt.Sprintf("headrace park skip --consumer %s --key order-%d --seq 1", s.name("billing.orders"), n)
				if !strings.Contains(r.err, want) || !strings.Contains(r.err, "--skip-parked") {
					t.Errorf("headrace %q does not tell how to go on, %s: %s", args, want, r.err)
				}
			}
			if counts, err := s.letters().Count(t.Context(), deadletter.Filter{}); err != nil || counts[deadletter.New] != 4 {
				t.Errorf("states %v, %v; want all new", counts, err)
			}

			c.Failing(nil)
			skip := regexp.MustCompile(`headrace (park skip .*)`).FindStringSubmatch(s.run(append(commands[0], flags...)...).err)
			s.must(exitDone, append(words(t, skip[1]), "--yes")...) // as it was told
			s.must(exitDone, append(commands[0], flags...)...)
			for _, args := range commands[1:] {
				s.must(exitDone, append(append(args, flags...), "--skip-parked")...)
			}
			for id, want := range map[string]string{commands[0][3]: "discarded", commands[1][3]: "resolved", commands[2][2]: "resolved", commands[3][3]: ""} {
				if l, err := s.letters().One(t.Context(), id); string(l.State) != want || (want == "") != errors.Is(err, deadletter.ErrNotFound) {
					t.Errorf("letter %s is %q, %v; want %q", id, l.State, err, want)
				}
			}
			if parked, err := s.store.Parking().Count(t.Context(), s.name("billing.orders")); err != nil || parked.Messages != 0 {
				t.Errorf("%d messages are parked, %v; want none", parked.Messages, err)
			}
			s.order(4, "{}")
			s.run("park", "release", "--consumer", s.name("billing.orders"), "--all", "--reason", "INC-1", "--yes")
			s.must(exitDone, "dlt", "redrive", "--all", "--reason", "INC-1", "--yes") // the edited copy
			await(t, "the copy and a live message", func() bool { return len(c.Effects(t)) == 2 })
			if got := c.Effects(t); got["e-4"] != 1 || c.Runs("e-0")+c.Runs("e-1")+c.Runs("e-2")+c.Runs("e-3") != 4 {
				t.Errorf("effects %v: want order 4 and the edited copy; what was given up ran again", got)
			}
			// What was redriven, or is old, has nothing to decide.
			s.must(exitDone, "dlt", "purge", "--all", "--reason", "retention", "--yes")
		})
	}
}

// words are the arguments of a command as a shell reads them.
func words(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}

func TestSkipCommandIsQuoted(t *testing.T) {
	p := parkedLetter{"l", parking.Message{Consumer: "bill ing's", Key: "größe $1", Seq: 3}}
	want := []string{"headrace", "park", "skip", "--consumer", "bill ing's", "--key", "größe $1", "--seq", "3", "--reason", "INC-1: it's over"}
	if got := words(t, p.command("INC-1: it's over")); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The key of the letters was thrown away, as an erasure; "dlt purge" of what was left decrypted each letter to see whether it was parked,
// and failed.
func TestEncryptedLettersAreErasedWithoutTheirKey(t *testing.T) {
	s := onJetStream(t)
	s.redriveTopic()
	secret := func() string { return base64.StdEncoding.EncodeToString(deadletter.NewSecret()) }
	s.env["HEADRACE_DEADLETTER_KEYS"], s.env["HEADRACE_DEADLETTER_BLIND"] = "k-1="+secret(), secret()
	for n := range 4 {
		s.die(n, "{}", classify.VerdictRetry, "unavailable", "connection refused")
	}
	s.indexes()
	letters, _, err := s.letters().List(t.Context(), deadletter.Filter{}, false, deadletter.Cursor{}, 5)
	if err != nil || len(letters) != 4 || !letters[0].Sealed {
		t.Fatal(letters, err)
	}
	// Order 0 is parked by its id; of order 1 the parked row tells the letter; order 2 is not parked.
	s.parked("order-0", 2)
	for id, set := range map[string]string{"order-0-a": "id = 'ce:/shop e-0'", "order-0-b": "dead_letter = '" + letters[1].ID + "'"} {
		if _, err := s.store.DB().ExecContext(t.Context(), "UPDATE headrace_parked_msg SET "+set+" WHERE id LIKE '%"+id+"'"); err != nil {
			t.Fatal(err)
		}
	}
	flags := []string{"--reason", "erasure 12", "--yes"}
	command := func(use string, letter int, more ...string) []string {
		return append(append([]string{"dlt", use, "--id", letters[letter].ID}, flags...), more...)
	}

	s.env["HEADRACE_DEADLETTER_KEYS"] = "k-2=" + secret()
	for n, use := range []string{"purge", "discard"} {
		if r := s.must(exitPartly, command(use, n)...); !strings.Contains(r.err, fmt.Sprintf("--key order-0 --seq %d", n+1)) {
			t.Errorf("with the blinding alone, %s: %s", use, r.err)
		}
	}
	s.must(exitDone, command("resolve", 2)...)
	s.must(exitDone, command("purge", 0, "--skip-parked")...)

	s.env["HEADRACE_DEADLETTER_KEYS"], s.env["HEADRACE_DEADLETTER_BLIND"] = "", ""
	if r := s.must(exitPartly, command("purge", 1)...); !strings.Contains(r.err, "--key order-0 --seq 2") {
		t.Errorf("by the parked row's letter: %s", r.err)
	}
	if r := s.must(exitPartly, command("purge", 3, "--skip-parked")...); !strings.Contains(r.err, "of 1 encrypted dead letter are") || !strings.Contains(r.err, "--force") {
		t.Errorf("it cannot be told: %s", r.err)
	}
	s.must(exitDone, command("purge", 3, "--force")...)
	s.must(exitDone, command("discard", 1, "--skip-parked")...)
	s.must(exitDone, "dlt", "purge", "--all", "--reason", "nothing is parked any more", "--yes")
}

// Nothing that this consumer handles leaves a claim: the canary said "1 of 1 messages were not handled", though they were.
func TestCanaryGoesOnWhereNobodyCanTell(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.redriveTopic()
	s.indexes()
	s.parked("order-x", 1) // a claim of another message
	r := s.must(exitDone, "dlt", "redrive", "--all", "--reason", "fixed", "--yes", "--canary", "--canary-wait", "10ms")
	if n := strings.Count(r.err, "nobody can tell whether"); n != 2 || !strings.Contains(r.err, "1 message was handled") || !strings.Contains(r.err, "10 messages were handled") {
		t.Errorf("it told %d times why it goes on, want 2: %s", n, r.err)
	}
	if got := s.redriven(); len(got) != 13 {
		t.Errorf("%d were sent, want 13", len(got))
	}
}

// What is parked was released, and since its consumer's inbox had claimed it when it was parked, it was taken for handled: the canary
// sent everything, and everything failed again.
func TestCanaryOfParkedKeys(t *testing.T) {
	for name, on := range sites {
		t.Run(name, func(t *testing.T) {
			s := on(t)
			c := s.parks(15)
			redrive := []string{"dlt", "redrive", "--all", "--reason", "fixed", "--yes", "--canary"}
			r := s.must(exitCanary, redrive...)
			if !strings.Contains(r.err, "connection refused") || strings.Count(r.out, "failed again: ") != 1 {
				t.Errorf("it does not tell why: %s%s", r.out, r.err)
			}
			if got := c.AllRuns(); got != 16 {
				t.Errorf("the handler ran %d times, want 15 and the canary\n%s%s", got, r.out, r.err)
			}
			c.Failing(nil)
			await(t, "the second death of the canary", func() bool {
				s.indexes()
				counts, err := s.letters().Count(t.Context(), deadletter.Filter{})
				return err == nil && counts[deadletter.New] == 15
			})
			s.must(exitDone, redrive...)
			await(t, "the effects", func() bool { return len(c.Effects(t)) == 15 })
			for id, n := range c.Effects(t) {
				if n != 1 {
					t.Errorf("%s took effect %d times", id, n)
				}
			}
		})
	}
}

// The release was taken back, or the key's first message waits: nothing failed, and nothing was handled either.
func TestCanaryOfAParkedKeyThatDoesNotRun(t *testing.T) {
	s := onJetStream(t)
	s.redriveTopic()
	s.die(1, "{}", classify.VerdictRetry, "unavailable", "connection refused")
	s.indexes()
	s.parked("order-1", 1) // and no service is there to drain it
	if _, err := s.store.DB().ExecContext(context.Background(), "UPDATE headrace_parked_msg SET id = 'ce:/shop e-1'"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.DB().ExecContext(context.Background(), "UPDATE headrace_inbox SET id = 'ce:/shop e-1'"); err != nil {
		t.Fatal(err)
	}
	r := s.must(exitCanary, "dlt", "redrive", "--all", "--reason", "fixed", "--yes", "--canary", "--canary-wait", "10ms")
	if !strings.Contains(r.err, "1 of 1 messages were not handled within 10ms") || !strings.Contains(r.out, "1 of them were parked") {
		t.Errorf("%s%s", r.out, r.err)
	}
}

// asked answers a question with yes, after something has happened.
type asked struct {
	meanwhile func()
	text      strings.Reader
}

func (a *asked) Read(p []byte) (int, error) {
	if a.meanwhile != nil {
		a.meanwhile()
		a.meanwhile = nil
		a.text.Reset("y\n")
	}
	return a.text.Read(p)
}

// "discard: 13 dead letters?" stood on the screen; a 14th died, and was discarded with them, unseen.
func TestWhatComesMeanwhileIsLeftAlone(t *testing.T) {
	for _, command := range []string{"discard", "resolve", "purge", "redrive"} {
		t.Run(command, func(t *testing.T) {
			s := onJetStream(t)
			s.disaster()
			s.redriveTopic()
			s.indexes()
			in := &asked{meanwhile: func() {
				s.die(14, "{}", classify.VerdictRetry, "unavailable", "connection refused")
				s.indexes()
			}}
			var out, errs strings.Builder
			args := []string{"dlt", command, "--consumer", "billing.orders", "--reason", "x"}
			code := run(t.Context(), args, func(k string) string { return s.env[k] }, in, &out, &errs)
			if code != exitDone || !strings.Contains(errs.String(), "13 dead letters") {
				t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
			}
			letters, _, err := s.letters().List(t.Context(), deadletter.Filter{States: []deadletter.State{deadletter.New}}, false, deadletter.Cursor{}, 20)
			if err != nil || len(letters) != 1 || letters[0].MessageID != "ce:/shop e-14" {
				t.Errorf("%d letters are new, %v; want order 14 alone\n%s", len(letters), err, out.String())
			}
			if command == "redrive" {
				if got := s.redriven(); len(got) != 13 {
					t.Errorf("%d messages were redriven, want 13", len(got))
				}
			}
		})
	}
}

// A letter was redriven, and its message succeeded; somebody edited it afterwards.
func TestEditTellsTheStateAndRefusesWhatWasRedriven(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.redriveTopic()
	s.indexes()
	letters, _, err := s.letters().List(t.Context(), deadletter.Filter{}, false, deadletter.Cursor{}, 2)
	if err != nil || len(letters) != 2 {
		t.Fatal(letters, err)
	}
	edit := func(id string, more ...string) result {
		return s.run(append([]string{"dlt", "edit", id, "--set", "x=1", "--reason", "x"}, more...)...)
	}
	if r := edit(letters[0].ID); r.code != exitUnconfirmed || !strings.Contains(r.err, letters[0].ID+" (new)") {
		t.Errorf("the question does not tell the state: %d, %s", r.code, r.err)
	}
	s.must(exitDone, "dlt", "redrive", "--id", letters[0].ID, "--reason", "x", "--yes")
	if r := edit(letters[0].ID, "--yes"); r.code != exitPartly || !strings.Contains(r.err, "is redriven") || !strings.Contains(r.err, "--force") {
		t.Errorf("edit of what was redriven: %d, %s", r.code, r.err)
	}
	if r := edit(letters[0].ID, "--force"); r.code != exitUnconfirmed || !strings.Contains(r.err, "(redriven)") {
		t.Errorf("the question does not tell the state: %d, %s", r.code, r.err)
	}
	if r := edit(letters[0].ID, "--force", "--yes"); r.code != exitDone {
		t.Errorf("edit by force: %d, %s", r.code, r.err)
	}
}

// A key that is no plain text is listed as a hash, and by that name it was never found.
func TestParkedKeysAreFoundByTheirNames(t *testing.T) {
	s := onJetStream(t)
	const key = "größe 1"
	s.parked(key, 3)
	name := parking.Name(key)
	flags := []string{"--consumer", "billing.orders", "--reason", "x", "--yes"}
	for _, k := range []string{name, key} {
		if got := s.must(exitDone, "park", "ls", "--consumer", "billing.orders", "--key", k).out; !strings.Contains(got, key+"-c") {
			t.Errorf("park ls --key %s: %s", k, got)
		}
	}
	s.must(exitDone, append([]string{"park", "skip", "--key", name, "--seq", "1"}, flags...)...)
	s.must(exitDone, append([]string{"park", "skip", "--key", key, "--seq", "2"}, flags...)...)
	s.must(exitDone, append([]string{"park", "release", "--key", name}, flags...)...)
}

// "dlt purge --subject" was taken for all that there is to erase: the audit had the skipped message for 90 days. The runbook tells the
// statement.
func TestSkippedMessageIsErasedAsTheRunbookTells(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	statement := regexp.MustCompile("(?s)```sql\n(.*?)```").FindSubmatch(text)
	if statement == nil {
		t.Fatal("the runbook has no SQL")
	}
	s := onJetStream(t)
	s.parked("order-21", 1)
	s.must(exitDone, "park", "skip", "--consumer", "billing.orders", "--key", "order-21", "--seq", "1", "--reason", "INC-816", "--yes")
	audit := func() parking.Entry {
		entries, err := s.store.Parking().Audit(t.Context(), "billing.orders", 0, 10)
		if err != nil || len(entries) != 1 {
			t.Fatalf("%+v, %v; want one entry", entries, err)
		}
		return entries[0]
	}
	if e := audit(); e.Skipped == nil || e.Key != "order-21" {
		t.Fatalf("before: %+v", e)
	}
	if _, err := s.store.DB().ExecContext(t.Context(), string(statement[1])); err != nil {
		t.Fatal(err)
	}
	if e := audit(); e.Skipped != nil || e.Key != "erased" || e.Action != parking.ActionSkip || e.Reason.Reason != "INC-816" {
		t.Errorf("after: %+v; want that something was skipped, and no more", e)
	}
}

// What was published was a duplicate to a consumer that had parked it; "redriven 1 of 1", and the key stayed parked.
func TestRedriveWithoutADatabaseTellsOfParkedKeys(t *testing.T) {
	s := onJetStream(t)
	s.disaster()
	s.redriveTopic()
	const want = "without --database parked keys stay parked"
	args := []string{"dlt", "redrive", "--topic", "orders", "--reason", "x", "--yes", "--message-id"}
	delete(s.env, "HEADRACE_DATABASE")
	if r := s.must(exitDone, append(args, "ce:/shop e-4")...); !strings.Contains(r.err, want) {
		t.Errorf("it does not tell %q: %s", want, r.err)
	}
	if r := s.must(exitDone, "dlt", "redrive", "--help"); !strings.Contains(r.out, "WITHOUT --database") {
		t.Errorf("help: %s", r.out)
	}
	s.withSQLite()
	s.indexes()
	if r := s.must(exitDone, append(args, "ce:/shop e-5")...); strings.Contains(r.err, want) {
		t.Errorf("with a database: %s", r.err)
	}
}

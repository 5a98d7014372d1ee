package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fields are what other programs read; their names and order are a contract.
var fields = []string{
	"published", "deliveries", "effects", "duplicates", "stale", "retries", "dead_lettered",
	"order_violations", "lost", "elapsed_ms",
}

// start runs the program in this process and returns its exit code and what it printed.
func start(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// mustReport runs the program with -json, which must end with 0 and print one line.
func mustReport(t *testing.T, args ...string) report {
	t.Helper()
	code, stdout, stderr := start(t, append(args, "-json")...)
	if code != 0 {
		t.Fatalf("quickstart %v: exit code %d, want 0\nstdout: %s\nstderr: %s", args, code, stdout, stderr)
	}
	return parseReport(t, stdout)
}

func parseReport(t *testing.T, line string) report {
	t.Helper()
	if n := strings.Count(line, "\n"); n != 1 || !strings.HasSuffix(line, "\n") {
		t.Fatalf("-json printed %d lines, want one: %q", n, line)
	}
	var names []string
	for _, pair := range strings.Split(strings.Trim(line, "{}\n"), ",") {
		names = append(names, strings.Trim(strings.Split(pair, ":")[0], `"`))
	}
	if !slices.Equal(names, fields) {
		t.Errorf("-json has the fields %v, want %v", names, fields)
	}
	var r report
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		t.Fatalf("-json printed %q: %v", line, err)
	}
	return r
}

// part is how many messages of the input the tests use that are not about the whole of it.
const part = 180

// startPart runs the program on the beginning of the input. It also returns what went to standard error.
func startPart(t *testing.T, o options) (code int, r report, stderr string) {
	t.Helper()
	o.json, o.first = true, part
	if o.timeout == 0 {
		o.timeout = time.Minute
	}
	var out, errs bytes.Buffer
	code = execute(t.Context(), o, &out, &errs)
	return code, parseReport(t, out.String()), errs.String()
}

// wanted is the report of a whole run from nothing.
func wanted(t *testing.T) report {
	t.Helper()
	input, err := buildInput()
	if err != nil {
		t.Fatal(err)
	}
	x := expect(input)
	want := report{
		Published:    int64(len(input)),
		Deliveries:   int64(len(input)),
		Effects:      int64(len(x.effects)),
		Stale:        int64(len(x.stale)),
		DeadLettered: int64(len(x.dead)),
	}
	want.Duplicates = want.Published - want.Effects - want.Stale - want.DeadLettered
	for id := range x.effects {
		n := failures(id)
		if id == busyFor {
			n = max(n, 1)
		}
		want.Retries += int64(n)
	}
	return want
}

func TestEveryMessageTakesEffectOnceAndASecondRunHasNoEffect(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	want := wanted(t)

	got := mustReport(t, "-data", data)
	got.ElapsedMS = 0
	if got != want {
		t.Errorf("first run:\n got %+v\nwant %+v", got, want)
	}

	again := mustReport(t, "-data", data)
	again.ElapsedMS = 0
	want.Duplicates += want.Effects + want.Stale
	want.Effects, want.Stale, want.DeadLettered, want.Retries = 0, 0, 0, 0
	if again != want {
		t.Errorf("second run on the same data:\n got %+v\nwant %+v", again, want)
	}
}

func TestKilledHalfwayAndResumedHasTheSameOutcome(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "quickstart")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "-crash", "-json", "-data", t.TempDir())
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("quickstart -crash: %v\nstdout: %s\nstderr: %s", err, out, &stderr)
	}
	if !strings.Contains(stderr.String(), "the first process was killed") {
		t.Errorf("standard error tells nothing of a crash: %s", &stderr)
	}
	got, want := parseReport(t, string(out)), wanted(t)
	if got.Effects != want.Effects || got.Stale != want.Stale || got.DeadLettered != want.DeadLettered {
		t.Errorf("got %+v\nwant the effects, stale and dead letters of a run without a crash, %+v", got, want)
	}
	if got.Lost != 0 || got.OrderViolations != 0 {
		t.Errorf("got %d lost and %d order violations, want none", got.Lost, got.OrderViolations)
	}
	if got.Published < want.Published {
		t.Errorf("got %d published, want at least %d", got.Published, want.Published)
	}
}

func TestProducerResumesWhereItWasConfirmed(t *testing.T) {
	t.Parallel()
	// A process dies while it publishes: what was on its way is sent again, what was confirmed is not, and
	// nothing is left out.
	data, ctx := t.TempDir(), t.Context()
	j := &job{options: options{data: data, first: 60}, logger: newLogger(options{}, io.Discard), tracing: &tracing{}}
	err := j.open(ctx)
	if err == nil {
		err = j.producer.run(ctx)
	}
	if err == nil {
		_, err = j.producer.db.ExecContext(ctx, `UPDATE position SET next = 40`)
	}
	if err := errors.Join(err, j.close(), j.tracing.close()); err != nil {
		t.Fatal(err)
	}

	code, got, stderr := startPart(t, options{data: data})
	want := report{Published: part - 40, Deliveries: part + 20}
	if code != 0 || got.Published != want.Published || got.Deliveries != want.Deliveries || got.Lost != 0 {
		t.Errorf("exit code %d, report %+v\nwant 0, %d published, %d deliveries, none lost; stderr: %s",
			code, got, want.Published, want.Deliveries, stderr)
	}
}

func TestBooksThatDoNotBalanceFailTheRun(t *testing.T) {
	t.Parallel()
	code, got, stderr := startPart(t, options{withhold: []string{"delivery-0003", "broken-02"}})
	if code != 1 || got.Lost != 2 {
		t.Errorf("exit code %d and %d lost, want 1 and 2", code, got.Lost)
	}
	for _, want := range []string{"effects: 1 missing: delivery-0003", "dead letters: 1 missing: broken-02"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("standard error has no %q:\n%s", want, stderr)
		}
	}
}

func TestOrderCheckSeesAnEffectBehindALaterOne(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	store, err := openStore(ctx, filepath.Join(t.TempDir(), "tracker.db"), trackerSchema)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, e := range []struct {
		id, key  string
		sequence int
	}{{"a1", "a", 1}, {"a3", "a", 3}, {"b2", "b", 2}, {"a2", "a", 2}, {"a4", "a", 4}, {"b2 again", "b", 2}} {
		tx, err := store.DB().BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = checkOrder(ctx, tx, event.Envelope{ID: e.id, PartitionKey: e.key}, e.sequence)
		if err == nil {
			_, err = tx.ExecContext(ctx, `INSERT INTO effects VALUES (?, '', ?, ?, '', '', '')`, e.id, e.key, e.sequence)
		}
		if err := errors.Join(err, tx.Commit()); err != nil {
			t.Fatal(err)
		}
	}
	b := &books{tracker: store.DB()}
	if err := b.checkOrder(ctx, expectation{}); err != nil {
		t.Fatal(err)
	}
	want := []string{"order of a: a2, number 2, took effect after number 3", "order of b: b2 again, number 2, took effect after number 2"}
	if b.violations != 2 || !slices.Equal(b.problems, want) {
		t.Errorf("%d violations: %q\nwant 2: %q", b.violations, b.problems, want)
	}
}

func TestTimeoutNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	code, got, stderr := startPart(t, options{timeout: time.Millisecond})
	if code != 1 || !strings.Contains(stderr, "-timeout 1ms; waiting for ") || got.Lost == 0 {
		t.Errorf("exit code %d, report %+v\nwant 1, something lost, and what was waited for; stderr: %s", code, got, stderr)
	}
}

func TestTraceFollowsAWebhookOverBothServices(t *testing.T) {
	t.Parallel()
	code, _, stdout := startPart(t, options{trace: true})
	if code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, stdout)
	}
	first, _, _ := strings.Cut(stdout[strings.Index(stdout, "trace "):], "\ntrace ")
	for _, span := range []string{"\n  receive webhook  [github]", "\n    process github.webhooks  [tracker]", "process tracker.changes  [notifier]"} {
		if !strings.Contains(first, span) {
			t.Errorf("the first trace has no span %q:\n%s", span, first)
		}
	}
	if !strings.Contains(stdout, "headrace.outcome=dead_lettered") || !strings.Contains(stdout, "headrace.retry") {
		t.Errorf("no trace of a dead letter, or none of a retry:\n%s", stdout)
	}
}

func TestTracesAreExported(t *testing.T) {
	var posts atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			posts.Add(1)
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	if code, _, stderr := startPart(t, options{}); code != 0 {
		t.Fatalf("exit code %d, want 0: %s", code, stderr)
	}
	if posts.Load() == 0 {
		t.Error("nothing was posted to OTEL_EXPORTER_OTLP_ENDPOINT/v1/traces")
	}
}

func TestTracesThatCannotBeExportedFailNothing(t *testing.T) {
	collector := httptest.NewServer(http.NotFoundHandler())
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	collector.Close() // refuses connections from now on
	code, _, stderr := startPart(t, options{})
	if code != 0 || !strings.Contains(stderr, "traces were not exported") {
		t.Errorf("exit code %d, want 0 and a word about the traces; stderr: %s", code, stderr)
	}
}

func TestInputIsWhatItClaimsToBe(t *testing.T) {
	input, err := buildInput()
	if err != nil {
		t.Fatal(err)
	}
	again, err := buildInput()
	if err != nil {
		t.Fatal(err)
	}
	counts, uuids := map[injection]int{}, map[string]bool{}
	for i, w := range input {
		counts[w.injected]++
		if uuids[w.message.UUID] {
			t.Errorf("two messages have the UUID %s", w.message.UUID)
		}
		uuids[w.message.UUID] = true
		if got := injection(w.message.Metadata[metaInjected]); got != w.injected {
			t.Errorf("message %s is marked as injected %q, want %q", w.message.UUID, got, w.injected)
		}
		if !w.message.Equals(again[i].message) {
			t.Errorf("message %s differs from one call to the next", w.message.UUID)
		}
	}
	if got, want := fmt.Sprint(counts), fmt.Sprint(map[injection]int{"": 329, duplicate: 65, stale: 19, broken: 20}); got != want {
		t.Errorf("input has %s, want %s", got, want)
	}
	x := expect(input)
	for _, w := range input {
		if w.injected == stale {
			if _, ok := x.stale[w.id]; !ok {
				t.Errorf("%s was injected as stale and is not", w.id)
			}
		}
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"now"}, `unexpected argument "now"`},
		{[]string{"-timeout", "-1s"}, "-timeout is -1s"},
		{[]string{"-kill-at", "-3"}, "-kill-at is -3"},
		{[]string{"-crash", "-kill-at", "3"}, "-crash sets -kill-at itself"},
		{[]string{"-nonsense"}, "-nonsense"},
	} {
		if code, _, stderr := start(t, c.args...); code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("quickstart %v: exit code %d and %q, want 2 and %q", c.args, code, stderr, c.want)
		}
	}
	if code, _, stderr := start(t, "-h"); code != 0 || !strings.Contains(stderr, "Usage") {
		t.Errorf("quickstart -h: exit code %d and %q, want 0 and the usage", code, stderr)
	}
}

func TestInterruptEndsTheRunAndTellsWhatIsLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stdout bytes.Buffer
	stderr := &tripwire{on: "router: ", trip: cancel} // a service runs
	code := run(ctx, []string{"-json", "-v"}, &stdout, stderr)
	log := stderr.buf.String()
	if code != 1 || !strings.Contains(log, "context canceled; waiting for ") || strings.Contains(log, "do not balance") {
		t.Errorf("exit code %d, want 1, what was waited for and no complaint about the books; stderr:\n%s", code, log)
	}
}

// tripwire calls trip when on is written to it.
type tripwire struct {
	on   string
	trip func()
	mu   sync.Mutex
	buf  bytes.Buffer
}

func (w *tripwire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Contains(p, []byte(w.on)) {
		w.trip()
	}
	return w.buf.Write(p)
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A mutant that does not fit the program any more proves nothing. This is what CI runs of them; make mutants runs the tests
// against each.
func TestMutantsApplyAndCompile(t *testing.T) {
	mutants, err := load("testdata")
	if err != nil {
		t.Fatal(err)
	}
	root, err := moduleRoot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := newRunner(root, t.TempDir(), limit)
	each := map[string]int{}
	var compiling sync.WaitGroup
	slots := make(chan struct{}, 2)
	for _, m := range mutants {
		each[m.invariant]++
		overlay, err := r.overlay(m)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		slots <- struct{}{}
		compiling.Go(func() {
			defer func() { <-slots }()
			if err := r.compile(t.Context(), m, overlay); err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
		})
	}
	compiling.Wait()
	for n := 1; n <= 12; n++ {
		name := fmt.Sprint("I", n)
		if each[name] < 2 {
			t.Errorf("%d mutants of %s, want at least 2", each[name], name)
		}
	}
}

// bank is a module with tests that notice some faults.
var bank = map[string]string{
	"go.mod": "module example.test/bank\n\ngo 1.24\n",
	"account/account.go": `package account

// Take takes n from balance.
func Take(balance, n int) int {
	if n > balance {
		return balance
	}
	return balance - n
}

func wait() bool { return true }
`,
	"account/account_test.go": `package account

import "testing"

func TestTake(t *testing.T) {
	if got := Take(3, 2); got != 1 {
		t.Errorf("got %d, want 1", got)
	}
}

func TestWait(t *testing.T) {
	for !wait() {
	}
}

func TestSkips(t *testing.T) { t.Skip("no server") }

func TestFails(t *testing.T) { t.Error("always") }
`,
}

func write(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestOutcomes(t *testing.T) {
	const minus, wait = "-\treturn balance - n\n", "-func wait() bool { return true }\n"
	for _, tt := range []struct {
		name, tests, edit string
		want              outcome
		say               string // in the test's name, or in the error
	}{
		{"caught", "^TestTake$", minus + "+\treturn balance + n\n", caught, "TestTake"},
		{"caught by a panic", "^TestTake$", minus + "+\tpanic(n)\n", caught, "TestTake"},
		{"caught by the end of the process", "^TestTake$", minus + "+\tgo panic(n)\n+\tselect {}\n", caught, "panic: 2"},
		{"hangs", "^TestWait$", wait + "+func wait() bool { return false }\n", timedOut, "TestWait"},
		{"survives", "^TestTake$", "-\tif n > balance {\n+\tif n >= balance {\n", survived, "./account ^TestTake$"},
		{"does not apply", "^TestTake$", "-\treturn balance * n\n+\treturn n\n", broken, "account.go has this 0 times"},
		{"applies twice", "^TestTake$", "-\n+// Nothing.\n", broken, "account.go has this 2 times"},
		{"does not apply to a part of a line", "^TestTake$", "-balance - n\n+n\n", broken, "account.go has this 0 times"},
		{"does not compile", "^TestTake$", minus + "+\treturn true\n", broken, "does not compile"},
		{"tests fail anyway", "^TestFails$", minus + "+\treturn n\n", broken, "fails without a fault"},
		{"tests skip", "^TestTake$|^TestSkips$", minus + "+\treturn n\n", broken, "skips a test"},
		{"no such test", "^TestNothing$", minus + "+\treturn n\n", broken, "runs no test"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := write(t, bank)
			m, err := parse("I1-x", "invariant: I1\nfault: x\ntest: ./account "+tt.tests+"\n\n@@ account/account.go\n"+tt.edit)
			if err != nil {
				t.Fatal(err)
			}
			res := newRunner(root, t.TempDir(), 2*time.Second).try(t.Context(), m)
			said := res.by
			if res.outcome == broken {
				said = res.err.Error()
			}
			if res.outcome != tt.want || !strings.Contains(said, tt.say) {
				t.Errorf("got %v by %q (%v), want %v with %q\n%s", res.outcome, res.by, res.err, tt.want, tt.say, res.output)
			}
			if after, err := os.ReadFile(filepath.Join(root, "account/account.go")); err != nil || string(after) != bank["account/account.go"] {
				t.Errorf("the program was changed: %v\n%s", err, after)
			}
		})
	}
}

// The sum is what is read: one that survives, or is not known, must not look like a success.
func TestOneThatIsNotCaughtIsAnError(t *testing.T) {
	root := write(t, bank)
	var mutants []mutant
	for name, change := range map[string]string{
		"I1-caught": "-\treturn balance - n\n+\treturn n\n", "I1-survives": "-\tif n > balance {\n+\tif n >= balance {\n", "I1-broken": "-x\n+y\n",
	} {
		m, err := parse(name, "invariant: I1\nfault: It is "+name+".\ntest: ./account ^TestTake$\n\n@@ account/account.go\n"+change)
		if err != nil {
			t.Fatal(err)
		}
		mutants = append(mutants, m)
	}
	var out strings.Builder
	err := tryAll(t.Context(), &out, newRunner(root, t.TempDir(), limit), mutants, false)
	if err == nil || err.Error() != "1 survived, of 1 nothing is known" {
		t.Errorf("got %v, want an error that counts one of each", err)
	}
	for _, want := range []string{"caught 1 of 3, 0 of them by timeout", "It is I1-survives.", "account.go has this 0 times"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", out.String(), want)
		}
	}
	out.Reset()
	for _, m := range mutants {
		if m.name != "I1-caught" {
			continue
		}
		if err := tryAll(t.Context(), &out, newRunner(root, t.TempDir(), limit), []mutant{m}, false); err != nil {
			t.Errorf("all are caught and the error is %v", err)
		}
	}
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	const good = "invariant: I3\nfault: f\ntest: ./ordering X\n\n@@ a/b.go\n-x\n+y\n"
	m, err := parse("I3-a", good)
	if err != nil || m.edits[0] != (edit{"a/b.go", "x\n", "y\n"}) || m.tests[0] != (suite{"./ordering", "X"}) {
		t.Fatalf("got %+v, %v", m, err)
	}
	two, err := parse("I3-a", good+"\n \tc\n\n-d\n@@ e.go\n f\n+g\n")
	if err != nil || len(two.edits) != 2 || two.edits[0].find != "x\n\n\tc\n\nd\n" || two.edits[1] != (edit{"e.go", "f\n", "f\ng\n"}) {
		t.Errorf("two edits: got %+v, %v", two.edits, err)
	}
	for name, tt := range map[string]struct{ name, old, new, want string }{
		"unknown field":  {"I3-a", "fault: f", "flaw: f", `line 2: "flaw: f"`},
		"no invariant":   {"I3-a", "I3", "I13", `invariant is "I13"`},
		"another name":   {"I4-a", "", "", `"I4-a" does not begin with "I3-"`},
		"no fault":       {"I3-a", "fault: f\n", "", "fault is empty"},
		"no test":        {"I3-a", "test: ./ordering X\n", "", "no test"},
		"bad package":    {"I3-a", "./ordering", "ordering", `"ordering": want a package`},
		"bad expression": {"I3-a", "X", "(", "error parsing regexp"},
		"no edit":        {"I3-a", "@@ a/b.go\n-x\n+y\n", "", "no edit"},
		"odd line":       {"I3-a", "+y", "y", `line "y"`},
		"no change":      {"I3-a", "+y", "+x", "and a change"},
		"outside":        {"I3-a", "a/b.go", "../b.go", "a file of the module"},
	} {
		if _, err := parse(tt.name, strings.Replace(good, tt.old, tt.new, 1)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tt.want)
		}
	}
	if _, err := load(t.TempDir()); err == nil {
		t.Error("a directory without mutants is no error")
	}
}

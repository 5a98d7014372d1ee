package telemetry_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/headrace-go/headrace/internal/flight"
)

// find returns the first group of what expr matches in a file, each once, in order.
func find(t *testing.T, file, expr string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(string(text), -1) {
		found = append(found, strings.Join(strings.Fields(m[1]), " "))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func wantSame(t *testing.T, what string, got, want []string) {
	t.Helper()
	if len(want) == 0 {
		t.Errorf("%s: the test found nothing to compare with", what)
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s: %q is not there", what, name)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s: %q is missing", what, name)
		}
	}
}

// The package's comment is the contract of names. It lacked two outcomes and 19 metrics.
func TestDocNamesWhatThereIs(t *testing.T) {
	const golden = "testdata/metrics.golden"
	wantSame(t, "the golden file's metrics, beside semconv.go's",
		find(t, golden, `(?m)^(\S+), `), find(t, "semconv.go", `instrument\{\s+"([^"]+)"`))
	wantSame(t, "doc.go's own metrics, beside the golden file's",
		find(t, "doc.go", `(?m)^//\t(headrace\.\S+ +\S+, \S+)`), spaced(find(t, golden, `(?m)^(headrace\.\S+, \S+, \w+)`)))
	wantSame(t, "doc.go's metrics by the conventions, beside the golden file's",
		find(t, "doc.go", `\b(messaging\.(?:process|client)\.[a-z.]+[a-z])`), find(t, golden, `(?m)^(messaging\.\S+), `))

	outcomes := find(t, golden, `headrace\.outcome = (\S+)`)
	paragraph := find(t, "doc.go", `(?s)headrace\.outcome\n(.*?)\n//\n`)
	if len(paragraph) != 1 {
		t.Fatalf("doc.go has %d paragraphs of outcomes, want 1", len(paragraph))
	}
	var named []string
	for _, m := range regexp.MustCompile(`"([a-z_]+)"`).FindAllStringSubmatch(paragraph[0], -1) {
		named = append(named, m[1])
	}
	wantSame(t, "doc.go's outcomes, beside the golden file's", named, outcomes)
	all := find(t, "semconv.go", `outcome\w+\s+= "([a-z_]+)"`)
	for r := flight.NoReceipt + 1; r.String() != "unknown"; r++ {
		all = append(all, r.String())
	}
	wantSame(t, "the golden file's outcomes, beside the constants", outcomes, all)
}

// spaced turns "name, unit, kind" into doc.go's "name kind, unit".
func spaced(list []string) []string {
	for i, line := range list {
		parts := strings.Split(line, ", ")
		list[i] = parts[0] + " " + parts[2] + ", " + parts[1]
	}
	return list
}

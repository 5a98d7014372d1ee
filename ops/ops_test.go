package ops_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	rulesFile     = "prometheus/headrace.rules.yaml"
	rulesTest     = "prometheus/headrace.test.yaml"
	dashboardFile = "grafana/headrace.json"
)

// exported returns the names that OpenTelemetry's Prometheus exporter gives to the metrics and attributes that
// telemetry emits, as its golden file tells them.
func exported(t *testing.T) (metrics, labels map[string]bool) {
	t.Helper()
	golden, err := os.ReadFile("../telemetry/testdata/metrics.golden")
	if err != nil {
		t.Fatal(err)
	}
	metrics, labels = map[string]bool{}, map[string]bool{}
	header := regexp.MustCompile(`^([a-z_.]+), ([^,]+), (\w+)`)
	attribute := regexp.MustCompile(`^    ([a-z_.]+) = `)
	for line := range strings.Lines(string(golden)) {
		if m := attribute.FindStringSubmatch(line); m != nil {
			labels[strings.ReplaceAll(m[1], ".", "_")] = true
		}
		m := header.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := strings.ReplaceAll(m[1], ".", "_")
		switch unit := m[2]; {
		case unit == "s":
			name += "_seconds"
		case !strings.HasPrefix(unit, "{"): // others are annotations, which the exporter leaves out
			t.Fatalf("metric %s has the unit %q: teach this test what the exporter makes of it", m[1], unit)
		}
		switch m[3] {
		case "counter":
			metrics[name+"_total"] = true
		case "histogram":
			metrics[name+"_bucket"], metrics[name+"_sum"], metrics[name+"_count"] = true, true, true
		default:
			metrics[name] = true
		}
	}
	if len(metrics) < 20 || len(labels) < 5 {
		t.Fatalf("the golden file gave %d metrics and %d labels: was its form changed?", len(metrics), len(labels))
	}
	return metrics, labels
}

var ourNames = regexp.MustCompile(`\b(headrace|messaging)_[a-z_]+\b`)

// unknown returns the names in text that are neither a metric nor a label.
func unknown(text string, metrics, labels map[string]bool) (names []string) {
	for _, name := range ourNames.FindAllString(text, -1) {
		if !metrics[name] && !labels[name] && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func TestRulesAndDashboardNameMetricsThatAreEmitted(t *testing.T) {
	metrics, labels := exported(t)
	for _, file := range []string{rulesFile, rulesTest, dashboardFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if names := unknown(string(text), metrics, labels); names != nil {
			t.Errorf("%s names %q, which telemetry does not emit", file, names)
		}
	}
	if got := unknown("rate(headrace_consumer_lagg[5m]) / headrace_consumer_lag", metrics, labels); !slices.Equal(got, []string{"headrace_consumer_lagg"}) {
		t.Errorf("unknown() = %q, want the misspelt one", got)
	}
}

func TestEveryAlertIsTestedFiringAndSilent(t *testing.T) {
	rules, tests := read(t, rulesFile), read(t, rulesTest)
	alerts := regexp.MustCompile(`(?m)^\s+- alert: (\w+)$`).FindAllStringSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alert found")
	}
	for _, alert := range alerts {
		if !strings.Contains(tests, "alertname: "+alert[1]+"}") {
			t.Errorf("%s has no test of its silence", alert[1])
		}
		if !strings.Contains(tests, "alertname: "+alert[1]+"\n        exp_alerts:") {
			t.Errorf("%s has no test of its firing", alert[1])
		}
	}
}

// dashboard is what is checked of the file.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, W int }
		Targets []struct{ Expr string }
	}
	Annotations struct{ List []struct{ Expr string } }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	return d
}

func TestDashboardPanelsAreWhole(t *testing.T) {
	ids := map[int]string{}
	for _, p := range readDashboard(t).Panels {
		if other, taken := ids[p.ID]; taken {
			t.Errorf("panels %q and %q have the id %d", other, p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q reaches to column %d of 24", p.Title, p.GridPos.X+p.GridPos.W)
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
	}
}

// Prometheus's own tool reads the rules, runs their tests, and reads the dashboard's expressions.
func TestRulesAndExpressionsWithPromtool(t *testing.T) {
	promtool := os.Getenv("HEADRACE_PROMTOOL")
	if promtool == "" {
		found, err := exec.LookPath("promtool")
		if err != nil {
			const how = "promtool is not there: export HEADRACE_PROMTOOL=$(ops/promtool)"
			if os.Getenv("CI") == "true" {
				t.Fatal(how)
			}
			t.Skip(how)
		}
		promtool = found
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("check", "rules", rulesFile)
	run("test", "rules", rulesTest)

	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	n := 0
	record := func(expr string) {
		n++
		expr = strings.NewReplacer("$__rate_interval", "5m", "$consumer", ".*").Replace(expr)
		quoted, err := json.Marshal(expr) // a JSON string is a YAML string
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&rules, "      - record: panel:%d\n        expr: %s\n", n, quoted)
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			record(target.Expr)
		}
	}
	for _, a := range d.Annotations.List {
		record(a.Expr)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run("check", "rules", file)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

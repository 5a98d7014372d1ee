// Package headrace_test holds the tests of the module as a whole.
package headrace_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"strings"
	"testing"
)

const module = "github.com/headrace-go/headrace/"

// rules is DESIGN.md's table of packages: what each may not reach, directly or through others.
// A pattern ending in /... covers the package and all below it.
var rules = []struct {
	packages string
	mustNot  []string
	reason   string
}{
	{
		"classify",
		[]string{module + "...", "log/slog", "github.com/...", "google.golang.org/...", "modernc.org/...", "go.opentelemetry.io/..."},
		"classify judges an error and nothing else: no I/O, no log, no driver",
	},
	{
		"event/...",
		[]string{module + "runtime", module + "middleware", module + "brokers/*"},
		"an event is the same whoever carries or handles it",
	},
	{
		"ordering/...",
		[]string{module + "middleware", module + "runtime", module + "brokers/*"},
		"order is decided before any stage sees the message",
	},
	{
		"middleware/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"each stage is usable alone on a plain Watermill router",
	},
	{
		"poison/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"a dead letter goes through any Watermill publisher",
	},
	{
		"parking/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"the protocol does not know the databases that keep it",
	},
	{
		"inbox/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"the contract does not know the databases that fulfil it",
	},
	{
		"outbox/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"the relay publishes through any Watermill publisher from any source",
	},
	{
		"deadletter/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"an operator's work does not depend on the broker or the database",
	},
	{
		"ledger/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/..."},
		"the contract does not know the databases that fulfil it",
	},
	{
		"telemetry/...",
		[]string{module + "runtime", module + "brokers/*", module + "stores/...", "go.opentelemetry.io/otel/sdk/..."},
		"the program chooses the SDK and the exporter",
	},
	{
		"stores/...",
		[]string{module + "runtime", module + "brokers/*"},
		"a database knows no broker",
	},
	{
		"brokers",
		[]string{module + "runtime", module + "ordering", module + "middleware", module + "stores/..."},
		"the contract is a leaf",
	},
	{
		"stores/sqlstore",
		[]string{"github.com/jackc/...", "modernc.org/...", "github.com/go-sql-driver/..."},
		"no user compiles a driver that they did not choose",
	},
	{
		"stores/pgxstore",
		[]string{"modernc.org/...", "github.com/go-sql-driver/..."},
		"no user compiles a driver that they did not choose",
	},
	{
		"runtime",
		[]string{module + "brokers/*", module + "stores/...", "github.com/nats-io/...", "github.com/twmb/...", "github.com/IBM/...", "github.com/jackc/...", "modernc.org/...", "github.com/go-sql-driver/...", "google.golang.org/...", "go.opentelemetry.io/otel/sdk/..."},
		"a user of runtime never compiles a broker SDK, a driver or an exporter that they did not choose",
	},
	{
		"brokers/jetstream",
		[]string{"github.com/nats-io/nats-server/..."},
		"a user with a URL does not compile the server",
	},
}

// adapters know no other adapter.
var adapters = []string{
	"brokers/amqp", "brokers/jetstream", "brokers/kafka", "brokers/memory", "brokers/postgres", "brokers/pulsar",
	"brokers/redisstream", "brokers/sqs",
}

func TestImportTable(t *testing.T) {
	deps := dependencies(t)
	for _, rule := range rules {
		matched := false
		for pkg, reached := range deps {
			if !matches(module+rule.packages, pkg) {
				continue
			}
			matched = true
			for _, dep := range reached {
				for _, bad := range rule.mustNot {
					if dep != pkg && matches(bad, dep) && !strings.HasPrefix(dep, pkg+"/") {
						t.Errorf("%s reaches %s, forbidden by %q: %s", pkg, dep, bad, rule.reason)
					}
				}
			}
		}
		if !matched {
			t.Errorf("the rule for %q matches no package: the table is out of date", rule.packages)
		}
	}
}

func TestAdaptersKnowNoOtherAdapter(t *testing.T) {
	deps := dependencies(t)
	for _, a := range adapters {
		for _, dep := range deps[module+a] {
			for _, other := range adapters {
				if other != a && matches(module+other+"/...", dep) {
					t.Errorf("%s reaches %s: an adapter knows no other", a, dep)
				}
			}
		}
	}
}

// matches tells whether pkg is covered by pattern: itself, "x/..." for x and all below, "x..." for a
// prefix, "x/*" for all below x.
func matches(pattern, pkg string) bool {
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == base || strings.HasPrefix(pkg, base+"/")
	}
	if base, ok := strings.CutSuffix(pattern, "..."); ok {
		return strings.HasPrefix(pkg, base)
	}
	if base, ok := strings.CutSuffix(pattern, "/*"); ok {
		return strings.HasPrefix(pkg, base+"/")
	}
	return pkg == path.Clean(pattern)
}

// dependencies lists what each package of the module reaches, tests left out.
func dependencies(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Deps", "./...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	deps := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			return deps
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(pkg.ImportPath, module) {
			deps[pkg.ImportPath] = pkg.Deps
		}
	}
}

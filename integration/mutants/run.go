package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// outcome is what became of a mutant.
type outcome int

const (
	broken   outcome = iota // it does not apply or compile, or the tests fail without it: nothing is known
	survived                // the tests do not notice it
	caught                  // a test fails
	timedOut                // a test does not end within the limit
)

var outcomeNames = [...]string{"BROKEN", "SURVIVED", "caught", "caught by timeout"}

func (o outcome) String() string { return outcomeNames[o] }

// result is the outcome of one mutant.
type result struct {
	mutant
	outcome outcome
	by      string // the test that failed, or all that were tried
	took    time.Duration
	err     error  // broken: why
	output  string // of the tests
}

// runner tries mutants of one module, one after the other. It changes no file of the module: the compiler reads the
// mutated ones in the place of the others.
type runner struct {
	root string // of the module
	temp string

	// limit bounds one run of a suite, on top of four times what it takes without a fault.
	limit time.Duration

	baselines map[suite]baseline
	binaries  map[string]string // tests without a fault, by package
}

type baseline struct {
	took time.Duration
	err  error
}

func newRunner(root, temp string, limit time.Duration) *runner {
	return &runner{root: root, temp: temp, limit: limit, baselines: map[suite]baseline{}, binaries: map[string]string{}}
}

// try finds out whether the tests notice m.
func (r *runner) try(ctx context.Context, m mutant) (res result) {
	began := time.Now()
	defer func() { res.took = time.Since(began) }()
	res.mutant = m
	for _, s := range m.tests {
		if res.err = r.baseline(ctx, s); res.err != nil {
			return res
		}
	}
	overlay, err := r.overlay(m)
	if err != nil {
		res.err = err
		return res
	}
	if res.err = r.compile(ctx, m, overlay); res.err != nil {
		return res
	}
	res.outcome = survived
	var tried []string
	for _, s := range m.tests {
		tried = append(tried, s.String())
		out, err := r.test(ctx, s, overlay, r.limit+4*r.baselines[s].took)
		res.output += out
		var exit *exec.ExitError
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			res.outcome, res.err = broken, ctx.Err()
		case !errors.As(err, &exit) || exit.ExitCode() < 0:
			res.outcome, res.err = broken, fmt.Errorf("%s: %w", s, err)
		case strings.Contains(out, "panic: test timed out after "):
			res.outcome, res.by = timedOut, s.pkg+" "+running(out)
		default:
			res.outcome, res.by = caught, s.pkg+" "+failing(out)
		}
		return res
	}
	res.by = strings.Join(tried, ", ")
	return res
}

// baseline runs s without a fault, once. It must pass, run at least one test and skip none.
func (r *runner) baseline(ctx context.Context, s suite) error {
	b, known := r.baselines[s]
	if !known {
		if _, err := r.build(ctx, s.pkg, ""); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		began := time.Now()
		out, err := r.test(ctx, s, "", 10*time.Minute, "-test.v")
		b.took = time.Since(began)
		switch {
		case err != nil:
			b.err = fmt.Errorf("%s fails without a fault: %w\n%s", s, err, tail(out))
		case !passed.MatchString(out):
			b.err = fmt.Errorf("%s runs no test", s)
		case skipped.MatchString(out):
			b.err = fmt.Errorf("%s skips a test", s)
		}
		if ctx.Err() == nil {
			r.baselines[s] = b
		}
	}
	return b.err
}

// overlay writes what m changes and returns the name of the file that tells the compiler so.
func (r *runner) overlay(m mutant) (string, error) {
	files, err := m.apply(r.root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(r.temp, m.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	replace := map[string]string{}
	for file, text := range files {
		mutated := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(mutated, []byte(text), 0o644); err != nil {
			return "", err
		}
		replace[filepath.Join(r.root, filepath.FromSlash(file))] = mutated
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	name := filepath.Join(dir, "overlay.json")
	return name, os.WriteFile(name, text, 0o644)
}

// compile compiles the packages that m changes.
func (r *runner) compile(ctx context.Context, m mutant, overlay string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-overlay", overlay}, m.packages()...)...)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("does not compile: %w\n%s", err, tail(string(out)))
	}
	return nil
}

// build builds the tests of pkg and returns the program. That without a fault is built once.
func (r *runner) build(ctx context.Context, pkg, overlay string) (binary string, err error) {
	args := []string{"test", "-c", "-ldflags=-w", "-o"}
	if overlay == "" {
		if binary = r.binaries[pkg]; binary != "" {
			return binary, nil
		}
		binary = filepath.Join(r.temp, fmt.Sprintf("sound-%d.test", len(r.binaries)))
		args = append(args, binary)
	} else {
		binary = filepath.Join(r.temp, "mutant.test")
		args = append(args, binary, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the tests: %s\n%s", err, tail(string(out))) //nolint:errorlint // its exit code is not that of tests
	}
	if overlay == "" {
		r.binaries[pkg] = binary
	}
	return binary, nil
}

// test runs s in the package's directory, as go test does. An *exec.ExitError with a code is that of the tests.
func (r *runner) test(ctx context.Context, s suite, overlay string, limit time.Duration, flags ...string) (output string, err error) {
	binary, err := r.build(ctx, s.pkg, overlay)
	if err != nil {
		return "", err
	}
	flags = append([]string{"-test.failfast", "-test.timeout=" + limit.String(), "-test.run=" + s.run}, flags...)
	quick, err := r.rapidFlags(ctx, s.pkg)
	if err != nil {
		return "", err
	}
	// The tests end by themselves at the limit. One that does not even do that is killed, and proves nothing.
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(flags, quick...)...)
	cmd.Dir = filepath.Join(r.root, filepath.FromSlash(s.pkg))
	cmd.Env = append(os.Environ(), "CI=true") // a server that is missing is a failure
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	return out.String(), err
}

// rapidFlags keep package rapid from writing down the schedules that fail, and from spending time on shorter ones.
func (r *runner) rapidFlags(ctx context.Context, pkg string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-test", "-deps", "-f", "{{.ImportPath}}", pkg)
	cmd.Dir = r.root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list what %s imports: %w", pkg, err)
	}
	if !strings.Contains(string(out), "pgregory.net/rapid\n") {
		return nil, nil
	}
	return []string{"-rapid.nofailfile", "-rapid.shrinktime=1ms"}, nil
}

var (
	passed      = regexp.MustCompile(`(?m)^--- PASS: `) // subtests are indented: a suite may leave out what does not apply
	skipped     = regexp.MustCompile(`(?m)^--- SKIP: `)
	failedTest  = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	runningTest = regexp.MustCompile(`(?m)^\s+(\S+) \(\d`)
	panicked    = regexp.MustCompile(`(?m)^(?:panic|fatal error): .*`)
)

// failing names the first test that failed, or what else the tests ended with.
func failing(output string) string {
	if m := failedTest.FindStringSubmatch(output); m != nil {
		return m[1]
	}
	if m := panicked.FindString(output); m != "" {
		return fmt.Sprintf("%.80s", m)
	}
	return "after the last test" // what package leak finds
}

// running names a test that did not end in time.
func running(output string) string {
	_, output, _ = strings.Cut(output, "running tests:")
	if m := runningTest.FindStringSubmatch(output); m != nil {
		return m[1]
	}
	return ""
}

// tail is the end of an output.
func tail(output string) string {
	const most = 4 << 10
	return output[max(0, len(output)-most):]
}

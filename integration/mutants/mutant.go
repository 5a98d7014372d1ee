package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// suffix is that of a mutant's file.
const suffix = ".mutant"

// mutant is one deliberate fault. Its file begins with fields and goes on with edits, which look like those of a unified
// diff but for the line numbers, so that a change elsewhere in the file does not matter:
//
//	invariant: I3
//	fault: What is wrong with the program, in one sentence.
//	test: ./ordering TestL3LanesAgreeWithNaiveModel|TestI3EqualKeysNeverOverlapAndKeepTheirOrder
//
//	@@ ordering/lanes.go
//	 	d.lane = ln
//	-	if ln.head != nil {
//	+	if false {
//
// The lines of an edit that begin with a space or a minus must be in the file exactly once.
type mutant struct {
	name      string
	invariant string // I1 to I12 of DESIGN.md
	fault     string
	tests     []suite // tried in order until one of them fails
	edits     []edit
}

// suite is tests of one package: those that run matches, or all where it is empty.
type suite struct{ pkg, run string }

func (s suite) String() string { return strings.TrimSpace(s.pkg + " " + s.run) }

// edit replaces one piece of a file, whose name is relative to the module's root and has slashes.
type edit struct{ file, find, replace string }

var isInvariant = regexp.MustCompile(`^I([1-9]|1[0-2])$`)

// load reads the mutants of a directory, in the order of their invariants.
func load(dir string) ([]mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no %s files in %s", suffix, dir)
	}
	var all []mutant
	var errs []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(file), suffix), string(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file, err))
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b mutant) int {
		return cmp.Or(cmp.Compare(number(a.invariant), number(b.invariant)), cmp.Compare(a.name, b.name))
	})
	return all, errors.Join(errs...)
}

// number is n of invariant In.
func number(invariant string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(invariant, "I")) // parse has checked it
	return n
}

// parse reads one mutant. Its error names the line or the field that is wrong.
func parse(name, text string) (mutant, error) {
	m := mutant{name: name}
	head, body, _ := strings.Cut(text, "\n@@ ")
	for i, line := range strings.Split(head, "\n") {
		if line == "" {
			continue
		}
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "invariant":
			m.invariant = value
		case "fault":
			m.fault = value
		case "test":
			pkg, run, _ := strings.Cut(value, " ")
			m.tests = append(m.tests, suite{pkg, run})
		default:
			return m, fmt.Errorf("line %d: %q: want invariant, fault or test, or an edit that begins with @@", i+1, line)
		}
	}
	if body != "" {
		for _, hunk := range strings.Split(body, "\n@@ ") {
			e, err := parseEdit(hunk)
			if err != nil {
				return m, err
			}
			m.edits = append(m.edits, e)
		}
	}
	switch {
	case !isInvariant.MatchString(m.invariant):
		return m, fmt.Errorf("invariant is %q: want I1 to I12", m.invariant)
	case !strings.HasPrefix(name, m.invariant+"-"):
		return m, fmt.Errorf("the name %q does not begin with %q", name, m.invariant+"-")
	case m.fault == "":
		return m, errors.New("fault is empty: say in one sentence what is wrong with the program")
	case len(m.tests) == 0:
		return m, errors.New("no test: name the package that should notice")
	case len(m.edits) == 0:
		return m, errors.New("no edit")
	}
	for _, t := range m.tests {
		if !strings.HasPrefix(t.pkg, "./") {
			return m, fmt.Errorf("test: %q: want a package as ./ordering", t.pkg)
		}
		if _, err := regexp.Compile(t.run); err != nil {
			return m, fmt.Errorf("test: %w", err)
		}
	}
	return m, nil
}

func parseEdit(hunk string) (edit, error) {
	file, lines, _ := strings.Cut(hunk, "\n")
	e := edit{file: file}
	for _, line := range strings.Split(strings.TrimRight(lines, "\n"), "\n") {
		kind, rest := " ", "\n" // an empty line is one of the file
		if line != "" {
			kind, rest = line[:1], line[1:]+"\n"
		}
		switch kind {
		case " ":
			e.find += rest
			e.replace += rest
		case "-":
			e.find += rest
		case "+":
			e.replace += rest
		default:
			return e, fmt.Errorf("@@ %s: line %q: want a space, a minus or a plus first", file, line)
		}
	}
	if !filepath.IsLocal(file) || e.find == "" || e.find == e.replace {
		return e, fmt.Errorf("@@ %s: want a file of the module, what is to be found in it, and a change", file)
	}
	return e, nil
}

// apply returns the mutated files by name. Its error tells which edit does not fit any more.
func (m *mutant) apply(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range m.edits {
		text, ok := files[e.file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file)))
			if err != nil {
				return nil, fmt.Errorf("does not apply: %w", err)
			}
			text = string(b)
		}
		at := lineIndexes(text, e.find)
		if len(at) != 1 {
			return nil, fmt.Errorf("does not apply: %s has this %d times, want once:\n%s", e.file, len(at), e.find)
		}
		files[e.file] = text[:at[0]] + e.replace + text[at[0]+len(e.find):]
	}
	return files, nil
}

// lineIndexes tells where whole lines of text are those of find.
func lineIndexes(text, find string) (at []int) {
	for i := 0; i < len(text); {
		if strings.HasPrefix(text[i:], find) {
			at = append(at, i)
		}
		next := strings.IndexByte(text[i:], '\n')
		if next < 0 {
			break
		}
		i += next + 1
	}
	return at
}

// packages are those that the mutant changes, as ./ordering.
func (m *mutant) packages() []string {
	var list []string
	for _, e := range m.edits {
		pkg := "./" + filepath.ToSlash(filepath.Dir(filepath.FromSlash(e.file)))
		if !slices.Contains(list, pkg) {
			list = append(list, pkg)
		}
	}
	return list
}

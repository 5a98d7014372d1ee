package telemetry_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// conventionKey matches a key of the messaging conventions, old or new, within a string.
var conventionKey = regexp.MustCompile(`\bmessaging\.[a-z]|^kafka\.(offset|message\.key|message\.tombstone)$|^cloudevents\.event_`)

// The conventions are in development: a rename must be one file's change. Comments may name a key;
// programs (examples, commands) may use semconv's packages for their resource.
func TestConventionKeysAreInOneFile(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != ".." && strings.HasPrefix(entry.Name(), "."), entry.IsDir() && entry.Name() == "testdata":
			return filepath.SkipDir
		case path == filepath.Join("..", "examples"): // programs that read spans, as any program may
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		case path == filepath.Join("..", "telemetry", "semconv.go"):
			return nil
		}
		files++
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Logf("%s is skipped: %v", path, err) // the compiler will tell
			return nil
		}
		program := file.Name.Name == "main"
		for _, imported := range file.Imports {
			if !program && strings.Contains(imported.Path.Value, "/otel/semconv/") {
				t.Errorf("%s imports %s: only telemetry knows the conventions", fset.Position(imported.Pos()), imported.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if value, err := strconv.Unquote(literal.Value); err == nil && conventionKey.MatchString(value) {
				t.Errorf("%s has the convention key %q: only telemetry/semconv.go spells one", fset.Position(literal.Pos()), value)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 5 {
		t.Errorf("only %d files were looked at", files)
	}
}

func TestConventionKeyPattern(t *testing.T) {
	for s, want := range map[string]bool{
		"messaging.system": true, "messaging.system.name": true, "kafka.offset": true, "set messaging.operation.name": true,
		"messaging": false, "kafka.Config.Seeds is empty": false, "kafka": false,
	} {
		if got := conventionKey.MatchString(s); got != want {
			t.Errorf("%q: got %t, want %t", s, got, want)
		}
	}
}

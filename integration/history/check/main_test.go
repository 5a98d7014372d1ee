package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodeTellsTheVerdict(t *testing.T) {
	good := `{"t":1,"kind":"published","id":"m"}
{"t":2,"kind":"effect","consumer":"x","id":"m"}
`
	bad := good + `{"t":3,"kind":"effect","consumer":"x","id":"m"}
`
	for _, tt := range []struct {
		name, log string
		args      []string
		code      int
		want      string
	}{
		{"good", good, []string{"-all", "-drained"}, 0, "0 promises broken"},
		{"bad", bad, []string{"-all"}, 1, "doubled effect: 1"},
		{"bad, as JSON", bad, []string{"-once", "x", "-json"}, 1, `"doubled effect":1`},
		{"at least once", bad, nil, 0, "0 promises broken"},
		{"unreadable", "nope\n", nil, 2, ""},
		{"bad flag", good, []string{"-nope"}, 2, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs strings.Builder
			if got := run(tt.args, strings.NewReader(tt.log), &out, &errs); got != tt.code {
				t.Errorf("exit code %d, want %d; %s%s", got, tt.code, &out, &errs)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("printed %q, want %q in it", out.String(), tt.want)
			}
		})
	}
}

func TestFilesAreMerged(t *testing.T) {
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	for i, text := range []string{`{"t":2,"kind":"effect","consumer":"x","id":"m"}` + "\n", `{"t":1,"kind":"published","id":"m"}` + "\n"} {
		if err := os.WriteFile(names[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	if got := run(append([]string{"-drained"}, names...), nil, &out, &errs); got != 0 {
		t.Errorf("exit code %d, want 0; %s%s", got, &out, &errs)
	}
	if got := run([]string{filepath.Join(dir, "absent")}, nil, &out, &errs); got != 2 {
		t.Errorf("a file that is not there: exit code %d, want 2", got)
	}
}

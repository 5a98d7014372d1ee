package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

//go:embed postgres/*.sql mysql/*.sql sqlite/*.sql
var files embed.FS

// File is one migration as it is to be applied.
type File struct {
	// Version is what the schema has when the file was applied.
	Version int
	// Name is the file's name: "0001_inbox.sql".
	Name string
	// SQL is its text under the names asked for. Each statement ends with a semicolon at the end of a
	// line. It can be applied twice.
	SQL string
}

// Files returns the migrations under n's names, in order of version: the first is version 1. Write
// them to disk to apply them by hand or by another migration tool; apply each in one transaction.
func Files(n Names) []File {
	entries, err := fs.ReadDir(files, string(n.Dialect))
	if err != nil {
		panic(fmt.Sprintf("schema: names were not made by NewNames: %v", err))
	}
	list := make([]File, 0, len(entries))
	for _, e := range entries {
		text, err := fs.ReadFile(files, string(n.Dialect)+"/"+e.Name())
		if err != nil {
			panic(err) // embedded
		}
		number, _, _ := strings.Cut(e.Name(), "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != len(list)+1 {
			panic(fmt.Sprintf("schema: file %s/%s: want version %d", n.Dialect, e.Name(), len(list)+1))
		}
		list = append(list, File{Version: version, Name: e.Name(), SQL: searchPath(n) + n.rename(string(text))})
	}
	return list
}

// Latest is the version of the schema that this program brings and wants.
func Latest() int {
	entries, err := fs.ReadDir(files, string(Postgres))
	if err != nil {
		panic(err) // embedded
	}
	return len(entries)
}

func searchPath(n Names) string {
	if n.Schema == "" {
		return ""
	}
	return fmt.Sprintf("CREATE SCHEMA IF NOT EXISTS %q;\nSET search_path TO %q;\n\n", n.Schema, n.Schema)
}

var createTable = regexp.MustCompile(`(?m)^CREATE TABLE IF NOT EXISTS ` + DefaultPrefix + `(\w+)`)

// Tables returns the short names of our tables, in order of creation.
func Tables(n Names) []string {
	var names []string
	for _, f := range Files(Names{Dialect: n.Dialect, Prefix: DefaultPrefix}) {
		for _, m := range createTable.FindAllStringSubmatch(f.SQL, -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// statements splits a migration. Our files end each statement with a semicolon at the end of a line
// and have none elsewhere at a line's end.
func statements(text string) []string {
	var list []string
	for s := range strings.SplitSeq(text, ";\n") {
		if s = strings.TrimSpace(withoutComments(s)); s != "" {
			list = append(list, s)
		}
	}
	return list
}

func withoutComments(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

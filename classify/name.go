package classify

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

const (
	maxName   = 64       // bytes of an error type's name
	nameOther = "_OTHER" // an error that has no name; the word is OpenTelemetry's
)

// typeName returns the name of an exported type, as in billing.LimitError, or "".
// A generic type is named without its arguments.
func typeName(err error) string {
	t := reflect.TypeOf(err)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if short := t.Name(); short == "" || short[0] < 'A' || short[0] > 'Z' {
		return ""
	}
	name, _, _ := strings.Cut(t.String(), "[")
	if len(name) > maxName {
		return ""
	}
	return name
}

// shortened cuts a rule's own name to what is allowed.
func shortened(name string) string {
	if len(name) <= maxName {
		return name
	}
	end := maxName
	for end > 0 && !utf8.RuneStart(name[end]) {
		end--
	}
	return name[:end]
}

// The types that fmt.Errorf and errors.Join make. They say nothing themselves.
var (
	wrapError  = reflect.TypeOf(fmt.Errorf("%w", io.EOF))
	wrapErrors = reflect.TypeOf(fmt.Errorf("%w, %w", io.EOF, io.EOF))
	joinError  = reflect.TypeOf(errors.Join(io.EOF))
)

// isWrapper spares the commonest errors the questions that the rules ask.
func isWrapper(err error) bool {
	t := reflect.TypeOf(err)
	return t == wrapError || t == wrapErrors || t == joinError
}

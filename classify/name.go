package classify

import "reflect"

const (
	maxName   = 64      // bytes of an error type's name
	nameOther = "other" // an error that has no name
)

// typeName returns the name of an exported type, as in billing.LimitError, or "".
func typeName(err error) string {
	t := reflect.TypeOf(err)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	short := t.Name()
	if short == "" || short[0] < 'A' || short[0] > 'Z' {
		return ""
	}
	if full := t.String(); len(full) <= maxName {
		return full
	}
	return ""
}

package classify

import (
	"reflect"
	"strings"
	"time"
)

// byShape knows errors of libraries that tell their code in a way that no interface of ours can name: in a
// field, or by a method with a result of the library's own type. Reflection reads the code without an import
// of the library, so that no user compiles a driver that they did not choose, and no rule has to be
// remembered. A type that has changed its shape is not known and is judged like any other.
//
// The method names are constants so that the linker still removes unused methods.
func byShape(err error) Result {
	v := reflect.ValueOf(err)
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Name() {
	case "MySQLError":
		if isPackage(t, "github.com/go-sql-driver/mysql") {
			return mysqlError(v)
		}
	case "Error":
		if x, ok := err.(interface{ Code() int }); ok && isPackage(t, "modernc.org/sqlite") {
			return sqliteVerdict(x.Code())
		}
		if isPackage(t, "connectrpc.com/connect") {
			return grpcVerdict(codeOf(v.MethodByName("Code")))
		}
	}
	return grpcStatus(v)
}

// isPackage reports whether t is declared in the package, or in a vendored copy of it.
func isPackage(t reflect.Type, path string) bool {
	have, vendored := strings.CutSuffix(t.PkgPath(), path)
	return vendored && (have == "" || strings.HasSuffix(have, "/vendor/"))
}

// mysqlError reads the fields Number and SQLState.
func mysqlError(v reflect.Value) Result {
	v = reflect.Indirect(v)
	number, state := v.FieldByName("Number"), v.FieldByName("SQLState")
	if !number.IsValid() || number.Kind() != reflect.Uint16 {
		return Result{}
	}
	var code [5]byte
	if state.IsValid() && state.Type() == reflect.TypeFor[[5]byte]() {
		reflect.Copy(reflect.ValueOf(&code).Elem(), state)
	}
	return mysqlVerdict(uint16(number.Uint()), string(code[:]))
}

// grpcStatus reads the code of GRPCStatus() *status.Status, and the delay that it may ask for.
func grpcStatus(v reflect.Value) Result {
	status, ok := call(v.MethodByName("GRPCStatus"))
	if !ok {
		return Result{}
	}
	r := grpcVerdict(codeOf(status.MethodByName("Code")))
	if r.Verdict != VerdictRetry {
		return r
	}
	return retryIn(r.ErrorType, retryInfo(status))
}

// retryInfo returns the delay of a google.rpc.RetryInfo among the details of a status, or zero.
func retryInfo(status reflect.Value) time.Duration {
	s, ok := status.Interface().(interface{ Details() []any })
	if !ok {
		return 0
	}
	for _, detail := range s.Details() {
		delay, ok := call(reflect.ValueOf(detail).MethodByName("GetRetryDelay"))
		if !ok {
			continue
		}
		if d, ok := delay.Interface().(interface{ AsDuration() time.Duration }); ok {
			return d.AsDuration()
		}
	}
	return 0
}

// codeOf calls a method whose result is a code, as that of codes.Code and of connect.Code: a uint32.
// -1: it has none.
func codeOf(method reflect.Value) int64 {
	code, ok := call(method)
	if !ok || code.Kind() != reflect.Uint32 {
		return -1
	}
	return int64(code.Uint())
}

// call calls a method that takes nothing and returns one value.
func call(method reflect.Value) (reflect.Value, bool) {
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return reflect.Value{}, false
	}
	return method.Call(nil)[0], true
}

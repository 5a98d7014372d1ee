package classify

import (
	"net"
	"runtime"
	"time"
)

// Standard is the [Rule] that every classifier asks after its own. An application's rule can call it to
// alter one of its answers. It passes by returning false for an error that it does not know.
//
// Along a chain the outermost error that it knows decides: an HTTP status 400 stays permanent, whatever the
// client's error wraps. It knows, and names in Result.ErrorType:
//
//   - A [PanicError] and any runtime.Error: Poison, "panic". See [RetryPanics].
//   - context.Canceled and context.DeadlineExceeded: Retry, "canceled" and "timeout". Only the runtime knows
//     that it is stopping, and says so by [Stop].
//   - SQLSTATE codes, by the method SQLState() string (pgx, lib/pq), and MySQL and MariaDB numbers, by the
//     fields of *mysql.MySQLError: classes 22 and 23 Poison, except a violated foreign key (23503; MySQL 1452
//     and its like), which is retried as the parent may come later; classes 08, 28, 40, 53, 55, 57, 58 and XX,
//     25006, 25P02, deadlocks, lock timeouts and servers that are full, read-only or going down Retry.
//     "sql." and a code that the package lists, or its class ("sql.40001", "sql.42"), "mysql." and a number
//     that it lists ("mysql.1213"), else "sql.other".
//     A full or broken disk and a server that goes down (53100, 57P01 to 57P03, 58030; MySQL 1021, 1053, 1114) are
//     Unavailable as well, as are SQLite's FULL and IOERR: no message can cause them.
//   - SQLite result codes of modernc.org/sqlite: BUSY, LOCKED, FULL, IOERR and their like Retry;
//     CONSTRAINT, except a foreign key, TOOBIG and MISMATCH Poison. "sqlite.busy" and so on.
//   - database/sql: sql.ErrNoRows, sql.ErrTxDone, sql.ErrConnDone, driver.ErrBadConn: Retry, "sql.no_rows",
//     "sql.tx_done", "sql.conn".
//   - HTTP statuses, by [HTTPStatusError] or HTTPStatusCode() int (the AWS SDK): 408, 425, 429 and 5xx except
//     501 Retry, or RetryAfter if the error has RetryAfter() time.Duration and that is positive; other 4xx and
//     501 Poison; others are not known. "http." and the status, or "http.4xx" and "http.5xx" for those
//     without a name. See [CheckResponse].
//   - gRPC codes, by GRPCStatus() with a result that has Code(), and connect-go's errors: Canceled, Unknown,
//     DeadlineExceeded, ResourceExhausted, Aborted, Internal and Unavailable Retry, or RetryAfter with the
//     delay of a RetryInfo detail; the others Poison. "grpc.unavailable" and so on.
//   - io, net, crypto/tls, crypto/x509 and syscall: Retry. "eof", "io", "net", "net.dns", "net.closed",
//     "tls", "syscall" and, for the errnos that the package lists, "syscall.ECONNREFUSED" and so on.
//   - Errors of encoding/json, and of other decoders of the standard library (xml, csv, base64, hex, strconv,
//     time): Poison, "json" and "decode".
//   - Else any error with RetryAfter() time.Duration that is positive: RetryAfter; any with
//     Timeout() bool that is true: Retry, "timeout"; any other net.Error: Retry, "net".
//
// Delays that come from a server are bounded to 24 hours.
//
// An error without a name from this list is named by its innermost exported type ("billing.LimitError", at
// most 64 bytes), else "_OTHER". So the set of names is bounded by the program's own code, never by its input.
func Standard(err error) (Result, bool) {
	if err == nil {
		return Result{}, false
	}
	w := walk{left: maxErrors}
	r, _ := w.judge(err, 0)
	return r, r.Verdict != VerdictNone
}

// maxHint bounds the delay that a server asks for.
const maxHint = 24 * time.Hour

func retry(name string) Result {
	return Result{Verdict: VerdictRetry, ErrorType: name, Unavailable: away[name]}
}

// away are the kinds of error that no message can cause, whoever's statement has met it: the database's disk is full or broken, or
// it is going down. A lost connection is none of them: it may be that of one tenant's database.
var away = map[string]bool{
	"sql.53100": true, "sql.57P01": true, "sql.57P02": true, "sql.57P03": true, "sql.58030": true,
	"sqlite.full": true, "sqlite.ioerr": true,
	"mysql.1021": true, "mysql.1053": true, "mysql.1114": true,
}

func poison(name string) Result { return Result{Verdict: VerdictPoison, ErrorType: name} }

// retryIn is retry, but not before a server's hint if it gave one.
func retryIn(name string, hint time.Duration) Result {
	if hint <= 0 {
		return retry(name)
	}
	return Result{Verdict: VerdictRetryAfter, After: min(hint, maxHint), ErrorType: name}
}

// known judges one error by itself, without what it wraps. VerdictNone: it is not known, though it may have a
// name, as a SQLSTATE that says nothing of a later attempt. An error whose methods panic is not known.
func known(err error) (r Result) {
	defer func() {
		if recover() != nil {
			r = Result{}
		}
	}()
	switch err.(type) {
	case *PanicError, runtime.Error:
		return poison("panic")
	}
	for _, judge := range judges {
		if r := judge(err); r != (Result{}) {
			return r
		}
	}
	return Result{}
}

// judges know one kind of error each. An error is hardly ever of two kinds; the order is that of how sure
// each is of its own.
var judges = [...]func(error) Result{
	sqlState,
	httpStatus,
	decoding,
	network,
	sentinel,
	byShape,
}

// guessed judges one error by what many unlike errors have in common.
func guessed(err error) (r Result) {
	defer func() {
		if recover() != nil {
			r = Result{}
		}
	}()
	if hint := retryHint(err); hint > 0 {
		return retryIn("", hint)
	}
	if t, ok := err.(interface{ Timeout() bool }); ok && t.Timeout() {
		return retry("timeout")
	}
	if _, ok := err.(net.Error); ok {
		return retry("net")
	}
	return Result{}
}

// retryHint returns the delay that an error asks for, or zero.
func retryHint(err error) time.Duration {
	if h, ok := err.(interface{ RetryAfter() time.Duration }); ok {
		return h.RetryAfter()
	}
	return 0
}

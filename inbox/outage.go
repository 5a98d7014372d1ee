package inbox

import (
	"context"
	"errors"
	"strings"

	"github.com/headrace-go/headrace/classify"
)

// Outage marks err by classify.Unavailable if the database could not do what it was asked for because of its own state: the connection
// is lost or cannot be made, a resource is used up, it goes down, or is read-only or locked. Stores call it with the errors of their own
// statements (BEGIN, the claim, parking, COMMIT), which no message can make fail so, and with the caller's context: what a slow handler has used up
// is the caller's time, and no outage. The handler's errors are not theirs.
func Outage(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return err
	}
	if result, _ := classify.Standard(err); result.Verdict == classify.VerdictRetry && isOutage(result.ErrorType) {
		return classify.Unavailable(err)
	}
	return err
}

// isOutage tells by the kind of an error, as package classify names it.
func isOutage(kind string) bool {
	switch kind {
	case "sql.conn", "sql.25006",
		"sqlite.busy", "sqlite.locked", "sqlite.nomem", "sqlite.readonly", "sqlite.ioerr", "sqlite.full", "sqlite.cantopen", "sqlite.protocol",
		"mysql.1021", "mysql.1037", "mysql.1040", "mysql.1041", "mysql.1053", "mysql.1114", "mysql.1203", "mysql.1205", "mysql.1226",
		"mysql.1290", "mysql.1792", "mysql.1836",
		"timeout", "eof", "io", "net", "tls", "syscall":
		return true
	}
	for _, class := range []string{"sql.08", "sql.28", "sql.53", "sql.57P", "sql.58", "net.", "syscall."} {
		if strings.HasPrefix(kind, class) {
			return true
		}
	}
	return false
}

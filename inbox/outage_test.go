package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
)

// state is an error with a SQLSTATE.
type state string

func (s state) Error() string    { return "ERROR (SQLSTATE " + string(s) + ")" }
func (s state) SQLState() string { return string(s) }

func TestOutageIsTheDatabasesOwnState(t *testing.T) {
	reset := &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"connection", state("08006"), true},
		{"another of its class", state("08P01"), true},
		{"a password that was changed", state("28P01"), true},
		{"too many connections", state("53300"), true},
		{"memory", state("53200"), true},
		{"a class without that code", state("53999"), true},
		{"crash", state("57P02"), true},
		{"standby", state("25006"), true},
		{"I/O", state("58030"), true},
		{"reset", fmt.Errorf("begin: %w", reset), true},
		{"eof", io.ErrUnexpectedEOF, true},
		{"a deadline of the connection", os.ErrDeadlineExceeded, true},
		{"cancelled statement", state("57014"), false},
		{"deadlock", state("40P01"), false},
		{"serialisation", state("40001"), false},
		{"aborted", state("25P02"), false},
		{"a trigger at COMMIT", state("P0001"), false},
		{"a deferred constraint at COMMIT", state("23503"), false},
		{"duplicate at COMMIT", state("23505"), false},
		{"COMMIT answered with ROLLBACK", inbox.ErrCommitRolledBack, false},
		{"the connection's time", context.DeadlineExceeded, true},
		{"cancelled", context.Canceled, false},
		{"permanent", classify.Permanent(inbox.ErrTxEnded), false},
		{"unknown", errors.New("x"), false},
	} {
		err := inbox.Outage(t.Context(), tc.err)
		if got := new(classify.Classifier).Classify(err); got.Unavailable != tc.want {
			t.Errorf("%s: %+v, want Unavailable %t", tc.name, got, tc.want)
		}
		if !errors.Is(err, tc.err) {
			t.Errorf("%s: %v does not wrap %v", tc.name, err, tc.err)
		}
	}
	if err := inbox.Outage(t.Context(), nil); err != nil {
		t.Errorf("of nil: %v, want nil", err)
	}
	ended, end := context.WithTimeout(t.Context(), 0)
	defer end()
	for _, err := range []error{context.DeadlineExceeded, context.Canceled, fmt.Errorf("commit: %w", context.DeadlineExceeded)} {
		if got := new(classify.Classifier).Classify(inbox.Outage(ended, err)); got.Unavailable {
			t.Errorf("%v when the caller's time is over: %+v, want no outage", err, got)
		}
	}
}

package classify_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headrace-go/headrace/classify"
)

// D5: a deploy cancelled the context of a running handler; its error, "context canceled", was taken for a
// failure of the message, which was dead-lettered. A context error alone says nothing against a message.
func TestD5ContextErrorIsNotPoison(t *testing.T) {
	check(t, nil, []judged{
		{"canceled", fmt.Errorf("charge: %w", context.Canceled), retry, "canceled"},
		{"deadline", fmt.Errorf("charge: %w", context.DeadlineExceeded), retry, "timeout"},
		{"in an HTTP call", &url.Error{Op: "Post", URL: "http://x", Err: context.Canceled}, retry, "canceled"},
		{
			"with the database's own words",
			fmt.Errorf("%w: %w", &pgconn.PgError{Code: "57014"}, context.Canceled), retry, "sql.57014",
		},
	})
}

// D6: the database was down for 30 minutes and every message of the topic was dead-lettered. All that a
// database that is down, full, starting or failing over says is transient.
func TestD6DatabaseOutageIsNotPoison(t *testing.T) {
	check(t, nil, []judged{
		{"refused", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, retry, "syscall.ECONNREFUSED"},
		{"unreachable", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)}, retry, "syscall.EHOSTUNREACH"},
		{"its name is gone", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host"}}, retry, "net.dns"},
		{"starting up", &pgconn.PgError{Code: "57P03"}, retry, "sql.57P03"},
		{"shutting down", &pgconn.PgError{Code: "57P01"}, retry, "sql.57P01"},
		{"too many connections", &pgconn.PgError{Code: "53300"}, retry, "sql.53300"},
		{"disk full", &pgconn.PgError{Code: "53100"}, retry, "sql.53100"},
		{"a standby", &pgconn.PgError{Code: "25006"}, retry, "sql.25006"},
		{"a connection that was lost", &pgconn.PgError{Code: "08006"}, retry, "sql.08006"},
	})
}

// D7: names and texts taken from the error grew without a bound on their way into headers and metrics.
// What a server or a peer sends never becomes a name.
func TestD7ErrorTypeIsBounded(t *testing.T) {
	seen := map[string]bool{}
	for i := range 36 * 36 * 36 {
		code := fmt.Sprintf("%c%c0%c0", digit(i), digit(i/36), digit(i/36/36))
		seen[typeOf(state(code))] = true
	}
	for i := range 1 << 16 {
		seen[typeOf(&Status{Code: i})] = true
	}
	if len(seen) > 200 {
		t.Errorf("%d names for all SQLSTATEs and HTTP statuses, want at most 200", len(seen))
	}
	for name := range seen {
		if len(name) > 64 {
			t.Errorf("the name %q has %d bytes, want at most 64", name, len(name))
		}
	}
}

func digit(i int) byte { return "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i%36] }

// I6: one statement of a handler failed, and all retries ran in the same, aborted transaction (25P02). That
// the transaction is aborted says nothing of the next attempt, which has a fresh one.
func TestI6AbortedTransactionIsRetried(t *testing.T) {
	check(t, nil, []judged{{"25P02", &pgconn.PgError{Code: "25P02"}, retry, "sql.25P02"}})
}

// D8 A disk was full: a part of the transactions still found room, so that it looked as if the others were at fault.
func TestD8WhatNoMessageCanCauseIsUnavailable(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"full disk", pgState("53100"), true},
		{"shutdown", fmt.Errorf("insert: %w", pgState("57P01")), true},
		{"cannot connect now", pgState("57P03"), true},
		{"I/O", pgState("58030"), true},
		{"joined with another that passes", errors.Join(io.EOF, pgState("53100")), true},
		{"joined with one that does not", errors.Join(pgState("53100"), classify.Permanent(io.EOF)), false},
		{"marked", classify.Unavailable(io.EOF), true},
		{"wrapped after it was marked", fmt.Errorf("x: %w", classify.Unavailable(io.EOF)), true},
		{"marked as another thing", classify.Transient(pgState("53100")), false},
		{"lost connection, maybe to a tenant's own database", pgState("08006"), false},
		{"memory, which one statement can use up", pgState("53200"), false},
		{"statement timeout", pgState("57014"), false},
		{"deadlock", pgState("40P01"), false},
		{"duplicate key", pgState("23505"), false},
		{"eof", io.EOF, false},
	} {
		got := new(classify.Classifier).Classify(tc.err)
		if got.Unavailable != tc.want {
			t.Errorf("%s: got %+v, want Unavailable %t", tc.name, got, tc.want)
		}
	}
	if got := new(classify.Classifier).Classify(classify.Unavailable(io.EOF)); got.Verdict != classify.VerdictRetry || got.ErrorType != "eof" {
		t.Errorf("marked: got %+v, want a retry named eof", got)
	}
	if err := classify.Unavailable(nil); err != nil {
		t.Errorf("of nil: %v, want nil", err)
	}
	bad := classify.New(func(error) (classify.Result, bool) {
		return classify.Result{Verdict: classify.VerdictDrop, Unavailable: true}, true
	})
	if got := bad.Classify(io.EOF); got.Unavailable {
		t.Errorf("a rule that drops: got %+v, want it not Unavailable", got)
	}
}

func pgState(code string) error { return &pgconn.PgError{Code: code} }

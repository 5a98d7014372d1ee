package classify_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"modernc.org/sqlite"

	"github.com/headrace-go/headrace/classify"
)

// The tests of this file use the real libraries, so that a change of a shape that the package reads by
// reflection does not go unseen.

func TestPgxErrors(t *testing.T) {
	check(t, nil, []judged{
		{"serialisation", fmt.Errorf("commit: %w", &pgconn.PgError{Code: "40001"}), retry, "sql.40001"},
		{"unique", &pgconn.PgError{Code: "23505"}, poison, "sql.23505"},
		{"foreign key", &pgconn.PgError{Code: "23503"}, retry, "sql.23503"},
		{"no rows", pgx.ErrNoRows, retry, "sql.no_rows"},
		{"no server", connectNowhere(t), retry, "syscall.ECONNREFUSED"},
		{"typed nil", (*pgconn.PgError)(nil), retry, "pgconn.PgError"},
	})
}

func connectNowhere(t *testing.T) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), "postgres://u@127.0.0.1:1/d?connect_timeout=5")
	if err == nil {
		_ = conn.Close(t.Context())
		t.Fatal("connected to port 1")
	}
	return err
}

func TestMySQLErrors(t *testing.T) {
	my := func(number uint16, state string) error {
		e := &mysql.MySQLError{Number: number, Message: "m"}
		copy(e.SQLState[:], state)
		return fmt.Errorf("exec: %w", e)
	}
	check(t, nil, []judged{
		{"deadlock", my(1213, "40001"), retry, "mysql.1213"},
		{"lock wait timeout", my(1205, "HY000"), retry, "mysql.1205"},
		{"too many connections", my(1040, "08004"), retry, "mysql.1040"},
		{"read-only", my(1290, "HY000"), retry, "mysql.1290"},
		{"duplicate", my(1062, "23000"), poison, "mysql.1062"},
		{"duplicate from a server without states", my(1062, ""), poison, "mysql.1062"},
		{"foreign key", my(1452, "23000"), retry, "mysql.1452"},
		{"foreign key, parent", my(1451, "23000"), retry, "mysql.1451"},
		{"too long", my(1406, "22001"), poison, "mysql.1406"},
		{"check of MariaDB", my(4025, "23000"), poison, "mysql.4025"},
		{"by its state", my(1690, "22003"), poison, "sql.22003"},
		{"unknown", my(1146, "42S02"), retry, "sql.42"},
		{"unknown from a server without states", my(1146, ""), retry, "sql.other"},
		{"typed nil", (*mysql.MySQLError)(nil), retry, "mysql.MySQLError"},
		{"a type of that name from elsewhere", &MySQLError{Number: 1062}, retry, "classify_test.MySQLError"},
	})
}

type MySQLError struct{ Number uint16 }

func (*MySQLError) Error() string { return "m" }

func TestSQLiteErrors(t *testing.T) {
	db := sqliteDB(t, "file:"+filepath.Join(t.TempDir(), "a.db")+"?_pragma=foreign_keys(1)&_pragma=busy_timeout(0)")
	exec := func(query string) error {
		_, err := db.ExecContext(t.Context(), query)
		return err
	}
	for _, query := range []string{
		"CREATE TABLE p (id INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0))",
		"CREATE TABLE c (p INTEGER REFERENCES p(id))",
		"INSERT INTO p VALUES (1, 1)",
	} {
		if err := exec(query); err != nil {
			t.Fatal(err)
		}
	}
	unique := exec("INSERT INTO p VALUES (1, 1)")
	if _, ok := errors.AsType[*sqlite.Error](unique); !ok {
		t.Fatalf("a violated primary key is a %T, want *sqlite.Error", unique)
	}
	check(t, nil, []judged{
		{"unique", unique, poison, "sqlite.constraint"},
		{"not null", exec("INSERT INTO p VALUES (2, NULL)"), poison, "sqlite.constraint"},
		{"check", exec("INSERT INTO p VALUES (2, 0)"), poison, "sqlite.constraint"},
		{"foreign key", exec("INSERT INTO c VALUES (9)"), retry, "sqlite.foreign_key"},
		{"mismatch", exec("INSERT INTO p VALUES ('x', 1)"), poison, "sqlite.mismatch"},
		{"unknown", exec("INSERT INTO nowhere VALUES (1)"), retry, "sqlite.other"},
		{"busy", sqliteBusy(t, db), retry, "sqlite.busy"},
		{"typed nil", (*sqlite.Error)(nil), retry, "sqlite.Error"},
		{"a code of another library", Error(19), retry, "classify_test.Error"},
	})
}

// Error has the name and the method of *sqlite.Error.
type Error int

func (e Error) Error() string { return "coded" }
func (e Error) Code() int     { return int(e) }

func sqliteDB(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// sqliteBusy begins to write while another connection does.
func sqliteBusy(t *testing.T, db *sql.DB) error {
	t.Helper()
	var conns [2]*sql.Conn
	for i := range conns {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		conns[i] = c
	}
	if _, err := conns[0].ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = conns[0].ExecContext(context.Background(), "ROLLBACK") }()
	_, err := conns[1].ExecContext(t.Context(), "BEGIN IMMEDIATE")
	return err
}

// codeVerdicts are what each code of gRPC means, from 0 to one that does not exist.
var codeVerdicts = []struct {
	verdict classify.Verdict
	typ     string
}{
	1: {retry, "grpc.canceled"}, 2: {retry, "grpc.unknown"}, 3: {poison, "grpc.invalid_argument"},
	4: {retry, "grpc.deadline_exceeded"}, 5: {poison, "grpc.not_found"}, 6: {poison, "grpc.already_exists"},
	7: {poison, "grpc.permission_denied"}, 8: {retry, "grpc.resource_exhausted"}, 9: {poison, "grpc.failed_precondition"},
	10: {retry, "grpc.aborted"}, 11: {poison, "grpc.out_of_range"}, 12: {poison, "grpc.unimplemented"},
	13: {retry, "grpc.internal"}, 14: {retry, "grpc.unavailable"}, 15: {poison, "grpc.data_loss"},
	16: {poison, "grpc.unauthenticated"}, 17: {retry, ""},
}

func TestGRPCErrors(t *testing.T) {
	for code, want := range codeVerdicts[1:] {
		code := code + 1
		for _, err := range []error{
			status.Error(codes.Code(code), "m"),
			ownStatus{status.New(codes.Code(code), "m")},
			connect.NewError(connect.Code(code), errStolen),
		} {
			got := classify.New().Classify(fmt.Errorf("call: %w", err))
			if want.typ != "" && got.ErrorType != want.typ || got.Verdict != want.verdict {
				t.Errorf("%T code %d\n got %v %q\nwant %v %q", err, code, got.Verdict, got.ErrorType, want.verdict, want.typ)
			}
		}
	}
	check(t, nil, []judged{
		{"no status", ownStatus{}, retry, "_OTHER"},
		{"typed nil of connect", (*connect.Error)(nil), retry, "connect.Error"},
		{"a method with an argument", GRPCStatusOfAnotherKind{}, retry, "classify_test.GRPCStatusOfAnotherKind"},
		{"a code of another type", statusOfAnotherKind{}, retry, "_OTHER"},
		{
			"a connect error keeps a mark", connect.NewError(connect.CodeUnavailable, classify.Permanent(errStolen)),
			poison, "grpc.unavailable",
		},
	})
}

type ownStatus struct{ s *status.Status }

func (ownStatus) Error() string                { return "own" }
func (o ownStatus) GRPCStatus() *status.Status { return o.s }

type GRPCStatusOfAnotherKind struct{}

func (GRPCStatusOfAnotherKind) Error() string        { return "kind" }
func (GRPCStatusOfAnotherKind) GRPCStatus(int) error { return nil }

type statusOfAnotherKind struct{}

func (statusOfAnotherKind) Error() string                   { return "kind" }
func (statusOfAnotherKind) GRPCStatus() statusOfAnotherKind { return statusOfAnotherKind{} }
func (statusOfAnotherKind) Code() uint8                     { return uint8(codes.InvalidArgument) }

func TestGRPCDelays(t *testing.T) {
	info := func(code codes.Code, d time.Duration) error {
		s, err := status.New(code, "m").WithDetails(
			&errdetails.DebugInfo{Detail: "d"},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(d)},
		)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Errorf("call: %w", s.Err())
	}
	for _, row := range []struct {
		name string
		err  error
		want classify.Result
	}{
		{
			"unavailable for a while", info(codes.Unavailable, 7*time.Second),
			classify.Result{Verdict: retryAfter, After: 7 * time.Second, ErrorType: "grpc.unavailable"},
		},
		{
			"for ever", info(codes.ResourceExhausted, 1000*time.Hour),
			classify.Result{Verdict: retryAfter, After: 24 * time.Hour, ErrorType: "grpc.resource_exhausted"},
		},
		{"no delay", info(codes.Unavailable, 0), classify.Result{Verdict: retry, ErrorType: "grpc.unavailable"}},
		{
			"a delay does not mend the request", info(codes.InvalidArgument, time.Second),
			classify.Result{Verdict: poison, ErrorType: "grpc.invalid_argument"},
		},
	} {
		if got := classify.New().Classify(row.err); got != row.want {
			t.Errorf("%s: Classify(%v)\n got %+v\nwant %+v", row.name, row.err, got, row.want)
		}
	}
}

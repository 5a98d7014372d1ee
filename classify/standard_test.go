package classify_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
)

func TestContextErrorsAreRetried(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, errStolen)
	defer cancel()
	<-ctx.Done()
	check(t, nil, []judged{
		{"canceled", context.Canceled, retry, "canceled"},
		{"deadline", fmt.Errorf("call: %w", ctx.Err()), retry, "timeout"},
		{"stop is said by the runtime alone", classify.Stop(fmt.Errorf("call: %w", context.Canceled)), stop, "canceled"},
		{"an error that says it is one", isCanceled{}, retry, "canceled"},
	})
}

type isCanceled struct{}

func (isCanceled) Error() string        { return "operation was canceled" }
func (isCanceled) Is(target error) bool { return target == context.Canceled }

func TestNetworkAndSystemErrorsAreRetried(t *testing.T) {
	check(t, nil, []judged{
		{"EOF", io.EOF, retry, "eof"},
		{"unexpected EOF", io.ErrUnexpectedEOF, retry, "eof"},
		{"closed pipe", io.ErrClosedPipe, retry, "io"},
		{"refused", refused(t), retry, "syscall.ECONNREFUSED"},
		{"reset", &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, retry, "syscall.ECONNRESET"},
		{"an errno without a name", syscall.EXDEV, retry, "syscall"},
		{"a file that is not there", open(t), retry, "syscall.ENOENT"},
		{"a closed file", &os.PathError{Op: "read", Err: os.ErrClosed}, retry, "io"},
		{"a closed connection", &net.OpError{Op: "read", Err: net.ErrClosed}, retry, "net.closed"},
		{"a deadline of a connection", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, retry, "timeout"},
		{"a name", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", IsNotFound: true}}, retry, "net.dns"},
		{"an address", &net.OpError{Op: "dial", Err: &net.AddrError{Err: "missing port"}}, retry, "net"},
		{"another network error", &net.OpError{Op: "dial", Err: errors.New("?")}, retry, "net"},
		{"another timeout", timeout{}, retry, "timeout"},
		{"a certificate", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, retry, "tls"},
		{"an HTTP client's timeout", httpTimeout(t), retry, "timeout"},
		{"an error with a delay of its own", rateLimited{}, retryAfter, "_OTHER"},
	})
}

type rateLimited struct{}

func (rateLimited) Error() string             { return "slow down" }
func (rateLimited) RetryAfter() time.Duration { return time.Second }

// refused is a real connection to a port where nobody listens any more.
func refused(t *testing.T) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr)
	if err == nil {
		_ = c.Close()
		t.Fatalf("dial %s: connected, want it refused", addr)
	}
	return err
}

func open(t *testing.T) error {
	t.Helper()
	_, err := os.Open(filepath.Join(t.TempDir(), "absent"))
	return err
}

func httpTimeout(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		_ = resp.Body.Close()
		t.Fatal("a request past its deadline succeeded")
	}
	return err
}

func TestDecodingErrorsArePoison(t *testing.T) {
	var v struct{ N int }
	_, b64 := base64.StdEncoding.DecodeString("!")
	_, hexByte := hex.DecodeString("zz")
	_, hexOdd := hex.DecodeString("a")
	_, csvErr := csv.NewReader(strings.NewReader("a,\"b")).Read()
	_, atoi := strconv.Atoi("x")
	_, date := time.Parse(time.RFC3339, "today")
	_, marshal := json.Marshal(func() {})
	check(t, nil, []judged{
		{"JSON syntax", json.Unmarshal([]byte(`{"N":`), &v), poison, "json"},
		{"JSON type", json.Unmarshal([]byte(`{"N":"x"}`), &v), poison, "json"},
		{"JSON bytes", json.NewDecoder(bytes.NewReader([]byte{0xff, 0})).Decode(&v), poison, "json"},
		{"JSON target", json.Unmarshal([]byte(`{}`), any(nil)), poison, "json"},
		{"JSON of a function", marshal, poison, "json"},
		{"XML", xml.Unmarshal([]byte("<a>"), &v), poison, "decode"},
		{"CSV", csvErr, poison, "decode"},
		{"base64", b64, poison, "decode"},
		{"hex", hexByte, poison, "decode"},
		{"hex of odd length", hexOdd, poison, "decode"},
		{"number", fmt.Errorf("amount: %w", atoi), poison, "decode"},
		{"time", date, poison, "decode"},
	})
}

func TestDatabaseSQLErrorsAreRetried(t *testing.T) {
	check(t, nil, []judged{
		{"no rows", sql.ErrNoRows, retry, "sql.no_rows"},
		{"the transaction is over", sql.ErrTxDone, retry, "sql.tx_done"},
		{"the connection is over", sql.ErrConnDone, retry, "sql.conn"},
		{"bad connection", fmt.Errorf("exec: %w", driver.ErrBadConn), retry, "sql.conn"},
	})
}

type state string

func (s state) Error() string    { return "SQLSTATE " + string(s) }
func (s state) SQLState() string { return string(s) }

func TestSQLStates(t *testing.T) {
	for _, row := range []struct {
		verdict classify.Verdict
		states  string
		typ     string // of all states; empty: "sql." and the state
	}{
		{retry, "40001 40P01 40002 40003", ""},
		{retry, "08000 08001 08003 08004 08006 08007 08P01", ""},
		{retry, "53000 53100 53200 53300 53400", ""},
		{retry, "57014 57P01 57P02 57P03 57P04 57P05", ""},
		{retry, "55P03 55006 58030 XX000 28P01 25006 25P02", ""},
		{retry, "23503", ""}, // the parent may come later
		{poison, "22001 22003 22P02 22012", ""},
		{poison, "23000 23001 23502 23505 23514 23P01", ""},
		{poison, "22ZZZ 22000 22P06", "sql.22"},
		{poison, "23ZZZ", "sql.23"},
		{retry, "42P01 42703 42601", ""}, // not known: a deploy may mend it
		{retry, "42ZZZ", "sql.42"},
		{retry, "HY000", "sql.HY"},
		{retry, "ZZ123 \xff\xfe123 ab123", "sql.other"},
		{retry, "1 123 123456 4000 400011", "classify_test.State"},
	} {
		for code := range strings.FieldsSeq(row.states) {
			err := fmt.Errorf("exec: %w", error(state(code)))
			if row.typ == "classify_test.State" {
				err = State{code}
			}
			got := classify.New().Classify(err)
			want := row.typ
			if want == "" {
				want = "sql." + code
			}
			if got.Verdict != row.verdict || got.ErrorType != want {
				t.Errorf("SQLSTATE %q\n got %v %q\nwant %v %q", code, got.Verdict, got.ErrorType, row.verdict, want)
			}
		}
	}
	// What is not known is left to a fallback, which may well be Poison.
	for code, want := range map[string]bool{
		"40001": true, "57P03": true, "25P02": true, "25006": true, "23503": true, "25001": false, "42P01": false,
	} {
		if _, known := classify.Standard(state(code)); known != want {
			t.Errorf("Standard(SQLSTATE %s) knows it: %v, want %v", code, known, want)
		}
	}
}

type State struct{ state string }

func (s State) Error() string    { return s.state }
func (s State) SQLState() string { return s.state }

func TestHTTPStatuses(t *testing.T) {
	for status := -1; status <= 1000; status++ {
		want, known := poison, status >= 400 && status <= 599
		switch {
		case status == 501:
		case !known, status == 408, status == 425, status == 429, status >= 500:
			want = retry
		}
		for _, err := range []error{&Status{Code: status}, awsStatus(status), &classify.HTTPError{Status: status}} {
			got := classify.New().Classify(fmt.Errorf("call: %w", err))
			if got.Verdict != want {
				t.Errorf("%T %d: got %v, want %v", err, status, got.Verdict, want)
			}
			if _, ok := classify.Standard(err); ok != known {
				t.Errorf("Standard(%T %d) knows it: %v, want %v", err, status, ok, known)
			}
			name := "http." + strconv.Itoa(status)
			if http.StatusText(status) == "" {
				name = "http." + strconv.Itoa(status/100) + "xx"
			}
			if known && got.ErrorType != name {
				t.Errorf("%T %d: got the type %q, want %q", err, status, got.ErrorType, name)
			}
		}
	}
}

type awsStatus int

func (s awsStatus) Error() string       { return "api error" }
func (s awsStatus) HTTPStatusCode() int { return int(s) }

func TestHTTPDelays(t *testing.T) {
	for _, row := range []struct {
		name    string
		err     error
		verdict classify.Verdict
		after   time.Duration
	}{
		{"503 with a delay", &Status{Code: 503, After: 3 * time.Second}, retryAfter, 3 * time.Second},
		{"429 with a delay", &Status{Code: 429, After: time.Minute}, retryAfter, time.Minute},
		{"429 without", &Status{Code: 429}, retry, 0},
		{"a negative delay", &Status{Code: 429, After: -1}, retry, 0},
		{"an endless delay", &Status{Code: 503, After: 1 << 62}, retryAfter, 24 * time.Hour},
		{"a delay does not mend a 400", &Status{Code: 400, After: time.Second}, poison, 0},
		{"a delay does not mend a 501", &Status{Code: 501, After: time.Second}, poison, 0},
		{"a status that is not known, with a delay", &Status{Code: 302, After: time.Second}, retryAfter, time.Second},
	} {
		if got := classify.New().Classify(row.err); got.Verdict != row.verdict || got.After != row.after {
			t.Errorf("%s: got %v after %v, want %v after %v", row.name, got.Verdict, got.After, row.verdict, row.after)
		}
	}
}

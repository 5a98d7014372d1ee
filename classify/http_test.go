package classify_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/headrace-go/headrace/classify"
)

func TestCheckResponse(t *testing.T) {
	const now = "Wed, 21 Oct 2015 07:28:00 GMT"
	for _, row := range []struct {
		status           int
		retryAfter, date string
		want             time.Duration
	}{
		{503, "120", "", 2 * time.Minute},
		{503, " 120 ", now, 2 * time.Minute},
		{429, "0", "", 0},
		{429, "", "", 0},
		{503, "86401", "", 24 * time.Hour},
		{503, "99999999999999999999999999", "", 24 * time.Hour},
		{503, "-5", "", 0},
		{503, "1.5", "", 0},
		{503, "soon", now, 0},
		{503, "Wed, 21 Oct 2015 07:29:30 GMT", now, 90 * time.Second},
		{503, "Wednesday, 21-Oct-15 07:29:30 GMT", now, 90 * time.Second}, // RFC 850
		{503, "Wed Oct 21 07:29:30 2015", now, 90 * time.Second},          // ANSI C
		{503, "Wed, 21 Oct 2015 07:27:00 GMT", now, 0},                    // past
		{503, "Wed, 21 Oct 2099 07:27:00 GMT", now, 24 * time.Hour},
		{503, "Wed, 21 Oct 2015 07:29:30 GMT", "", 0}, // nothing to compare it with
		{503, "Wed, 21 Oct 2015 07:29:30 GMT", "yesterday", 0},
		{400, "120", "", 2 * time.Minute},
		{302, "", "", 0},
	} {
		resp := &http.Response{StatusCode: row.status, Header: http.Header{}}
		resp.Header.Set("Retry-After", row.retryAfter)
		resp.Header.Set("Date", row.date)
		err := classify.CheckResponse(resp)
		got, ok := errors.AsType[*classify.HTTPError](err)
		if !ok || got.Status != row.status || got.After != row.want {
			t.Errorf("CheckResponse(%d, Retry-After %q, Date %q)\n got %+v\nwant status %d, after %v",
				row.status, row.retryAfter, row.date, got, row.status, row.want)
		}
	}
	for _, status := range []int{200, 201, 204, 299} {
		if err := classify.CheckResponse(&http.Response{StatusCode: status}); err != nil {
			t.Errorf("CheckResponse(%d) = %v, want nil", status, err)
		}
	}
	if err := classify.CheckResponse(&http.Response{StatusCode: 500}); err == nil {
		t.Error("CheckResponse(500 without headers) = nil, want an error")
	}
	if err := classify.CheckResponse(nil); err == nil {
		t.Error("CheckResponse(nil) = nil, want an error")
	}
}

func TestHTTPErrorText(t *testing.T) {
	for _, row := range []struct {
		err  *classify.HTTPError
		want string
	}{
		{&classify.HTTPError{Status: 503}, "http status 503 Service Unavailable"},
		{&classify.HTTPError{Status: 599}, "http status 599"},
		{nil, "http status unknown"},
	} {
		if got := row.err.Error(); got != row.want {
			t.Errorf("%#v: got %q, want %q", row.err, got, row.want)
		}
	}
	var e classify.HTTPStatusError = (*classify.HTTPError)(nil)
	if e.HTTPStatus() != 0 || (*classify.HTTPError)(nil).RetryAfter() != 0 {
		t.Error("a nil *HTTPError has a status or a delay, want none")
	}
}

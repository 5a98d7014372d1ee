package classify

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// HTTPStatusError is an error that stands for an HTTP response, of a client or of a server's handler.
// If it also has the method
//
//	RetryAfter() time.Duration
//
// a positive result is the least time to wait before the next attempt. It is a duration, not a header, as
// this package has no clock to compare a date with; [CheckResponse] makes one from either form.
type HTTPStatusError interface {
	error
	HTTPStatus() int
}

// HTTPError is an HTTP response that is not a success, see [CheckResponse].
type HTTPError struct {
	Status int           // the response's status code
	After  time.Duration // how long the server asks to wait; zero: it does not say
}

// Error names the status, as in "http status 503 Service Unavailable".
func (e *HTTPError) Error() string {
	if e == nil {
		return "http status unknown"
	}
	return strings.TrimSpace("http status " + strconv.Itoa(e.Status) + " " + http.StatusText(e.Status))
}

// HTTPStatus returns the response's status code, 0 for a nil error.
func (e *HTTPError) HTTPStatus() int {
	if e == nil {
		return 0
	}
	return e.Status
}

// RetryAfter returns how long the server asks to wait, or zero.
func (e *HTTPError) RetryAfter() time.Duration {
	if e == nil {
		return 0
	}
	return e.After
}

// CheckResponse returns nil if the status of resp is 2xx, else an *[HTTPError]. It neither reads nor closes
// the body. A status such as 304 that is a success to the caller has to be looked at before.
//
// The header Retry-After is understood in seconds and as a date. A date is compared with the response's own
// Date header, that is, with the clock that wrote it, so a wrong clock here does no harm; without a Date
// header it is ignored. A delay is bounded to 24 hours.
func CheckResponse(resp *http.Response) error {
	if resp == nil {
		return errors.New("classify: check response: the response is nil")
	}
	if resp.StatusCode/100 == 2 {
		return nil
	}
	return &HTTPError{Status: resp.StatusCode, After: retryAfter(resp.Header)}
}

// retryAfter returns the delay that a response asks for: RFC 9110, section 10.2.3. Zero: none.
func retryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxHint/time.Second) {
			return maxHint // more digits than an int64 holds
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return 0
	}
	return min(max(at.Sub(date), 0), maxHint)
}

// httpStatus knows errors that have an HTTP status.
func httpStatus(err error) Result {
	var status int
	switch x := err.(type) {
	case interface{ HTTPStatus() int }:
		status = x.HTTPStatus()
	case interface{ HTTPStatusCode() int }:
		status = x.HTTPStatusCode()
	default:
		return Result{}
	}
	if status < 400 || status > 599 {
		return Result{}
	}
	name := httpNames[status-400]
	switch {
	case status == http.StatusNotImplemented:
		return poison(name)
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTooEarly,
		status == http.StatusTooManyRequests:
		return retryIn(name, retryHint(err))
	}
	return poison(name)
}

// httpNames are the names of the statuses from 400 to 599.
var httpNames = func() (names [200]string) {
	for i := range names {
		status := 400 + i
		names[i] = "http." + strconv.Itoa(status)
		if http.StatusText(status) == "" {
			names[i] = "http." + strconv.Itoa(status/100) + "xx"
		}
	}
	return names
}()

package sqs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// tap is on the line between the client and the real server. on sees each request, by its action, and decides.
type tap struct {
	next http.RoundTripper

	mu sync.Mutex
	on func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error)
}

func (t *tap) through(next http.RoundTripper) http.RoundTripper {
	t.next = next
	return t
}

func (t *tap) set(on func(string, map[string]any, func() (*http.Response, error)) (*http.Response, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.on = on
}

func (t *tap) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	on := t.on
	t.mu.Unlock()
	if on == nil {
		return t.next.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var request map[string]any
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, err
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	return on(action, request, func() (*http.Response, error) {
		changed, err := json.Marshal(request)
		if err != nil {
			return nil, err
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
		return t.next.RoundTrip(r)
	})
}

var errCut = errors.New("the connection was cut")

// withoutFirst leaves the first entry of a batch out, and answers that it failed.
func withoutFirst(request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
	entries := request["Entries"].([]any)
	failed := map[string]any{"Id": entries[0].(map[string]any)["Id"], "Code": "InternalError", "Message": "try again", "SenderFault": false}
	answer := map[string]any{"Successful": []any{}}
	if len(entries) > 1 {
		request["Entries"] = entries[1:]
		r, err := forward()
		if err != nil {
			return nil, err
		}
		defer r.Body.Close()
		if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
			return nil, err
		}
	}
	answer["Failed"] = []any{failed}
	return respond(answer)
}

func respond(answer map[string]any) (*http.Response, error) {
	body, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}

// counter counts by name.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
	return c.n[name]
}

func (c *counter) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

func mustBe(t *testing.T, what string, got, want any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

package middleware_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("warehouse is down")

// mustRetry returns the middleware of c.
func mustRetry(t testing.TB, c middleware.RetryConfig) message.HandlerMiddleware {
	t.Helper()
	mw, err := middleware.Retry(c)
	if err != nil {
		t.Fatal(err)
	}
	return mw
}

// newMessage returns a message whose context is ctx.
func newMessage(ctx context.Context, id string) *message.Message {
	return message.NewMessageWithContext(ctx, id, []byte(`{"total":12}`))
}

// gaveUp returns the GaveUpError in err, or ends the test.
func gaveUp(t *testing.T, err error) *middleware.GaveUpError {
	t.Helper()
	fail, ok := errors.AsType[*middleware.GaveUpError](err)
	if !ok {
		t.Fatalf("error is %T (%v), want a *middleware.GaveUpError", err, err)
	}
	return fail
}

// isStop tells whether err is marked as a stop.
func isStop(err error) bool {
	var c *classify.Classifier
	return c.Classify(err).Verdict == classify.VerdictStop
}

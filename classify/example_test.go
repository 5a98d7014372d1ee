package classify_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/headrace-go/headrace/classify"
)

var errCardExpired = errors.New("card has expired")

func Example() {
	var classifier *classify.Classifier // nil: the default one
	for _, err := range []error{
		fmt.Errorf("charge: %w", io.ErrUnexpectedEOF),
		fmt.Errorf("charge: %w", classify.Permanent(errCardExpired)),
		fmt.Errorf("charge: %w", &classify.HTTPError{Status: 503}),
		errors.Join(io.EOF, classify.Permanent(errCardExpired)),
	} {
		r := classifier.Classify(err)
		fmt.Println(r.Verdict, r.ErrorType)
	}
	// Output:
	// retry eof
	// poison _OTHER
	// retry http.503
	// poison _OTHER
}

// A rule looks with errors.Is or errors.As, so it sees its error at any depth.
func ExampleNew() {
	declined := func(err error) (classify.Result, bool) {
		return classify.Result{Verdict: classify.VerdictPoison, ErrorType: "card_expired"}, errors.Is(err, errCardExpired)
	}
	c := classify.New(declined, classify.RetryPanics)

	r := c.Classify(fmt.Errorf("charge: %w", errCardExpired))
	fmt.Println(r.Verdict, r.ErrorType)
	fmt.Println(c.Classify(&classify.PanicError{Value: "index out of range"}).Verdict)
	// Output:
	// poison card_expired
	// retry
}

// An application that would rather look at an unknown error than repeat it dead-letters it.
func ExampleClassifier_Fallback() {
	c := classify.New().Fallback(func(error) (classify.Result, bool) {
		return classify.Result{Verdict: classify.VerdictPoison}, true
	})
	fmt.Println(c.Classify(errors.New("never seen before")).Verdict)
	fmt.Println(c.Classify(io.EOF).Verdict)
	// Output:
	// poison
	// retry
}

// A rule that alters one answer of the standard rules: this service's token expires and is renewed.
func ExampleStandard() {
	c := classify.New(func(err error) (classify.Result, bool) {
		r, ok := classify.Standard(err)
		if r.ErrorType == "http.401" {
			r.Verdict = classify.VerdictRetry
		}
		return r, ok
	})
	fmt.Println(c.Classify(&classify.HTTPError{Status: 401}).Verdict)
	fmt.Println(c.Classify(&classify.HTTPError{Status: 403}).Verdict)
	// Output:
	// retry
	// poison
}

func ExamplePermanent() {
	err := fmt.Errorf("charge: %w", classify.Permanent(errCardExpired))
	fmt.Println(err, errors.Is(err, errCardExpired), classify.New().Classify(err).Verdict)
	// Output: charge: card has expired true poison
}

func ExampleTransient() {
	err := classify.Transient(&classify.HTTPError{Status: 404}) // it is about to be created
	fmt.Println(classify.New().Classify(err).Verdict)
	// Output: retry
}

func ExampleRetryAfter() {
	r := classify.New().Classify(classify.RetryAfter(errors.New("bank is closed"), time.Hour))
	fmt.Println(r.Verdict, r.After)
	// Output: retry_after 1h0m0s
}

func ExampleDrop() {
	err := classify.Drop(errors.New("the customer left us"))
	fmt.Println(classify.New().Classify(err).Verdict)
	// Output: drop
}

func ExampleStop() {
	err := classify.Stop(errors.New("the runtime is stopping"))
	fmt.Println(classify.New().Classify(err).Verdict)
	// Output: stop
}

func ExampleCheckResponse() {
	resp := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{
		"Date":        {"Wed, 21 Oct 2015 07:28:00 GMT"},
		"Retry-After": {"Wed, 21 Oct 2015 07:28:30 GMT"},
	}}
	if err := classify.CheckResponse(resp); err != nil {
		r := classify.New().Classify(fmt.Errorf("charge: %w", err))
		fmt.Println(err, r.Verdict, r.After)
	}
	// Output: http status 429 Too Many Requests retry_after 30s
}

func ExampleRetryPanics() {
	err := &classify.PanicError{Value: "boom"}
	fmt.Println(classify.New().Classify(err).Verdict)
	fmt.Println(classify.New(classify.RetryPanics).Classify(err).Verdict)
	// Output:
	// poison
	// retry
}

// A carrier is closed until tomorrow, and what follows in the order's key must not overtake it.
func ExampleRetryAfterInOrder() {
	err := classify.RetryAfterInOrder(errors.New("carrier is closed"), 12*time.Hour)
	r := new(classify.Classifier).Classify(fmt.Errorf("ship: %w", err))
	fmt.Println(r.Verdict, r.After, r.InOrder)
	// Output: retry_after 12h0m0s true
}

// What everybody needs is away: no message is at fault.
func ExampleUnavailable() {
	err := classify.Unavailable(errors.New("the vault is sealed"))
	r := new(classify.Classifier).Classify(err)
	fmt.Println(r.Verdict, r.Unavailable)
	// Output: retry true
}

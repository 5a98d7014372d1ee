package sqs

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// maxCalls bounds the batches that one operation has under way at once.
const maxCalls = 8

// EntryError is what the service answered to one entry of a batch.
type EntryError struct {
	Code, Message string

	// SenderFault says that the same entry would fail again.
	SenderFault bool
}

func (e *EntryError) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// isFinal tells whether err says that to try again is of no use.
func isFinal(err error) bool {
	if isNoQueue(err) {
		return true
	}
	e, ok := errors.AsType[*EntryError](err)
	return ok && e.SenderFault && !strings.Contains(strings.ToLower(e.Code), "throttl")
}

var errNotAnswered = errors.New("the answer does not name the entry")

// answers collects what a batch's answer says of each entry: nil for a success. What it does not name has not succeeded.
type answers struct{ errors []error }

func newAnswers(n int) *answers {
	a := &answers{make([]error, n)}
	for i := range a.errors {
		a.errors[i] = errNotAnswered
	}
	return a
}

func (a *answers) success(id *string) { a.set(id, nil) }

func (a *answers) failure(id, code, text *string, fault bool) {
	a.set(id, &EntryError{Code: aws.ToString(code), Message: aws.ToString(text), SenderFault: fault})
}

func (a *answers) set(id *string, err error) {
	if i, bad := strconv.Atoi(aws.ToString(id)); bad == nil && i >= 0 && i < len(a.errors) {
		a.errors[i] = err
	}
}

// answered is what the answer of SQS to a batch of n says of each entry; id gives the id of a success.
func answered[S any](n int, successful []S, id func(S) *string, failed []types.BatchResultErrorEntry) []error {
	a := newAnswers(n)
	for _, s := range successful {
		a.success(id(s))
	}
	for _, f := range failed {
		a.failure(f.Id, f.Code, f.Message, f.SenderFault)
	}
	return a.errors
}

// entryID is the id of an entry within its batch.
func entryID(i int) *string { return aws.String(strconv.Itoa(i)) }

// atOnce calls do with 0 to n-1, several at once, and returns the errors, joined.
func atOnce(n int, do func(int) error) error {
	if n == 1 {
		return do(0)
	}
	var (
		wg    sync.WaitGroup
		calls = make(chan struct{}, maxCalls)
		errs  = make([]error, n)
	)
	for i := range n {
		calls <- struct{}{}
		wg.Go(func() {
			defer func() { <-calls }()
			errs[i] = do(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

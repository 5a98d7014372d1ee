package sqs

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// giveBackTries is how often the service is asked to take something back, before its visibility has to run out.
const giveBackTries = 3

// returned is an entry that goes back to the queue, which gives it to nobody for a time.
type returned struct {
	entry *entry
	after time.Duration
}

// settle is the settler's.
func (s *subscription) settle(batch []*hold) {
	var (
		acked    []*entry
		back     []returned
		released bool
	)
	for _, h := range batch {
		e := h.Entry
		s.forget(e)
		switch h.Outcome {
		case adapter.Acked:
			acked = append(acked, e)
			continue
		case adapter.Nacked:
			back = append(back, returned{e, adapter.NackDelay(s.config.NackDelay, s.config.MaxNackDelay, e.count)})
		case adapter.Released, adapter.Undecided:
			back = append(back, returned{e, h.Delay()})
			released = released || h.Delay() == 0
		}
		s.recall(e) // on a user's own router nobody has told before
	}
	ctx, cancel := s.lastCall()
	defer cancel()
	if len(acked) > 0 {
		s.rested()
		s.delete(ctx, acked)
	}
	if released {
		s.rest()
	}
	s.giveBack(ctx, back)
}

// delete deletes what was acked. What the service has not taken is kept, with its place in the window, for the keeper.
func (s *subscription) delete(ctx context.Context, acked []*entry) {
	if failed := s.tryDelete(ctx, acked); len(failed) > 0 {
		s.settler.Reserve(len(failed))
		s.mu.Lock()
		s.unsent = append(s.unsent, failed...)
		s.mu.Unlock()
	}
}

// deleteUnsent tries again what could not be deleted, and returns how much there still is.
func (s *subscription) deleteUnsent(ctx context.Context) int {
	unsent := s.takeUnsent()
	if len(unsent) == 0 {
		return 0
	}
	failed := s.tryDelete(ctx, unsent)
	s.settler.Reserve(len(failed) - len(unsent))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsent = append(s.unsent, failed...)
	return len(s.unsent)
}

func (s *subscription) takeUnsent() []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	unsent := s.unsent
	s.unsent = nil
	return unsent
}

// tryDelete deletes entries, and returns those that can be tried again.
func (s *subscription) tryDelete(ctx context.Context, entries []*entry) (failed []*entry) {
	errs := s.inBatches(len(entries), func(url string, begin, end int) ([]error, error) {
		in := &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: make([]types.DeleteMessageBatchRequestEntry, end-begin)}
		for i, e := range entries[begin:end] {
			in.Entries[i] = types.DeleteMessageBatchRequestEntry{Id: entryID(i), ReceiptHandle: &e.receipt}
		}
		out, err := s.config.Client.DeleteMessageBatch(ctx, in)
		if err != nil {
			return nil, err
		}
		return answered(end-begin, out.Successful, func(e types.DeleteMessageBatchResultEntry) *string { return e.Id }, out.Failed), nil
	})
	var late, later error
	for i, err := range errs {
		switch {
		case err == nil:
		case isFinal(err):
			late = err
		default:
			later = err
			failed = append(failed, entries[i])
		}
	}
	if late != nil {
		s.log.Warn("sqs: an ack came too late: its message comes again", "error", late)
	}
	if later != nil {
		s.log.Warn("sqs: acks could not be sent; tries again", "error", later, "messages", len(failed))
	}
	return failed
}

func (s *subscription) hasRecalled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.recalled) > 0
}

// giveBackRecalled gives back what was recalled when there was nothing else to give back.
func (s *subscription) giveBackRecalled() {
	ctx, cancel := s.lastCall()
	defer cancel()
	s.giveBack(ctx, nil)
}

// giveBack gives entries, and what was recalled, back to the queue.
func (s *subscription) giveBack(ctx context.Context, back []returned) {
	s.mu.Lock()
	for _, e := range s.recalled {
		back = append(back, returned{e, 0})
	}
	s.recalled = nil
	s.mu.Unlock()
	if len(back) == 0 {
		return
	}
	s.visibility.Lock()
	defer s.visibility.Unlock()
	var last error
	for try, delay := 1, firstDelay; ; try, delay = try+1, 2*delay {
		entries, timeouts := make([]*entry, len(back)), make([]time.Duration, len(back))
		for i, r := range back {
			// What is hidden for longer in all than the service allows is refused.
			entries[i], timeouts[i] = r.entry, min(r.after, maxVisibility-time.Second-time.Since(r.entry.first))
		}
		errs := s.changeVisibility(ctx, entries, timeouts)
		again := back[:0]
		for i, err := range errs {
			if err != nil && !isFinal(err) { // else it is there, or with others, already
				again, last = append(again, back[i]), err
			}
		}
		if back = again; len(back) == 0 {
			return
		}
		if try == giveBackTries || sleep(ctx, delay) != nil {
			s.log.Warn("sqs: could not give messages back; they come again when their visibility ends", "error", last, "messages", len(back))
			return
		}
	}
}

// changeVisibility hides each of entries for a time from now on, and returns for each what the service says.
func (s *subscription) changeVisibility(ctx context.Context, entries []*entry, timeouts []time.Duration) []error {
	return s.inBatches(len(entries), func(url string, begin, end int) ([]error, error) {
		in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: make([]types.ChangeMessageVisibilityBatchRequestEntry, end-begin)}
		for i, e := range entries[begin:end] {
			in.Entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
				Id: entryID(i), ReceiptHandle: &e.receipt, VisibilityTimeout: max(seconds(timeouts[begin+i]), 0),
			}
		}
		out, err := s.config.Client.ChangeMessageVisibilityBatch(ctx, in)
		if err != nil {
			return nil, err
		}
		return answered(end-begin, out.Successful, func(e types.ChangeMessageVisibilityBatchResultEntry) *string { return e.Id }, out.Failed), nil
	})
}

// inBatches makes a call for each batch of n entries, several at once, and returns for each entry what was answered.
func (s *subscription) inBatches(n int, call func(url string, begin, end int) ([]error, error)) []error {
	url := s.queue.Load().url
	errs := make([]error, n)
	_ = atOnce((n+maxEntries-1)/maxEntries, func(i int) error { // each entry has its error
		begin, end := i*maxEntries, min((i+1)*maxEntries, n)
		answered, err := call(url, begin, end)
		if err == nil {
			copy(errs[begin:], answered)
			return nil
		}
		for at := begin; at < end; at++ {
			errs[at] = err
		}
		return err
	})
	return errs
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
)

// orders is a topic of n messages in two partitions.
type orders struct {
	brokers.Broker
	n int
}

func (o orders) Capabilities() brokers.Capabilities { return brokers.Capabilities{} }

func (o orders) Read(ctx context.Context, topic string, r brokers.Range, fn func(*message.Message) error) error {
	for i := range int64(o.n) {
		at := &brokers.Delivery{Topic: topic, Partition: int32(i % 2), Offset: i / 2}
		if at.Offset < r.From[at.Partition] {
			continue
		}
		m := message.NewMessage(fmt.Sprintf("u-%d", i), []byte("{}"))
		m.SetContext(brokers.WithDelivery(ctx, at))
		if err := fn(m); err != nil {
			return err
		}
	}
	return nil
}

func (o orders) Ends(context.Context, string) (map[int32]int64, error) {
	return map[int32]int64{0: int64(o.n+1) / 2, 1: int64(o.n) / 2}, nil
}

var errTooLarge = classify.Permanent(errors.New("message is too large"))

// One message that the broker did not take ended each replay at its chunk; the offset to go on with left out others.
func TestReplayGoesOnBehindWhatCannotBeSent(t *testing.T) {
	for name, tc := range map[string]struct {
		refuses     func(n int) error // of the n-th message
		rate        float64
		tells       bool // the error tells which messages were not stored
		wantRefused []string
		wantSent    int
		wantErr     string
		wantNext    map[string]int64
	}{
		"none":               {refuses: func(int) error { return nil }, wantSent: 250, wantNext: map[string]int64{"0": 125, "1": 125}},
		"a large one":        {refuses: only(errTooLarge, 120), wantRefused: []string{"0/60"}, wantSent: 249, wantNext: map[string]int64{"0": 125, "1": 125}},
		"it is told which":   {refuses: only(errTooLarge, 120, 249), tells: true, wantRefused: []string{"0/60", "1/124"}, wantSent: 248, wantNext: map[string]int64{"0": 125, "1": 125}},
		"the first and last": {refuses: only(errors.New("timeout"), 0, 249), wantRefused: []string{"0/0", "1/124"}, wantSent: 248, wantNext: map[string]int64{"0": 124, "1": 124}},
		"many large ones": {
			refuses: func(n int) error {
				if n >= 100 && n < 130 {
					return errTooLarge
				}
				return nil
			}, wantRefused: places(100, 130), wantSent: 220, wantNext: map[string]int64{"0": 125, "1": 125},
		},
		"the broker is gone": {
			refuses: func(n int) error {
				if n >= 103 {
					return errors.New("connection refused")
				}
				return nil
			}, wantSent: 103, wantErr: "10 messages in a row", wantNext: map[string]int64{"0": 52, "1": 51},
		},
		"the broker is gone, one by one": {
			refuses: func(n int) error {
				if n >= 103 {
					return errors.New("connection refused")
				}
				return nil
			}, rate: 1e-3, wantSent: 103, wantErr: "10 messages in a row", wantNext: map[string]int64{"0": 52, "1": 51},
		},
		"there is no such consumer": {refuses: func(int) error { return classify.Permanent(brokers.ErrNoTopic) }, wantErr: "10 messages in a row", wantNext: map[string]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			sent := map[string]int{}
			calls := 0
			publish := func(messages []*message.Message) error {
				calls++
				errs := make([]error, len(messages))
				failed := false
				for i, m := range messages {
					var n int
					if _, err := fmt.Sscanf(m.Metadata["headrace_dlt_uuid"], "u-%d", &n); err != nil {
						t.Fatalf("%v of %v", err, m.Metadata)
					}
					if errs[i] = tc.refuses(n); errs[i] != nil {
						failed = true
						if !tc.tells {
							return errs[i]
						}
						continue
					}
					sent[fmt.Sprint("u-", n)]++
				}
				if failed {
					return brokers.NewPublishError("test", "c.REDRIVE", messages, errs)
				}
				return nil
			}
			o := orders{n: 250}
			r := &replay{consumer: "c", topic: "orders", batch: "b", rate: tc.rate}
			report, err := r.read(t.Context(), &broker{Broker: o, reader: o, keyed: unkeyed}, brokers.Range{}, time.Time{}, publish)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			var refused []string
			for _, f := range report.Refused {
				refused = append(refused, fmt.Sprintf("%d/%d", f.Partition, f.Offset))
				if f.Topic != "orders" || f.Why == "" {
					t.Errorf("refusal %+v", f)
				}
			}
			if report.Replayed != tc.wantSent || len(sent) != tc.wantSent || !slices.Equal(refused, tc.wantRefused) {
				t.Errorf("%d replayed, %d sent, %q refused; want %d, %q", report.Replayed, len(sent), refused, tc.wantSent, tc.wantRefused)
			}
			if tc.wantErr != "" && !maps.Equal(report.Next, tc.wantNext) {
				t.Errorf("go on at %v, want %v", report.Next, tc.wantNext)
			}
			for id, n := range sent {
				if tc.tells && n != 1 {
					t.Errorf("%s was sent %d times, though it was told to be stored", id, n)
				}
			}
			if calls > 200 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

func only(err error, which ...int) func(int) error {
	return func(n int) error {
		if slices.Contains(which, n) {
			return err
		}
		return nil
	}
}

func places(from, to int) (list []string) {
	for n := from; n < to; n++ {
		list = append(list, fmt.Sprintf("%d/%d", n%2, n/2))
	}
	return list
}

// The command as a whole: an order that is too large for the broker once its redrive's metadata are added.
func TestReplayTellsWhatItCouldNotSend(t *testing.T) {
	s := onJetStream(t)
	s.redriveTopic()
	for n := range 5 {
		payload := "{}"
		if n == 2 {
			payload = strings.Repeat("x", 1<<20-600) // with its own metadata just below the server's 1 MiB
		}
		s.order(n, payload)
	}
	args := []string{"replay", "--consumer", "billing.orders", "--topic", "orders", "--from-start", "--yes"}
	r := s.must(exitPartly, args...)
	if !strings.Contains(r.out, "gave 4 messages") || !strings.Contains(r.out, "not sent: orders/-1/3: ") || strings.Contains(r.out, "go on with") {
		t.Errorf("%s%s", r.out, r.err)
	}
	if got := len(s.redriven()); got != 4 {
		t.Errorf("%d messages are on the redrive topic, want 4", got)
	}
	var report replayReport
	if r := s.must(exitPartly, append(args, "-o", "json")...); json.Unmarshal([]byte(r.out), &report) != nil || len(report.Refused) != 1 || report.Refused[0].Offset != 3 {
		t.Errorf("JSON: %s", r.out)
	}
}

func TestForgetNamesWhatWasNotThere(t *testing.T) {
	s := onJetStream(t)
	s.parked("order-1", 2)
	args := []string{"inbox", "forget", "--consumer", "billing.orders", "--yes", "ce:/shop order-1-a", "ce:/shop none", "ce:/shop order-1-a", "ce:/shop nor this"}
	r := s.must(exitPartly, args...)
	if !strings.Contains(r.out, "forgot 1 message\n") || !strings.Contains(r.err, `"ce:/shop none" "ce:/shop nor this"`) {
		t.Errorf("%s%s", r.out, r.err)
	}
	args[5] = "ce:/shop order-1-b"
	if r := s.must(exitPartly, append(args, "-o", "json")...); !strings.Contains(r.out, `"forgotten": 1`) || strings.Count(r.out, "ce:/shop") != 3 {
		t.Errorf("JSON: %s", r.out)
	}
	s.must(exitNothing, args...)
}

package adapter_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
	"github.com/headrace-go/headrace/classify"
)

func TestPublisherClosesAfterItsCalls(t *testing.T) {
	for _, tt := range []struct {
		name      string
		unbounded bool
		want      []string
	}{
		{"calls are bounded", false, []string{"sent", "end", "closed"}},
		{"calls are not bounded", true, []string{"end", "closed", "sent"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := &adapter.Publishers{System: "test", Unbounded: tt.unbounded}
				var happened []string
				stored := make(chan error)
				send := func(string, []*message.Message) error {
					err := <-stored
					happened = append(happened, "sent")
					return err
				}
				pub, err := all.New(send, func() { happened = append(happened, "end") })
				if err != nil {
					t.Fatal(err)
				}
				failure, published := errors.New("failure"), make(chan error, 1)
				go func() { published <- pub.Publish("orders", message.NewMessage("id", nil)) }()
				synctest.Wait()
				go func() {
					if err := all.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
					happened = append(happened, "closed")
				}()
				synctest.Wait()
				if err := pub.Publish("orders"); !errors.Is(err, adapter.ErrClosed) || err.Error() != `test: publish to topic "orders": broker: closed` {
					t.Errorf("Publish after the broker's Close: %v, want %v", err, adapter.ErrClosed)
				}
				stored <- failure
				if err := <-published; err != failure {
					t.Errorf("Publish: %v, want %v", err, failure)
				}
				synctest.Wait()
				if !slices.Equal(happened, tt.want) {
					t.Errorf("what happened: %v, want %v", happened, tt.want)
				}
			})
		})
	}
}

func TestClosedPublisherRefuses(t *testing.T) {
	all := &adapter.Publishers{System: "test"}
	send := func(string, []*message.Message) error { return nil }
	pub, err := all.New(send, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := all.New(send, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := pub.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := pub.Publish("orders"); !errors.Is(err, adapter.ErrClosed) || err.Error() != `test: publish to topic "orders": publisher: closed` {
		t.Errorf("Publish after Close: %v, want %v", err, adapter.ErrClosed)
	}
	if err := other.Publish("orders"); err != nil {
		t.Errorf("Publish of another publisher: %v", err)
	}
	if err := all.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if pub, err := all.New(send, nil); pub != nil || !errors.Is(err, adapter.ErrClosed) {
		t.Errorf("New after Close: %v, %v, want %v", pub, err, adapter.ErrClosed)
	}
}

func TestBadCallsArePermanent(t *testing.T) {
	good := message.NewMessage("id", nil)
	for _, tt := range []struct {
		topic    string
		messages []*message.Message
		want     string
	}{
		{"orders", nil, ""},
		{"orders", []*message.Message{good}, ""},
		{"", []*message.Message{good}, `test: publish to topic "": it is empty`},
		{"orders", []*message.Message{good, nil}, `test: publish to topic "orders": message 1 is nil`},
	} {
		err := adapter.CheckCall("test", tt.topic, tt.messages)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("CheckCall(%q, %v): %v, want %q", tt.topic, tt.messages, err, tt.want)
		}
		if verdict := (*classify.Classifier)(nil).Classify(err).Verdict; err != nil && verdict != classify.VerdictPoison {
			t.Errorf("%v is judged %v, want %v", err, verdict, classify.VerdictPoison)
		}
	}
}

package sqs_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/sqs"
)

// service answers as the test says, in its own time: SQS with a clock. A nil answer does not come before the call is given up.
type service func(action string, request map[string]any) map[string]any

func (s service) RoundTrip(r *http.Request) (*http.Response, error) {
	var request map[string]any
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return nil, err
	}
	_, action, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	var answer map[string]any
	switch action {
	case "GetQueueUrl":
		answer = map[string]any{"QueueUrl": "http://localhost/queue"}
	case "GetQueueAttributes":
		answer = map[string]any{}
	default:
		answer = s(action, request)
	}
	if answer == nil {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	return respond(answer)
}

func (s service) client() *sdk.Client {
	url := "http://localhost"
	return sdk.New(sdk.Options{
		BaseEndpoint: &url, Region: "none", Credentials: credentials, HTTPClient: &http.Client{Transport: s}, DisableMessageChecksumValidation: true,
	})
}

// received is the answer to a receive: messages of one group, whose ids and bodies are numbers.
func received(count int, numbers ...int) map[string]any {
	var messages []any
	for _, n := range numbers {
		id := strconv.Itoa(n)
		messages = append(messages, map[string]any{
			"MessageId": id, "ReceiptHandle": id + " for the " + strconv.Itoa(count), "Body": id,
			"Attributes": map[string]any{"MessageGroupId": "k", "ApproximateReceiveCount": strconv.Itoa(count)},
		})
	}
	return map[string]any{"Messages": messages}
}

// The process was frozen for longer than the visibility: the ack of a key's first message came too late, and its second is at work still. Both
// came again in one receive. The first was held anew, and then recalled as one that came after the lost second: that went first.
func TestGroupThatIsReceivedAgainKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := make(chan struct{})
		var receives counter
		s := service(func(action string, request map[string]any) map[string]any {
			if action == "ReceiveMessage" {
				switch receives.add("") {
				case 1:
					return received(1, 0, 1)
				case 2:
					<-again
					return received(2, 0, 1)
				}
				time.Sleep(time.Second)
				return map[string]any{}
			}
			select {
			case <-again:
				return taken(request)
			default: // the ack of the first delivery of 0
				return map[string]any{"Successful": []any{}, "Failed": []any{
					map[string]any{"Id": "0", "Code": "ReceiptHandleIsInvalid", "Message": "it has expired", "SenderFault": true},
				}}
			}
		})
		b := open(t, sqs.Config{Client: s.client(), FIFO: true})
		_, in := adaptertest.Subscribe(t, b, "c", "topic", 10)
		held := adaptertest.Take(t, in, 2)
		held[0].Ack()
		brokers.DeliveryOf(held[0].Context()).Settled()
		synctest.Wait()
		close(again)
		for n := range 2 {
			m := adaptertest.Next(t, in)
			mustBe(t, "message", string(m.Payload), strconv.Itoa(n))
			mustBe(t, "deliveries", brokers.DeliveryOf(m.Context()).Count, 2)
			m.Ack()
		}
		if held[1].Context().Err() == nil {
			t.Error("the context of the earlier delivery goes on")
		}
	})
}

// taken is the answer that all entries of a batch were taken.
func taken(request map[string]any) map[string]any {
	var all []any
	for _, e := range request["Entries"].([]any) {
		all = append(all, map[string]any{"Id": e.(map[string]any)["Id"]})
	}
	return map[string]any{"Successful": all}
}

// The service has become slow. The settle under way, that of what was acked last, and the return of the rest took their CloseTimeout one after another: 6 s
// in all, and the runtime waits for 5 s.
func TestEndOfASubscriptionHasOneLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		s := service(func(action string, _ map[string]any) (answer map[string]any) {
			if action != "ReceiveMessage" {
				return nil
			}
			once.Do(func() { answer = received(1, 0, 1, 2) })
			if answer == nil {
				time.Sleep(time.Second)
				answer = map[string]any{}
			}
			return answer
		})
		config := sqs.Config{Client: s.client(), Visibility: time.Minute, CloseTimeout: 2 * time.Second}
		b := open(t, config)
		sub, in := adaptertest.Subscribe(t, b, "c", "topic", 10)
		held := adaptertest.Take(t, in, 3)
		for _, m := range held[:2] {
			m.Ack()
			brokers.DeliveryOf(m.Context()).Settled()
			synctest.Wait() // the second is acked while the first is being settled
		}
		began := time.Now()
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		if took, most := time.Since(began), time.Second+config.CloseTimeout; took > most {
			t.Errorf("Close took %v, WaitTime and CloseTimeout are %v", took, most)
		}
	})
}

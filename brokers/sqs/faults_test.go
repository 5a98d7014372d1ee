package sqs_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/sqs"
)

const wait = 20 * time.Second

// left is how many messages a topic's queue has, in flight or not.
func left(t testing.TB, c *sdk.Client, topic string, fifo bool) int {
	t.Helper()
	out, err := c.GetQueueAttributes(t.Context(), &sdk.GetQueueAttributesInput{
		QueueUrl: queueURL(t, c, topic, fifo), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, name := range []string{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"} {
		i, err := strconv.Atoi(out.Attributes[name])
		if err != nil {
			t.Fatal(err)
		}
		n += i
	}
	return n
}

// A batch of deletes is answered with 200 and a list of those that failed. A consumer that only looks at the error has acked
// messages that come again; here for longer than their visibility, which so is prolonged, and their places stay taken.
func TestFailedEntriesOfADeleteAreRepeatedWhileTheirMessagesStayHidden(t *testing.T) {
	var line tap
	c := client(t, line.through)
	b, topic := open(t, sqs.Config{Client: c}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 4)...)
	var deletes counter
	over := time.Now().Add(5 * time.Second) // twice the visibility, and more
	line.set(func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		if action == "DeleteMessageBatch" && time.Now().Before(over) {
			deletes.add("failed")
			return withoutFirst(request, forward)
		}
		return forward()
	})
	_, in := adaptertest.Subscribe(t, b, "c", topic, 3)
	for _, m := range adaptertest.Take(t, in, 3) {
		m.Ack()
	}
	// One of the three, at least, has not been deleted: the fourth comes, for there are others' places, and no other.
	got := adaptertest.Next(t, in)
	adaptertest.Quiet(t, in, time.Until(over)+time.Second)
	got.Ack()
	adaptertest.Eventually(t, func() (bool, string) {
		n := left(t, c, topic, false)
		return n == 0, fmt.Sprintf("%d messages are in the queue, want none", n)
	})
	if n := deletes.of("failed"); n < 3 {
		t.Errorf("%d deletes failed, want some repeats", n)
	}
}

func TestAckThatIsNotTakenKeepsItsPlaceInTheWindow(t *testing.T) {
	var line tap
	b, topic := open(t, sqs.Config{Client: client(t, line.through)}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 2)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	m := adaptertest.Next(t, in)
	broken := make(chan struct{})
	line.set(func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		select {
		case <-broken:
		default:
			if action == "DeleteMessageBatch" {
				return withoutFirst(request, forward)
			}
		}
		return forward()
	})
	m.Ack()
	adaptertest.Quiet(t, in, time.Second)
	close(broken)
	adaptertest.Next(t, in).Ack()
}

// Each heartbeat is a call that costs: ten deliveries go with one.
func TestHeartbeatsGoInBatches(t *testing.T) {
	var line tap
	b, topic := open(t, sqs.Config{Client: client(t, line.through)}), rand.Text()
	sizes := make(chan int, 1000)
	line.set(func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		if action == "ChangeMessageVisibilityBatch" {
			sizes <- len(request["Entries"].([]any))
		}
		return forward()
	})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 25)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 25)
	adaptertest.Take(t, in, 25)
	for beats, limit := 0, time.After(wait); ; {
		select {
		case n := <-sizes:
			if beats++; n == 10 {
				return
			}
		case <-limit:
			t.Fatalf("no call prolonged ten of 25 deliveries; there were %d calls", beats)
		}
	}
}

// The heartbeats do not get through for longer than the visibility, and another has the message. The handler must
// know, and what it still says has no effect on the other's delivery.
func TestLostDeliveryEndsItsContextAndSettlesNothing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer bool // the line is whole again before the loss is found
	}{{"the service says so", true}, {"the time says so", false}} {
		for _, mode := range modes {
			t.Run(tt.name+", "+mode.name, func(t *testing.T) {
				var line tap
				c := client(t)
				b, topic := open(t, sqs.Config{Client: client(t, line.through), FIFO: mode.fifo}), rand.Text()
				adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 1)...)
				_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
				held := adaptertest.Next(t, in)
				cut := func(actions ...string) {
					line.set(func(action string, _ map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
						if slices.Contains(actions, action) {
							return nil, errCut
						}
						return forward()
					})
				}
				cut("ChangeMessageVisibilityBatch", "ReceiveMessage") // else it could get the message again itself
				url := queueURL(t, c, topic, mode.fifo)
				var stolen []types.Message
				adaptertest.Eventually(t, func() (bool, string) {
					out, err := c.ReceiveMessage(t.Context(), &sdk.ReceiveMessageInput{QueueUrl: url, VisibilityTimeout: 60, WaitTimeSeconds: 1})
					if err != nil {
						t.Fatal(err)
					}
					stolen = out.Messages
					return len(stolen) == 1, "the message is still hidden"
				})
				if tt.answer {
					line.set(nil)
				} else {
					cut("ChangeMessageVisibilityBatch")
				}
				adaptertest.Ends(t, held)
				held.Ack()
				next := make(chan struct{})
				go func() { // the window has room again
					defer close(next)
					adaptertest.Quiet(t, in, 500*time.Millisecond)
				}()
				<-next
				line.set(nil)
				mustBe(t, "messages in the queue", left(t, c, topic, mode.fifo), 1)
				// The other's receipt is good still.
				if _, err := c.DeleteMessage(t.Context(), &sdk.DeleteMessageInput{QueueUrl: url, ReceiptHandle: stolen[0].ReceiptHandle}); err != nil {
					t.Error(err)
				}
				mustBe(t, "messages in the queue at the end", left(t, c, topic, mode.fifo), 0)
			})
		}
	}
}

// The message is not in the queue any more. The handler knows as soon as a heartbeat says so, not when the visibility ends.
func TestDeliveryOfAMessageThatIsGoneEndsWithTheNextHeartbeat(t *testing.T) {
	const visibility = 12 * time.Second // the heartbeat comes after 6 s to 8 s
	c := client(t)
	b, topic := open(t, sqs.Config{Client: c, Visibility: visibility}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	m, limit := adaptertest.Next(t, in), time.After(visibility-time.Second)
	if _, err := c.PurgeQueue(t.Context(), &sdk.PurgeQueueInput{QueueUrl: queueURL(t, c, topic, false)}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Context().Done():
	case <-limit:
		t.Error("the context goes on after the heartbeat")
	}
}

// A message comes again to the same subscription while its earlier delivery is held: two handlers ran it at once.
func TestMessageThatIsReceivedAgainEndsTheEarlierDelivery(t *testing.T) {
	var line tap
	b, topic := open(t, sqs.Config{Client: client(t, line.through)}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 2)
	line.set(func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		if action != "ChangeMessageVisibilityBatch" {
			return forward()
		}
		var prolonged []any // nothing is, but the answer says so
		for _, e := range request["Entries"].([]any) {
			prolonged = append(prolonged, map[string]any{"Id": e.(map[string]any)["Id"]})
		}
		return respond(map[string]any{"Successful": prolonged})
	})
	first := adaptertest.Next(t, in)
	again := adaptertest.Next(t, in)
	if first.Context().Err() == nil {
		t.Error("the context of the earlier delivery goes on")
	}
	mustBe(t, "deliveries", brokers.DeliveryOf(again.Context()).Count, 2)
	line.set(nil)
	again.Ack()
	adaptertest.Eventually(t, func() (bool, string) {
		n := left(t, client(t), topic, false)
		return n == 0, fmt.Sprintf("%d messages are in the queue, want none", n)
	})
}

// The handler of a key's first message gives up while the next of the key wait: they went on, and overtook it.
func TestGroupComesAgainInOrderAfterItsFirstIsGivenBack(t *testing.T) {
	for name, giveBack := range map[string]func(*message.Message){
		"nack": func(m *message.Message) {
			m.Nack()
			brokers.DeliveryOf(m.Context()).Settled()
		},
		"release": func(m *message.Message) { brokers.DeliveryOf(m.Context()).Release() },
	} {
		t.Run(name, func(t *testing.T) {
			b, topic := open(t, sqs.Config{FIFO: true}), rand.Text()
			adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 6)...)
			_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
			held := adaptertest.Take(t, in, 4)
			adaptertest.Publish(t, b, topic, adaptertest.Numbered("other", 0, 1)...)
			mustBe(t, "key", string(brokers.DeliveryOf(held[0].Context()).Key), "k")
			held[0].Ack()
			giveBack(held[1])
			for _, m := range held[2:] {
				if m.Context().Err() == nil {
					t.Errorf("the context of %s goes on: its handler would overtake 1", m.Payload)
				}
				m.Ack() // has no effect
			}
			var got []string
			for len(got) < 5 {
				m := adaptertest.Next(t, in)
				if string(brokers.DeliveryOf(m.Context()).Key) == "k" {
					got = append(got, string(m.Payload))
				}
				m.Ack()
			}
			if want := []string{"1", "2", "3", "4", "5"}; !slices.Equal(got, want) {
				t.Errorf("after 1 was given back: %v, want %v", got, want)
			}
		})
	}
}

func TestGroupsKeepTheirOrderUnderNacks(t *testing.T) {
	const keys, each = 4, 12
	seed := rand.Text()
	t.Logf("seed %s", seed)
	random := mrand(seed)
	b, topic := open(t, sqs.Config{FIFO: true}), rand.Text()
	for k := range keys {
		adaptertest.Publish(t, b, topic, adaptertest.Numbered("key"+strconv.Itoa(k), 0, each)...)
	}
	_, in := adaptertest.Subscribe(t, b, "c", topic, 20)
	got := map[string][]string{}
	for n := 0; n < keys*each; {
		m := adaptertest.Next(t, in)
		if m.Context().Err() != nil {
			continue // recalled
		}
		d := brokers.DeliveryOf(m.Context())
		if d.Count == 1 && random.IntN(8) == 0 {
			m.Nack()
			d.Settled()
			continue
		}
		got[string(d.Key)] = append(got[string(d.Key)], string(m.Payload))
		m.Ack()
		d.Settled()
		n++
	}
	for key, order := range got {
		for i, payload := range order {
			if payload != strconv.Itoa(i) {
				t.Errorf("%s: %v, want 0 to %d in order", key, order, each-1)
				break
			}
		}
	}
	adaptertest.Quiet(t, in, 100*time.Millisecond)
}

func mrand(seed string) *mathrand.Rand {
	return mathrand.New(mathrand.NewChaCha8([32]byte([]byte(seed + strings.Repeat("-", 32)))))
}

// The answer to a receive is lost on the way. In a FIFO queue its messages block their groups until their visibility ends,
// half a minute; the next try asks for the same ones.
func TestLostAnswerToAReceiveIsAskedForAgain(t *testing.T) {
	var line tap
	b, topic := open(t, sqs.Config{Client: client(t, line.through), FIFO: true, Visibility: time.Minute}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 3)...)
	var lost counter
	line.set(func(action string, _ map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		r, err := forward()
		if action == "ReceiveMessage" && err == nil && lost.add("answers") <= 5 { // more than the client itself tries
			r.Body.Close()
			return nil, errCut
		}
		return r, err
	})
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	if got, want := adaptertest.Ack(t, in, 3), []string{"0", "1", "2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A receive that is broken off takes the next messages with it: 20 of 20 with ElasticMQ.
func TestCloseLeavesNoReceiveBehindThatSwallowsMessages(t *testing.T) {
	b, topic := open(t, sqs.Config{Visibility: time.Minute}), rand.Text()
	for i := range 3 {
		sub, in := adaptertest.Subscribe(t, b, "c", topic, 10)
		adaptertest.Quiet(t, in, 100*time.Millisecond) // the receive is under way
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
		adaptertest.Publish(t, b, topic, message.NewMessage("id", []byte(strconv.Itoa(i))))
		sub, in = adaptertest.Subscribe(t, b, "c", topic, 10)
		mustBe(t, "message", adaptertest.Ack(t, in, 1)[0], strconv.Itoa(i))
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Somebody deletes the queue under a running consumer: it is made again, and what comes arrives.
func TestDeletedQueueIsMadeAgain(t *testing.T) {
	c := client(t)
	b, topic := open(t, sqs.Config{}), rand.Text()
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 1)...)
	adaptertest.Ack(t, in, 1)
	if _, err := c.DeleteQueue(t.Context(), &sdk.DeleteQueueInput{QueueUrl: queueURL(t, c, topic, false)}); err != nil {
		t.Fatal(err)
	}
	adaptertest.Eventually(t, func() (bool, string) {
		_, err := c.GetQueueUrl(t.Context(), &sdk.GetQueueUrlInput{QueueName: aws.String(topic)})
		return err == nil, fmt.Sprint(err)
	})
	adaptertest.Publish(t, b, topic, message.NewMessage("id", []byte("after")))
	mustBe(t, "message", adaptertest.Ack(t, in, 1)[0], "after")
}

// A batch is taken in part. With two messages of a key in it, the second was stored and the first sent again behind it.
func TestFailedEntriesOfASendAreRepeatedInOrder(t *testing.T) {
	var line tap
	b, topic := open(t, sqs.Config{Client: client(t, line.through), FIFO: true}), rand.Text()
	var sends counter
	line.set(func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		if action == "SendMessageBatch" && sends.add("")%2 == 1 {
			return withoutFirst(request, forward)
		}
		return forward()
	})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 5)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 10)
	if got, want := adaptertest.Ack(t, in, 5), []string{"0", "1", "2", "3", "4"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	adaptertest.Quiet(t, in, 100*time.Millisecond)
}

func TestSendThatIsNotTakenIsAnErrorWithTheMessage(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault bool
		sends int
		want  string
	}{{"for good", true, 1, "InternalError"}, {"for now", false, 5, "in 5 tries"}} {
		t.Run(tt.name, func(t *testing.T) {
			var line tap
			b, topic := open(t, sqs.Config{Client: client(t, line.through)}), rand.Text()
			var sends counter
			line.set(func(action string, request map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
				if action != "SendMessageBatch" {
					return forward()
				}
				sends.add("")
				return respond(map[string]any{"Successful": []any{}, "Failed": []any{
					map[string]any{"Id": "0", "Code": "InternalError", "Message": "no", "SenderFault": tt.fault},
				}})
			})
			pub, err := b.Publisher()
			if err != nil {
				t.Fatal(err)
			}
			err = pub.Publish(topic, message.NewMessage("the-id", []byte("x")))
			if err == nil || !strings.Contains(err.Error(), "the-id") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Publish: %v, want an error with the message's id and %q", err, tt.want)
			}
			mustBe(t, "sends", sends.of(""), tt.sends)
			if entry, ok := errors.AsType[*sqs.EntryError](err); !ok || entry.Code != "InternalError" {
				t.Errorf("the error %v has no EntryError with its code", err)
			}
		})
	}
}

// A dead letter is redriven twice within five minutes: with the message's id for a deduplication id the queue says that
// the second is stored, and drops it.
func TestSameMessagePublishedTwiceIsNotDropped(t *testing.T) {
	topic := rand.Text()
	b := open(t, sqs.Config{FIFO: true})
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 1)...)
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 1)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	adaptertest.Ack(t, in, 2)

	chosen := open(t, sqs.Config{FIFO: true, DeduplicationID: func(_ string, m *message.Message) string {
		return m.UUID + strings.Repeat(" too long ", 20) // no id of SQS: it is hashed
	}})
	adaptertest.Publish(t, chosen, topic, adaptertest.Numbered("k", 0, 1)...)
	adaptertest.Publish(t, chosen, topic, adaptertest.Numbered("k", 0, 1)...)
	adaptertest.Ack(t, in, 1)
	adaptertest.Quiet(t, in, 200*time.Millisecond)
}

func TestDelayHidesTheMessageAndHoldsUpNoOther(t *testing.T) {
	b, topic := open(t, sqs.Config{}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 3)...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	m := adaptertest.Next(t, in)
	d := brokers.DeliveryOf(m.Context())
	if d.Delay(12 * time.Hour) {
		t.Error("Delay(12 h) is true: SQS hides no message for so long after it was received")
	}
	if m.Context().Err() != nil {
		t.Error("a Delay that was refused has settled the delivery")
	}
	began := time.Now()
	if !d.Delay(1500 * time.Millisecond) {
		t.Fatal("Delay(1.5 s) is false")
	}
	others := adaptertest.Ack(t, in, 2)
	if slices.Contains(others, string(m.Payload)) {
		t.Errorf("%s was delayed, and came with the others, %v", m.Payload, others)
	}
	again := adaptertest.Next(t, in)
	if early := 1500*time.Millisecond - time.Since(began); early > 0 {
		t.Errorf("the message came %v too early", early)
	}
	mustBe(t, "message", string(again.Payload), string(m.Payload))
	mustBe(t, "deliveries", brokers.DeliveryOf(again.Context()).Count, 2)
	again.Ack()

	fifo := open(t, sqs.Config{FIFO: true})
	adaptertest.Publish(t, fifo, topic, adaptertest.Numbered("k", 0, 1)...)
	_, in = adaptertest.Subscribe(t, fifo, "c", topic, 1)
	if brokers.DeliveryOf(adaptertest.Next(t, in).Context()).Delay != nil {
		t.Error("a delivery of a FIFO queue has a Delay: it would hold up its group")
	}
}

// A restart, a release and a crash are receives too. A policy that allows three moved messages to the dead letter queue that
// nobody had failed at.
func TestRedrivePolicyThatAllowsFewReceivesIsRefused(t *testing.T) {
	c, topic := client(t), rand.Text()
	dead, err := c.CreateQueue(t.Context(), &sdk.CreateQueueInput{QueueName: aws.String("dead-" + topic)})
	if err != nil {
		t.Fatal(err)
	}
	arn, err := c.GetQueueAttributes(t.Context(), &sdk.GetQueueAttributesInput{
		QueueUrl: dead.QueueUrl, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if err != nil {
		t.Fatal(err)
	}
	declare := func(_ string, in *sdk.CreateQueueInput) {
		in.Attributes["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":3}`, arn.Attributes["QueueArn"])
	}
	b := open(t, sqs.Config{Declare: declare})
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sub.Subscribe(t.Context(), topic)
	for _, part := range []string{topic, "after 3 receives", "MinReceives is 10", "dead-" + topic} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("Subscribe: %v, want an error with %q", err, part)
		}
	}
	for _, allowed := range []int{3, sqs.AnyRedrivePolicy} {
		_, in := adaptertest.Subscribe(t, open(t, sqs.Config{MinReceives: allowed}), "c", topic, 1)
		adaptertest.Quiet(t, in, time.Millisecond)
	}
}

func TestMissingQueueIsAnErrorWithItsName(t *testing.T) {
	b, topic := open(t, sqs.Config{CheckOnly: true}), rand.Text()
	sub, err := b.Subscriber(brokers.Subscription{Consumer: "c", Topic: topic})
	if err != nil {
		t.Fatal(err)
	}
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	_, subscribed := sub.Subscribe(t.Context(), topic)
	for _, err := range []error{subscribed, pub.Publish(topic, message.NewMessage("id", nil)), b.Register(t.Context(), topic, "c")} {
		if !errors.Is(err, brokers.ErrNoTopic) || !strings.Contains(err.Error(), topic) {
			t.Errorf("error: %v, want ErrNoTopic with the queue's name", err)
		}
	}
}

// One message of a call is too large: nothing of the call is sent.
func TestTooLargeMessageIsNamedBeforeAnythingIsSent(t *testing.T) {
	b, topic := open(t, sqs.Config{}), rand.Text()
	pub, err := b.Publisher()
	if err != nil {
		t.Fatal(err)
	}
	err = pub.Publish(topic, message.NewMessage("small", []byte("x")), message.NewMessage("large", make([]byte, 200<<10))) // no text: base64
	large, ok := errors.AsType[*sqs.TooLargeError](err)
	if !ok || large.UUID != "large" || large.Limit != 256<<10 || large.Size < 200<<10*4/3 {
		t.Errorf("Publish: %v (%+v), want a TooLargeError", err, large)
	}
	mustBe(t, "messages in the queue", left(t, client(t), topic, false), 0)

	// What just fits is taken, and so are many in one call that are more than a batch may hold.
	fits := strings.Repeat("x", 256<<10-len("_watermill_message_uuid")-len("String")-len("0"))
	messages := make([]*message.Message, 5)
	for i := range messages {
		messages[i] = message.NewMessage(strconv.Itoa(i), []byte(fits))
	}
	adaptertest.Publish(t, b, topic, messages...)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 5)
	for _, m := range adaptertest.Take(t, in, 5) {
		mustBe(t, "bytes", len(m.Payload), len(fits))
		m.Ack()
	}
}

// The eleventh attribute makes SQS refuse a message, and a header of 64 KB is no trouble.
func TestMetadataBeyondTheTenAttributesArrives(t *testing.T) {
	c := client(t)
	b, topic := open(t, sqs.Config{}), rand.Text()
	sent := message.NewMessage("id", []byte("payload"))
	for i := range 30 {
		sent.Metadata.Set("key"+strconv.Itoa(i), "value")
	}
	sent.Metadata.Set("ce_type", "order.placed")
	sent.Metadata.Set("large", strings.Repeat("a\x01", 32<<10))
	adaptertest.Publish(t, b, topic, sent)
	out, err := c.ReceiveMessage(t.Context(), &sdk.ReceiveMessageInput{
		QueueUrl: queueURL(t, c, topic, false), MessageAttributeNames: []string{"All"}, WaitTimeSeconds: 5,
	})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("received %d messages, %v", len(out.Messages), err)
	}
	raw := out.Messages[0]
	mustBe(t, "attributes", len(raw.MessageAttributes), 10)
	mustBe(t, "attribute ce_type", aws.ToString(raw.MessageAttributes["ce_type"].StringValue), "order.placed")
	if _, err := c.ChangeMessageVisibility(t.Context(), &sdk.ChangeMessageVisibilityInput{
		QueueUrl: queueURL(t, c, topic, false), ReceiptHandle: raw.ReceiptHandle, VisibilityTimeout: 0,
	}); err != nil {
		t.Fatal(err)
	}
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	m := adaptertest.Next(t, in)
	if !m.Equals(sent) {
		t.Errorf("received %.200q, want %.200q", m.Metadata, sent.Metadata)
	}
	m.Ack()
}

// Receives are made at once while they are full, and no more of them than allowed.
func TestFullReceivesCallMorePollers(t *testing.T) {
	var line tap
	b, topic := open(t, sqs.Config{Client: client(t, line.through), Pollers: 3}), rand.Text()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 200)...)
	meet := make(chan struct{})
	var calls counter
	line.set(func(action string, _ map[string]any, forward func() (*http.Response, error)) (*http.Response, error) {
		if action != "ReceiveMessage" {
			return forward()
		}
		if calls.add("receives") == 3 { // the first brought a full batch, after which two are under way at once
			close(meet)
		}
		r, err := forward()
		if calls.of("receives") >= 2 {
			select {
			case <-meet:
			case <-time.After(wait):
				t.Error("the second receive waits alone: no other was under way with it")
			}
		}
		return r, err
	})
	_, in := adaptertest.Subscribe(t, b, "c", topic, 200)
	for _, m := range adaptertest.Take(t, in, 200) {
		m.Ack()
	}
}

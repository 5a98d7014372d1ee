package sqs_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/sqs"
)

// fakeSNS speaks as much of SNS as the adapter uses, and sends to queues of the real server. It stands for SNS in the form
// that its documentation gives to requests, answers and notifications; SNS itself was not there to test with.
type fakeSNS struct {
	tb      testing.TB
	queues  *sdk.Client
	wrapped bool // subscriptions have no raw delivery, whatever they ask for

	mu         sync.Mutex
	subscribed map[string][]string // queue names by topic ARN
	failures   int                 // of entries, to come: the first of each batch
	largest    int                 // entries of a batch
}

// newSNS returns a fake and a client of it.
func newSNS(tb testing.TB) (*fakeSNS, *sns.Client) {
	f := &fakeSNS{tb: tb, queues: client(tb), subscribed: map[string][]string{}}
	server := httptest.NewServer(f)
	tb.Cleanup(server.Close)
	return f, sns.New(sns.Options{
		BaseEndpoint: &server.URL, Region: "test", Credentials: credentials, HTTPClient: &http.Client{Transport: transport(tb)},
	})
}

func (f *fakeSNS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		f.tb.Errorf("the fake SNS: %v", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	action, result := r.Form.Get("Action"), ""
	switch action {
	case "CreateTopic":
		result = "<TopicArn>arn:aws:sns:test:0:" + r.Form.Get("Name") + "</TopicArn>"
	case "Subscribe":
		topic, endpoint := r.Form.Get("TopicArn"), r.Form.Get("Endpoint")
		name := endpoint[strings.LastIndex(endpoint, ":")+1:]
		if r.Form.Get("Protocol") != "sqs" || r.Form.Get("Attributes.entry.1.key") != "RawMessageDelivery" || r.Form.Get("Attributes.entry.1.value") != "true" {
			f.tb.Errorf("the fake SNS: Subscribe with %v", r.Form)
		}
		if !slices.Contains(f.subscribed[topic], name) {
			f.subscribed[topic] = append(f.subscribed[topic], name)
		}
		result = "<SubscriptionArn>" + topic + ":1</SubscriptionArn>"
	case "PublishBatch":
		result = f.publish(r)
	default:
		f.tb.Errorf("the fake SNS: action %q", action)
	}
	fmt.Fprintf(w, `<%sResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><%[1]sResult>%s</%[1]sResult></%[1]sResponse>`, action, result)
}

func (f *fakeSNS) publish(r *http.Request) string {
	var successful, failed strings.Builder
	n := 0
	for ; r.Form.Has(fmt.Sprintf("PublishBatchRequestEntries.member.%d.Id", n+1)); n++ {
		entry := func(field string) string {
			return r.Form.Get(fmt.Sprintf("PublishBatchRequestEntries.member.%d.%s", n+1, field))
		}
		if n == 0 && f.failures > 0 {
			f.failures--
			fmt.Fprintf(&failed, "<member><Id>%s</Id><Code>InternalError</Code><Message>again</Message><SenderFault>false</SenderFault></member>", entry("Id"))
			continue
		}
		for _, queue := range f.subscribed[r.Form.Get("TopicArn")] {
			f.send(r, queue, r.Form.Get("TopicArn"), entry)
		}
		fmt.Fprintf(&successful, "<member><Id>%s</Id><MessageId>%s</MessageId></member>", entry("Id"), watermill.NewUUID())
	}
	f.largest = max(f.largest, n)
	return "<Successful>" + successful.String() + "</Successful><Failed>" + failed.String() + "</Failed>"
}

// send sends one entry to one queue, as the queue's subscription says.
func (f *fakeSNS) send(r *http.Request, queue, topic string, entry func(string) string) {
	attributes := map[string]types.MessageAttributeValue{}
	notified := map[string]any{}
	for i := 1; entry(fmt.Sprintf("MessageAttributes.entry.%d.Name", i)) != ""; i++ {
		name, value := entry(fmt.Sprintf("MessageAttributes.entry.%d.Name", i)), entry(fmt.Sprintf("MessageAttributes.entry.%d.Value.StringValue", i))
		attributes[name] = text(value)
		notified[name] = map[string]string{"Type": "String", "Value": value}
	}
	body := entry("Message")
	if f.wrapped {
		wrapped, err := json.Marshal(map[string]any{
			"Type": "Notification", "MessageId": watermill.NewUUID(), "TopicArn": topic, "Message": body, "MessageAttributes": notified,
		})
		if err != nil {
			f.tb.Errorf("the fake SNS: %v", err)
		}
		body, attributes = string(wrapped), nil
	}
	found, err := f.queues.GetQueueUrl(r.Context(), &sdk.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		f.tb.Errorf("the fake SNS: queue %s: %v", queue, err)
		return
	}
	in := &sdk.SendMessageInput{QueueUrl: found.QueueUrl, MessageBody: &body, MessageAttributes: attributes}
	if group := entry("MessageGroupId"); group != "" {
		in.MessageGroupId, in.MessageDeduplicationId = &group, aws.String(entry("MessageDeduplicationId"))
	}
	if _, err := f.queues.SendMessage(r.Context(), in); err != nil {
		f.tb.Errorf("the fake SNS: send to queue %s: %v", queue, err)
	}
}

// registering is a broker whose topics have consumers a, b, c before anything is published, as the runtime registers its own.
type registering struct {
	*sqs.Broker
	consumers []string
}

func (r registering) Publisher() (message.Publisher, error) {
	p, err := r.Broker.Publisher()
	return registeringPublisher{p, r}, err
}

type registeringPublisher struct {
	message.Publisher
	broker registering
}

func (p registeringPublisher) Publish(topic string, messages ...*message.Message) error {
	if topic != "" {
		if err := p.broker.Register(context.Background(), topic, p.broker.consumers...); err != nil {
			return err
		}
	}
	return p.Publisher.Publish(topic, messages...)
}

// The suite again, with fan-out, and with every message in an envelope.
func TestSuiteWithSNS(t *testing.T) {
	suite(t, true, func(tb testing.TB) brokers.Broker {
		fake, c := newSNS(tb)
		fake.wrapped = true
		b := open(tb, sqs.Config{FIFO: true, SNS: &sqs.SNS{Client: c}, QueueName: func(topic, consumer string) string {
			if consumer == "c" {
				consumer = "" // where the suite's foreign messages go
			}
			return sqs.QueueNameForTest(topic, consumer, true)
		}})
		return registering{b, []string{"a", "b", "c"}}
	}, nil)
}

func TestEachConsumerHasAQueueOfItsOwnWithSNS(t *testing.T) {
	fake, c := newSNS(t)
	topic := "orders." + rand.Text()
	b := open(t, sqs.Config{SNS: &sqs.SNS{Client: c}})
	if !b.Capabilities().FanOut {
		t.Error("Capabilities.FanOut is false")
	}
	if err := b.Register(t.Context(), topic, "billing", "shipping"); err != nil {
		t.Fatal(err)
	}
	fake.mu.Lock()
	fake.failures = 2 // each first entry, once
	fake.mu.Unlock()
	adaptertest.Publish(t, b, topic, adaptertest.Numbered("k", 0, 25)...)
	for _, consumer := range []string{"billing", "shipping"} {
		sub, err := b.Subscriber(brokers.Subscription{Consumer: consumer, Window: 30})
		if err != nil {
			t.Fatal(err)
		}
		in, err := sub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		got := adaptertest.Ack(t, in, 25)
		slices.Sort(got)
		if n := len(slices.Compact(got)); n != 25 {
			t.Errorf("%s got %d of 25 messages", consumer, n)
		}
		adaptertest.Quiet(t, in, 0)
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	mustBe(t, "entries of the largest batch", fake.largest, 10)
}

func TestNotificationsOfOthersAreUnwrapped(t *testing.T) {
	binary := base64.StdEncoding.EncodeToString([]byte("\x00\xff"))
	good := `{"Type":"Notification","MessageId":"sns-1","TopicArn":"arn:aws:sns:test:0:t","Message":"hello",` +
		`"MessageAttributes":{"a":{"Type":"String","Value":"1"},"b":{"Type":"Binary","Value":"` + binary + `"}}}`
	badAttribute := `{"Type":"Notification","MessageId":"sns-2","TopicArn":"t","Message":"hello","MessageAttributes":{"b":{"Type":"Binary","Value":"%"}}}`
	badWire := `{"Type":"Notification","MessageId":"sns-3","TopicArn":"t","Message":"hello","MessageAttributes":{"headrace_wire":{"Type":"String","Value":"body=base64"}}}`
	incomplete := `{"Type":"Notification","MessageId":"sns-4"}`
	for _, tt := range []struct {
		name, body string
		envelope   sqs.Envelope
		payload    string
		id         string // "": the one of SQS
		bad        bool
	}{
		{"a notification", good, sqs.EnvelopeAuto, "hello", "sns-1", false},
		{"a notification that is wanted", good, sqs.EnvelopeWrapped, "hello", "sns-1", false},
		{"a notification taken as it is", good, sqs.EnvelopeRaw, good, "", false},
		{"a bad attribute", badAttribute, sqs.EnvelopeAuto, badAttribute, "", true},
		{"a bad body", badWire, sqs.EnvelopeAuto, badWire, "sns-3", true},
		{"no notification", "hello", sqs.EnvelopeAuto, "hello", "", false},
		{"no notification where one is wanted", "hello", sqs.EnvelopeWrapped, "hello", "", true},
		{"half a notification", incomplete, sqs.EnvelopeAuto, incomplete, "", false},
		{"half a notification where one is wanted", incomplete, sqs.EnvelopeWrapped, incomplete, "", true},
		{"broken JSON", good[:50], sqs.EnvelopeAuto, good[:50], "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, topic := client(t), rand.Text()
			sendRaw(t, c, topic, false, &sdk.SendMessageInput{MessageBody: &tt.body})
			_, in := adaptertest.Subscribe(t, open(t, sqs.Config{Envelope: tt.envelope}), "c", topic, 1)
			m := adaptertest.Next(t, in)
			mustBe(t, "payload", string(m.Payload), tt.payload)
			if err := brokers.DeliveryOf(m.Context()).DecodeError; (err != nil) != tt.bad {
				t.Errorf("DecodeError: %v, want one: %v", err, tt.bad)
			}
			if m.UUID == "" || tt.id != "" && m.UUID != tt.id || tt.id == "" && strings.HasPrefix(m.UUID, "sns-") {
				t.Errorf("id: %q, want %q", m.UUID, tt.id)
			}
			if tt.payload == "hello" && tt.id == "sns-1" {
				mustBe(t, "attributes", fmt.Sprint(m.Metadata), fmt.Sprint(message.Metadata{"a": "1", "b": "\x00\xff"}))
			}
			m.Ack()
		})
	}
}

// A payload of our own that looks like a notification is a payload: it arrives as it was sent.
func TestPayloadThatLooksLikeANotificationArrives(t *testing.T) {
	b, topic := open(t, sqs.Config{}), rand.Text()
	sent := message.NewMessage("id", []byte(`{"Type":"Notification","MessageId":"x","TopicArn":"t","Message":"hello"}`))
	nameless := message.NewMessage("", slices.Clone(sent.Payload))
	adaptertest.Publish(t, b, topic, sent, nameless)
	_, in := adaptertest.Subscribe(t, b, "c", topic, 1)
	mustBe(t, "payloads", fmt.Sprint(adaptertest.Ack(t, in, 2)), fmt.Sprint([]string{string(sent.Payload), string(sent.Payload)}))
}

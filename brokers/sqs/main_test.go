package sqs_test

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
	"github.com/headrace-go/headrace/brokers/sqs"
	"github.com/headrace-go/headrace/headracetest/brokertest"
	"github.com/headrace-go/headrace/internal/leak"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

var credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
})

// transport ends its connections with the test.
func transport(tb testing.TB) *http.Transport {
	t := &http.Transport{MaxIdleConnsPerHost: 64}
	tb.Cleanup(t.CloseIdleConnections)
	return t
}

// client returns a client of the real server. via, if any, sees its requests.
func client(tb testing.TB, via ...func(http.RoundTripper) http.RoundTripper) *sdk.Client {
	tb.Helper()
	url := testserver.SQS(tb)
	var round http.RoundTripper = transport(tb)
	for _, wrap := range via {
		round = wrap(round)
	}
	return sdk.New(sdk.Options{
		BaseEndpoint: &url, Region: "elasticmq", Credentials: credentials, HTTPClient: &http.Client{Transport: round},
	})
}

// open returns a broker with short times on a client of its own, unless config has one.
func open(tb testing.TB, config sqs.Config) *sqs.Broker {
	tb.Helper()
	if config.Client == nil {
		config.Client = client(tb)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if config.Visibility == 0 {
		config.Visibility = 2 * time.Second
	}
	config.WaitTime = time.Second
	config.NackDelay, config.MaxNackDelay = time.Second, time.Second
	b, err := sqs.New(config)
	return adaptertest.Opened(tb, b, err)
}

// mode is one of the ways in which queues are used.
type mode struct {
	name string
	fifo bool
}

var modes = []mode{{"standard", false}, {"fifo", true}}

// queueURL makes a topic's queue, if it is not there, without the adapter.
func queueURL(tb testing.TB, c *sdk.Client, topic string, fifo bool) *string {
	tb.Helper()
	in := &sdk.CreateQueueInput{QueueName: aws.String(sqs.QueueNameForTest(topic, "", fifo))}
	if fifo {
		in.Attributes = map[string]string{"FifoQueue": "true"}
	}
	out, err := c.CreateQueue(tb.Context(), in)
	if err != nil {
		tb.Fatal(err)
	}
	return out.QueueUrl
}

// sendRaw sends a message as a program without Headrace would.
func sendRaw(tb testing.TB, c *sdk.Client, topic string, fifo bool, in *sdk.SendMessageInput) {
	tb.Helper()
	in.QueueUrl = queueURL(tb, c, topic, fifo)
	if fifo {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String("key"), aws.String(watermill.NewUUID())
	}
	if _, err := c.SendMessage(tb.Context(), in); err != nil {
		tb.Fatal(err)
	}
}

func text(s string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &s}
}

func TestSuite(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			suite(t, mode.fifo, func(tb testing.TB) brokers.Broker { return open(tb, sqs.Config{FIFO: mode.fifo}) },
				func(tb testing.TB) (brokers.Broker, brokertest.Server) {
					p, c := proxied(tb)
					return open(tb, sqs.Config{FIFO: mode.fifo, Client: c}), p
				})
		})
	}
}

// proxied returns a client whose connections can be cut.
func proxied(tb testing.TB) (*testserver.Proxy, *sdk.Client) {
	tb.Helper()
	p, endpoint := testserver.NewProxyOf(tb, testserver.SQS(tb))
	// The server names its queues by its own address: each connection goes to the proxy, whatever the address.
	round := transport(tb)
	round.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, p.Addr())
	}
	return p, sdk.New(sdk.Options{
		BaseEndpoint: &endpoint, Region: "elasticmq", Credentials: credentials, HTTPClient: &http.Client{Transport: round},
	})
}

func suite(t *testing.T, fifo bool, broker func(testing.TB) brokers.Broker, behind func(testing.TB) (brokers.Broker, brokertest.Server)) {
	brokertest.Run(t, brokertest.Suite{
		New: broker,
		PublishForeign: func(tb testing.TB, _ brokers.Broker, topic string, payload []byte) {
			// SQS itself takes no other text: what is none has to say what it is.
			in := &sdk.SendMessageInput{MessageBody: aws.String(string(payload))}
			switch {
			case len(payload) == 0:
				in.MessageBody = aws.String("-")
				in.MessageAttributes = map[string]types.MessageAttributeValue{"headrace_wire": text("body=empty")}
			case payload[0] == 0:
				in.MessageBody = aws.String(base64.StdEncoding.EncodeToString(payload))
				in.MessageAttributes = map[string]types.MessageAttributeValue{"headrace_wire": text("body=base64")}
			}
			sendRaw(tb, client(tb), topic, fifo, in)
		},
		PublishUndecodable: func(tb testing.TB, _ brokers.Broker, topic string) []byte {
			sendRaw(tb, client(tb), topic, fifo, &sdk.SendMessageInput{
				MessageBody:       aws.String("no base 64"),
				MessageAttributes: map[string]types.MessageAttributeValue{"headrace_wire": text("body=base64")},
			})
			return []byte("no base 64")
		},
		OneBatchPerKey: fifo,
		LargeIsRefused: true, // by Config.MaxMessageBytes, and base 64 makes it more than the 1 MiB of SQS
		Behind:         behind,
		Shared:         behind != nil, // the stand-in for SNS is in this process
	})
}

func TestUniversal(t *testing.T) { universal(t, adaptertest.Universal) }

// universal runs Watermill's own suite. With one un-acked delivery and one key the order is what the suite calls guaranteed.
func universal(t *testing.T, suite adaptertest.Suite) {
	for _, tt := range []struct {
		name   string
		fifo   bool
		window int
	}{{"standard, window", false, 100}, {"fifo, one un-acked", true, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			b := open(t, sqs.Config{FIFO: tt.fifo, Key: func(*message.Message) []byte { return []byte("one key") }})
			suite(t, b, tt.window, tests.Features{
				GuaranteedOrderWithSingleSubscriber: tt.fifo,
				ForceShort:                          true, // its full size is minutes of ElasticMQ
			})
		})
	}
}

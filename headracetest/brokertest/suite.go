// Package brokertest is the conformance suite for broker adapters. An adapter that passes it can be trusted with what the
// runtime relies on: what it says of itself is true, nothing is lost, nothing is settled by itself, and bytes
// arrive as they were sent. It tests brokers.Broker only; Watermill's own universal suite comes beside it.
package brokertest

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/brokers"
)

// Suite describes the adapter under test.
type Suite struct {
	// New returns a broker. Each test calls it once and closes the broker. What the broker needs beyond its own
	// Close, such as a server, it registers with tb.Cleanup. Give it a short patience (about a second), if it has one that it
	// can extend, and short delays of redelivery. Needed.
	New func(tb testing.TB) brokers.Broker

	// PublishForeign publishes one message to topic as a program without Headrace would, with no metadata
	// and with this payload. nil: there are no foreign publishers.
	PublishForeign func(tb testing.TB, b brokers.Broker, topic string, payload []byte)

	// PublishUndecodable publishes one message whose bytes the adapter cannot make sense of, and returns the payload
	// that must arrive, with a DecodeError. nil: there is no such message.
	PublishUndecodable func(tb testing.TB, b brokers.Broker, topic string) (payload []byte)

	// PublishHeaderTwice publishes one message with two headers of one name. nil: a message has no two.
	PublishHeaderTwice func(tb testing.TB, b brokers.Broker, topic, name, first, second string)

	// Behind opens a broker as New does, and returns what its connections go through. nil: there is no server that can be away.
	Behind func(tb testing.TB) (brokers.Broker, Server)

	// Shared says that brokers which New opens in different processes have the same messages.
	Shared bool

	// UnorderedAfterKill says that what a killed process held may come after what is new.
	UnorderedAfterKill bool

	// LargeIsRefused says that a payload of 1 MB may be more than the broker takes, as it is configured.
	LargeIsRefused bool

	// OneBatchPerKey says that a broker that keeps the order of keys gives some messages of a key, and no more of it until all of
	// those are settled (SQS message groups). Then the tests of the window use a key for each message.
	OneBatchPerKey bool

	// ReleasedMayRepeat says that the server may deliver once more what was released, taken by another and acked. That is within
	// at-least-once, and rare; the suite wants to be told.
	ReleasedMayRepeat bool

	// SharedWindow is the window of each of several subscribers of one name, for a server that may stop delivering to small ones. Default 4.
	SharedWindow int

	// LeftBehind are the functions of a client library, by their full names, whose goroutines it leaves behind, whatever the adapter does.
	LeftBehind []string

	// Wait bounds the wait for whatever has to come. Default 15 s.
	Wait time.Duration

	// Quiet is how long nothing must come where nothing may. Default 150 ms.
	Quiet time.Duration
}

// Run runs the suite, one subtest after another. Each also fails if a goroutine outlives its broker.
func Run(t *testing.T, s Suite) {
	if s.New == nil {
		t.Fatal("brokertest: Suite.New is nil")
	}
	if s.Wait == 0 {
		s.Wait = 15 * time.Second
	}
	if s.Quiet == 0 {
		s.Quiet = 150 * time.Millisecond
	}
	for _, tt := range []struct {
		name string
		run  func(*T)
		is   kind
	}{
		{"CapabilitiesAreConstantAndMakeSense", claimConstant, ordinary},
		{"ClaimOrdering", claimOrdering, ordinary},
		{"ClaimMaxUnacked", claimMaxUnacked, ordinary},
		{"ClaimPatience", claimPatience, ordinary},
		{"ClaimCountsDeliveries", claimCountsDeliveries, ordinary},
		{"ClaimReleases", claimReleases, ordinary},
		{"ClaimDelays", claimDelays, ordinary},
		{"ClaimDeliveryLimit", claimDeliveryLimit, ordinary},
		{"ClaimFanOut", claimFanOut, ordinary},
		{"ClaimReplays", claimReplays, ordinary},
		{"ClaimMaxHeaderBytes", claimMaxHeaderBytes, ordinary},
		{"BadSubscriptionsAreRefused", badSubscriptions, ordinary},
		{"PublishIsConfirmed", publishIsConfirmed, ordinary},
		{"K10_MessagesFromBeforeTheFirstSubscriptionArrive", earliest, ordinary},
		{"SubscribersOfOneNameShare", share, ordinary},
		{"OrderWithOneUnacked", func(t *T) { order(t, 1) }, ordinary},
		{"OrderWithAWindow", func(t *T) { order(t, 16) }, ordinary},
		{"OneUnackedIsOne", func(t *T) { window(t, 1) }, ordinary},
		{"WindowIsFilledAndNotExceeded", func(t *T) { window(t, 8) }, ordinary},
		{"WindowIsFilledBehindAStuckDelivery", stuck, ordinary},
		{"NackRedelivers", nackRedelivers, ordinary},
		{"NackKeepsOrderWithOneUnacked", nackKeepsOrder, ordinary},
		{"S5_NackIsNoHotLoop", nackLoop, ordinary},
		{"S5_ReleaseIsNoHotLoop", releaseLoop, ordinary},
		{"ReleaseGivesToAnother", release, ordinary},
		{"SettlingTwiceHasNoEffect", settleTwice, ordinary},
		{"S1_AcksBeforeCloseCount", acksBeforeClose, ordinary},
		{"S1_AcksBeforeTheContextEndsCount", acksBeforeCancel, ordinary},
		{"CloseGivesBackInOrder", closeGivesBack, ordinary},
		{"AckOutOfOrderThenRestart", ackOutOfOrder, ordinary},
		{"MetadataAndPayloadAreExact", exact, ordinary},
		{"RedeliveryIsPristine", pristine, ordinary},
		{"PublishTakesACopy", publishCopies, ordinary},
		{"ForeignMessagesArrive", foreign, ordinary},
		{"D1_UndecodableArrivesRaw", undecodable, ordinary},
		{"DeliveryTellsWhereItCameFrom", origin, ordinary},
		{"ContextEndsWithAck", contextEndsWithAck, ordinary},
		{"ContextEndsWithSubscriber", contextEndsWithSubscriber, ordinary},
		{"CancelWhileMessagesCome", cancelWhileBusy, ordinary},
		{"CloseWhileNobodyReads", closeUnread, ordinary},
		{"SettlingAfterCloseIsHarmless", settleAfterClose, ordinary},
		{"SlowHandlerKeepsItsDelivery", slowHandler, ordinary},
		{"PrefetchKeepsItsPatience", prefetch, ordinary},
		{"ConcurrentPublishersKeepTheirOrder", concurrentPublishers, ordinary},
		{"KeysAreExact", keys, ordinary},
		{"HeadersThatComeTwiceArrive", duplicateHeaders, ordinary},
		{"OneMegabyteArrivesOrIsRefused", large, ordinary},
		{"CloseWhilePublishing", closeWhilePublishing, ordinary},
		{"AckAfterDisconnect", ackAfterDisconnect, behind},
		{"RestartUnderLoad", restartUnderLoad, behind},
		{"PublishDuringOutage", publishDuringOutage, behind},
		{"ConsumerKilled", consumerKilled, shared},
		{"CloseIsIdempotentAndFinal", closeTwice, ordinary},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ignored := []goleak.Option{goleak.IgnoreCurrent()}
			for _, function := range s.LeftBehind {
				ignored = append(ignored, goleak.IgnoreAnyFunction(function))
			}
			t.Cleanup(func() { // the first that is registered runs last
				if err := goleak.Find(ignored...); err != nil {
					t.Errorf("after Broker.Close: %v", err)
				}
			})
			test := &T{T: t, Suite: s, topic: "suite." + rand.Text()}
			switch {
			case tt.is == behind && s.Behind == nil:
				t.Skip("there is no server that can be away")
			case tt.is == behind:
				test.broker, test.server = s.Behind(t)
			case tt.is == shared && !s.Shared:
				t.Skip("another process has other messages")
			default:
				test.broker = s.New(t)
			}
			b := test.broker
			test.caps = b.Capabilities()
			defer func() {
				if err := b.Close(); err != nil {
					t.Errorf("Broker.Close: %v", err)
				}
			}()
			tt.run(test)
		})
	}
}

// T is one test and its broker.
type T struct {
	*testing.T
	Suite
	broker brokers.Broker
	server Server // of a test that is behind one
	caps   brokers.Capabilities
	topic  string
}

// kind tells what a test needs.
type kind int

const (
	ordinary kind = iota
	behind        // a server that can be away
	shared        // messages that other processes have too
)

func (t *T) publisher() message.Publisher {
	t.Helper()
	p, err := t.broker.Publisher()
	if err != nil {
		t.Fatalf("Publisher: %v", err)
	}
	return p
}

// publish publishes messages whose payloads are n numbers from first on, of one key.
func (t *T) publish(first, n int) {
	t.Helper()
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = numbered(first+i, "key")
	}
	t.publishAll(messages)
}

// publishWide publishes n messages that can all be un-acked at once, and reports whether they are in order.
func (t *T) publishWide(n int) (inOrder bool) {
	t.Helper()
	if !t.OneBatchPerKey {
		t.publish(0, n)
		return true
	}
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = numbered(i, strconv.Itoa(i))
	}
	t.publishAll(messages)
	return false
}

func (t *T) publishAll(messages []*message.Message) {
	t.Helper()
	p := t.publisher()
	if err := p.Publish(t.topic, messages...); err != nil {
		t.Fatalf("Publish of %d messages: %v", len(messages), err)
	}
	if err := p.Close(); err != nil {
		t.Fatalf("Publisher.Close: %v", err)
	}
}

func numbered(i int, key string) *message.Message {
	m := message.NewMessage(rand.Text(), []byte(strconv.Itoa(i)))
	m.Metadata["ce_partitionkey"] = key
	return m
}

func number(m *message.Message) int {
	n, err := strconv.Atoi(string(m.Payload))
	if err != nil {
		return -1
	}
	return n
}

// reader is a subscriber with one subscription.
type reader struct {
	t   *T
	sub message.Subscriber
	in  <-chan *message.Message
}

func (t *T) subscriber(consumer string, window int) message.Subscriber {
	t.Helper()
	s, err := t.broker.Subscriber(brokers.Subscription{Consumer: consumer, Topic: t.topic, Window: window})
	if err != nil {
		t.Fatalf("Subscriber of consumer %q with window %d: %v", consumer, window, err)
	}
	return s
}

func (t *T) read(consumer string, window int) *reader {
	t.Helper()
	s := t.subscriber(consumer, window)
	in, err := s.Subscribe(t.Context(), t.topic)
	if err != nil {
		t.Fatalf("Subscribe of consumer %q: %v", consumer, err)
	}
	return &reader{t: t, sub: s, in: in}
}

// next returns the next message; it must come.
func (r *reader) next() *message.Message {
	r.t.Helper()
	select {
	case m, open := <-r.in:
		if !open {
			r.t.Fatal("the channel is closed, want a message")
		}
		return m
	case <-time.After(r.t.Wait):
		r.t.Fatalf("no message in %v", r.t.Wait)
	}
	return nil
}

// ack acks the next n messages and returns their numbers.
func (r *reader) ack(n int) []int {
	r.t.Helper()
	got := make([]int, n)
	for i := range got {
		m := r.next()
		got[i] = number(m)
		if !m.Ack() {
			r.t.Fatalf("Ack of %d is false", got[i])
		}
	}
	return got
}

// take returns the next n messages without settling them.
func (r *reader) take(n int) []*message.Message {
	r.t.Helper()
	got := make([]*message.Message, n)
	for i := range got {
		got[i] = r.next()
	}
	return got
}

// quiet checks that nothing comes for a while.
func (r *reader) quiet(while string) {
	r.t.Helper()
	select {
	case m, open := <-r.in:
		if !open {
			r.t.Fatalf("the channel is closed %s", while)
		}
		r.t.Fatalf("message %s (%+v) came %s, want none", m.Payload, brokers.DeliveryOf(m.Context()), while)
	case <-time.After(r.t.Quiet):
	}
}

// close closes the subscriber and checks that the channel is closed.
func (r *reader) close() {
	r.t.Helper()
	if err := r.sub.Close(); err != nil {
		r.t.Errorf("Subscriber.Close: %v", err)
	}
	r.closed()
}

// closed checks that the channel gets closed; what comes before is dropped.
func (r *reader) closed() {
	r.t.Helper()
	limit := time.After(r.t.Wait)
	for {
		select {
		case _, open := <-r.in:
			if !open {
				return
			}
		case <-limit:
			r.t.Fatalf("the channel is not closed in %v", r.t.Wait)
		}
	}
}

func (t *T) count(m *message.Message, want int) {
	t.Helper()
	if !t.caps.CountsDeliveries {
		return
	}
	if got := t.delivery(m).Count; got != want {
		t.Errorf("message %s: Delivery.Count is %d, want %d", m.Payload, got, want)
	}
}

func (t *T) delivery(m *message.Message) *brokers.Delivery {
	t.Helper()
	d := brokers.DeliveryOf(m.Context())
	if d == nil {
		t.Fatalf("message %s has no Delivery in its context", m.Payload)
	}
	return d
}

// window returns the most that can be un-acked at once, at most n.
func (t *T) window(n int) int {
	if t.caps.MaxUnacked > 0 {
		return min(n, t.caps.MaxUnacked)
	}
	return n
}

func (t *T) ordered() bool {
	return t.caps.Ordering != brokers.OrderingNone && t.caps.Ordering != ""
}

// same checks got against want: in order if the broker keeps any, else as sets.
func (t *T) same(what string, got, want []int) {
	t.Helper()
	if !t.ordered() {
		got, want = slices.Clone(got), slices.Clone(want)
		slices.Sort(got)
		slices.Sort(want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func numbers(messages []*message.Message) []int {
	n := make([]int, len(messages))
	for i, m := range messages {
		n[i] = number(m)
	}
	return n
}

func upTo(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

func quote(metadata message.Metadata) string { return fmt.Sprintf("%q", map[string]string(metadata)) }

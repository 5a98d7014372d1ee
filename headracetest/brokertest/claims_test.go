package brokertest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/headracetest/brokertest"
)

// liar is a memory broker that does other things than it says.
type liar struct {
	brokers.Broker
	claims    func(*brokers.Capabilities)
	subscribe func(*brokers.Subscription)                         // changes what is asked for
	deliver   func(*message.Message, *brokers.Delivery) (ok bool) // changes what comes; false: it does not come
	publish   func(*message.Message) error
}

func (l liar) Capabilities() brokers.Capabilities {
	c := l.Broker.Capabilities()
	if l.claims != nil {
		l.claims(&c)
	}
	return c
}

func (l liar) Subscriber(s brokers.Subscription) (message.Subscriber, error) {
	if l.subscribe != nil {
		l.subscribe(&s)
	}
	sub, err := l.Broker.Subscriber(s)
	if err != nil || l.deliver == nil {
		return sub, err
	}
	return lyingSubscriber{sub, l.deliver}, nil
}

func (l liar) Publisher() (message.Publisher, error) {
	pub, err := l.Broker.Publisher()
	return lyingPublisher{pub, l.publish}, err
}

type lyingSubscriber struct {
	message.Subscriber
	deliver func(*message.Message, *brokers.Delivery) bool
}

func (s lyingSubscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for m := range in {
			d := *brokers.DeliveryOf(m.Context())
			m.SetContext(brokers.WithDelivery(m.Context(), &d))
			if !s.deliver(m, &d) {
				m.Ack()
				continue
			}
			select {
			case out <- m:
			case <-m.Context().Done():
			}
		}
	}()
	return out, err
}

type lyingPublisher struct {
	message.Publisher
	publish func(*message.Message) error
}

func (p lyingPublisher) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if p.publish == nil || m == nil {
			continue
		}
		if err := p.publish(m); err != nil {
			return err
		}
	}
	return p.Publisher.Publish(topic, messages...)
}

// impatient gives back what is held for so long.
func impatient(d time.Duration) func(*message.Message, *brokers.Delivery) bool {
	return func(_ *message.Message, delivery *brokers.Delivery) bool {
		time.AfterFunc(d, delivery.Release)
		return true
	}
}

var lies = []struct {
	name   string
	config memory.Config
	liar   liar
	test   string
	says   string // a part of the message; "": it passes
}{
	{name: "an honest broker", test: "Claim.*"},
	{
		name: "no system", test: "Capabilities.*", says: "Capabilities.System is empty",
		liar: liar{claims: func(c *brokers.Capabilities) { c.System = "" }},
	},
	{
		name: "order of the topic, and it has partitions", config: memory.Config{Partitions: 4}, test: "ClaimOrdering", says: `Capabilities.Ordering is "topic", but`,
		liar: liar{claims: func(c *brokers.Capabilities) { c.Ordering = brokers.OrderingTopic }},
	},
	{
		name: "order of partitions, and a key is in several", test: "ClaimOrdering", says: `Capabilities.Ordering is "partition", but key`,
		liar: liar{
			claims:  func(c *brokers.Capabilities) { c.Ordering = brokers.OrderingPartition },
			deliver: func(_ *message.Message, d *brokers.Delivery) bool { d.Partition = int32(d.Offset % 4); return true },
		},
	},
	{
		name: "no limit of un-acked deliveries, and it is 4", test: "ClaimMaxUnacked", says: "Capabilities.MaxUnacked is 0, but",
		liar: liar{subscribe: func(s *brokers.Subscription) { s.Window = min(s.Window, 4) }},
	},
	{
		name: "2 un-acked deliveries, and there are more", test: "ClaimMaxUnacked", says: "Capabilities.MaxUnacked is 2, but 3",
		liar: liar{claims: func(c *brokers.Capabilities) { c.MaxUnacked = 2 }},
	},
	{
		name: "patience for ever, and it ends", test: "ClaimPatience", says: "Capabilities.Patience is 0, but",
		liar: liar{deliver: impatient(300 * time.Millisecond)},
	},
	{
		name: "a patience that is true", test: "ClaimPatience",
		liar: liar{
			claims:  func(c *brokers.Capabilities) { c.Patience = 300 * time.Millisecond },
			deliver: impatient(300 * time.Millisecond),
		},
	},
	{
		name: "a patience, and it does not end", test: "ClaimPatience", says: "Capabilities.Patience is 300ms",
		liar: liar{claims: func(c *brokers.Capabilities) { c.Patience = 300 * time.Millisecond }},
	},
	{
		name: "a patience that ends sooner", test: "ClaimPatience", says: "Capabilities.Patience is 900ms",
		liar: liar{
			claims:  func(c *brokers.Capabilities) { c.Patience = 900 * time.Millisecond },
			deliver: impatient(200 * time.Millisecond),
		},
	},
	{
		name: "a hard limit of patience, and there is none", test: "ClaimPatience", says: "PatienceLimit 600ms",
		liar: liar{claims: func(c *brokers.Capabilities) {
			c.Patience, c.ExtendsPatience, c.PatienceLimit = 200*time.Millisecond, true, 600*time.Millisecond
		}},
	},
	{
		name: "patience is extended, and is not", test: "ClaimPatience", says: "Capabilities.ExtendsPatience is true, but",
		liar: liar{
			claims:  func(c *brokers.Capabilities) { c.Patience, c.ExtendsPatience = 300*time.Millisecond, true },
			deliver: impatient(300 * time.Millisecond),
		},
	},
	{
		name: "patience is extended, and is not, for a slow handler", test: "SlowHandler.*", says: "Capabilities.ExtendsPatience is true, but",
		liar: liar{
			claims:  func(c *brokers.Capabilities) { c.Patience, c.ExtendsPatience = 300*time.Millisecond, true },
			deliver: impatient(300 * time.Millisecond),
		},
	},
	{
		name: "deliveries are not counted, and are", test: "ClaimCountsDeliveries", says: "Capabilities.CountsDeliveries is false, but",
		liar: liar{claims: func(c *brokers.Capabilities) { c.CountsDeliveries = false }},
	},
	{
		name: "deliveries are counted, and are not", test: "ClaimCountsDeliveries", says: "Capabilities.CountsDeliveries is true, but",
		liar: liar{deliver: func(_ *message.Message, d *brokers.Delivery) bool { d.Count = 0; return true }},
	},
	{
		name: "no release, and there is one", test: "ClaimReleases", says: "Capabilities.Releases is false, but",
		liar: liar{claims: func(c *brokers.Capabilities) { c.Releases = false }},
	},
	{
		name: "a release, and there is none", test: "ClaimReleases", says: "Capabilities.Releases is true, but",
		liar: liar{deliver: func(_ *message.Message, d *brokers.Delivery) bool { d.Release = nil; return true }},
	},
	{
		name: "a release that loses the message", test: "ClaimReleases", says: "Capabilities.Releases is true, but",
		liar: liar{deliver: func(m *message.Message, d *brokers.Delivery) bool { d.Release = func() { m.Ack() }; return true }},
	},
	{
		name: "no delay, and there is one", test: "ClaimDelays", says: "Capabilities.Delays is false, but",
		liar: liar{claims: func(c *brokers.Capabilities) { c.Delays = false }},
	},
	{
		name: "a delay, and there is none", test: "ClaimDelays", says: "Capabilities.Delays is true, but",
		liar: liar{deliver: func(_ *message.Message, d *brokers.Delivery) bool { d.Delay = nil; return true }},
	},
	{
		name: "a delay that does not wait", test: "ClaimDelays", says: "Capabilities.Delays is true, but",
		liar: liar{deliver: func(_ *message.Message, d *brokers.Delivery) bool {
			d.Delay = func(time.Duration) bool { d.Release(); return true }
			return true
		}},
	},
	{
		name: "no delivery limit, and it is 20", test: "ClaimDeliveryLimit", says: "Capabilities.DeliveryLimit is 0, but after 20 deliveries",
		liar: liar{deliver: func(_ *message.Message, d *brokers.Delivery) bool { return d.Count <= 20 }},
	},
	{
		name: "a delivery limit, and it is lower", test: "ClaimDeliveryLimit", says: "Capabilities.DeliveryLimit is 8, but after 5 deliveries",
		liar: liar{
			claims:  func(c *brokers.Capabilities) { c.DeliveryLimit = 8 },
			deliver: func(_ *message.Message, d *brokers.Delivery) bool { return d.Count <= 5 },
		},
	},
	{
		name: "fan-out, and messages are shared", test: "ClaimFanOut", says: "Capabilities.FanOut is true, but",
		liar: liar{subscribe: func(s *brokers.Subscription) { s.Consumer = "all" }},
	},
	{
		name: "no fan-out, and there is", test: "ClaimFanOut", says: "Capabilities.FanOut is false, but",
		liar: liar{claims: func(c *brokers.Capabilities) { c.FanOut = false }},
	},
	{
		name: "replays, and what is acked is gone", config: memory.Config{History: memory.NoHistory}, test: "ClaimReplays", says: "Capabilities.Replays is true, but",
		liar: liar{claims: func(c *brokers.Capabilities) { c.Replays = true }},
	},
	{
		name: "metadata without a limit, and there is one", test: "ClaimMaxHeaderBytes", says: "Capabilities.MaxHeaderBytes is 0, but",
		liar: liar{publish: func(m *message.Message) error {
			if n := len(m.Metadata["k"]); n > 1000 {
				return classify.Permanent(fmt.Errorf("message %s: %d bytes of metadata", m.UUID, n))
			}
			return nil
		}},
	},
	{
		name: "a limit of metadata, and each value has a lower one", test: "ClaimMaxHeaderBytes", says: "Capabilities.MaxHeaderBytes is 8192, but",
		liar: liar{
			claims: func(c *brokers.Capabilities) { c.MaxHeaderBytes = 8192 },
			publish: func(m *message.Message) error {
				m.Metadata["k"] = m.Metadata["k"][:min(len(m.Metadata["k"]), 4096)]
				return nil
			},
		},
	},
}

const lieVariable = "HEADRACE_BROKERTEST_LIE"

// A claim that is not true fails the suite, in a process of its own, with a message that names the capability.
func TestFalseClaimsFail(t *testing.T) {
	if name := os.Getenv(lieVariable); name != "" {
		runLiar(t, name)
		return
	}
	for _, lie := range lies {
		t.Run(lie.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestFalseClaimsFail$/^"+lie.test+"$", "-test.v")
			cmd.Env = append(os.Environ(), lieVariable+"="+lie.name)
			out, err := cmd.CombinedOutput()
			if ran := regexp.MustCompile(`(?m)^ +--- (PASS|FAIL): TestFalseClaimsFail/`).Match(out); !ran || (err == nil) != (lie.says == "") {
				t.Fatalf("%s ended with %v; want a failure: %v\n%s", lie.test, err, lie.says != "", out)
			}
			if !strings.Contains(string(out), lie.says) {
				t.Errorf("the suite does not say %q:\n%s", lie.says, out)
			}
		})
	}
}

// runLiar is the suite on one of the lies.
func runLiar(t *testing.T, name string) {
	var config memory.Config
	var l liar
	for _, lie := range lies {
		if lie.name == name {
			config, l = lie.config, lie.liar
		}
	}
	brokertest.Run(t, brokertest.Suite{
		Wait: 2 * time.Second,
		New: func(tb testing.TB) brokers.Broker {
			b, err := memory.New(config)
			if err != nil {
				tb.Fatal(err)
			}
			l.Broker = b
			return l
		},
	})
}

package kafka_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
)

func deleteTopic(t *testing.T, seeds []string, topic string) {
	t.Helper()
	if _, err := kadm.NewClient(client(t, seeds)).DeleteTopic(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
}

// makeAnew makes a topic that was deleted, with one record. Then nobody writes to the deleted one any more.
func makeAnew(t *testing.T, seeds []string, topic string) {
	t.Helper()
	admin := kadm.NewClient(client(t, seeds))
	var made kadm.CreateTopicResponse
	eventually(t, "the topic is made anew", 30*time.Second, func() bool {
		var err error
		made, err = admin.CreateTopic(t.Context(), 1, -1, nil, topic)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			t.Fatal(err)
		}
		return err == nil
	})
	eventually(t, "the new topic is known", 30*time.Second, func() bool {
		all, err := admin.ListTopics(kadm.WithAuthorizedOps(t.Context()), topic)
		return err == nil && all[topic].ID == made.ID
	})
	fill(t, seeds, topic, 0, 1, key)
}

// logged keeps what was logged.
type logged struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// ended waits for the end of a subscription, and checks that its log says why. It returns what came until then.
func ended(t *testing.T, r *reader, log *logged, why string) (came []*message.Message) {
	t.Helper()
	late := time.After(60 * time.Second)
	for {
		select {
		case m, open := <-r.in:
			if open {
				came = append(came, m)
				continue
			}
		case <-late:
			t.Fatalf("the subscription goes on after 60 s; its log:\n%s", log)
		}
		break
	}
	if got := log.String(); !strings.Contains(got, "subscription ends") || !strings.Contains(got, why) {
		t.Errorf("the log does not say that the subscription ends since %q:\n%s", why, got)
	}
	return came
}

func watched(seeds []string) (kafka.Config, *logged) {
	log := &logged{}
	config := quick(seeds)
	config.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return config, log
}

// A topic was deleted and made anew while it was read. The client reads the old one for ever, which is no more, and the consumer stood still
// with nothing but a log line.
func TestSubscriptionToATopicMadeAnewEnds(t *testing.T) {
	_, seeds := fake(t)
	subscriptionMadeAnew(t, seeds, false)
}

func TestSubscriptionToATopicMadeAnewEndsOnKafka(t *testing.T) {
	subscriptionMadeAnew(t, real(t), false)
}

func TestPatternOfATopicMadeAnewEnds(t *testing.T) {
	_, seeds := fake(t)
	subscriptionMadeAnew(t, seeds, true)
}

func TestPatternOfATopicMadeAnewEndsOnKafka(t *testing.T) { subscriptionMadeAnew(t, real(t), true) }

func subscriptionMadeAnew(t *testing.T, seeds []string, pattern bool) {
	topic := uniqueTopic(t, seeds, 1)
	config, log := watched(seeds)
	subscribed := topic
	if pattern {
		config.Regex = true
		subscribed = "^" + topic + "$"
	}
	b := open(t, config)
	fill(t, seeds, topic, 0, 3, key)
	r := read(t, b, subscribed, 16)
	var before string
	for _, m := range r.take(3) {
		before = at(m).Incarnation
		m.Ack()
	}
	eventually(t, "a commit of 3", 15*time.Second, func() bool { o, _ := offsetOf(t, seeds, "c", topic, 0); return o == 3 })
	deleteTopic(t, seeds, topic)
	makeAnew(t, seeds, topic)
	fill(t, seeds, topic, 0, 4, key)
	for _, m := range ended(t, r, log, fmt.Sprintf("topic %s was deleted and made anew", `\"`+topic+`\"`)) {
		t.Errorf("offset %d of incarnation %s came before the end", at(m).Offset, at(m).Incarnation)
	}
	r.close()
	r = read(t, b, subscribed, 16)
	if m := r.next(); at(m).Offset != 0 || at(m).Incarnation == before {
		t.Errorf("offset %d of incarnation %s came, want 0 and not %s", at(m).Offset, at(m).Incarnation, before)
	}
}

// A topic that is deleted for good has no records any more. A consumer that was only there for it must not look healthy for ever.
func TestSubscriptionToADeletedTopicEnds(t *testing.T) {
	_, seeds := fake(t)
	topic := uniqueTopic(t, seeds, 1)
	config, log := watched(seeds)
	fill(t, seeds, topic, 0, 1, key)
	r := read(t, open(t, config), topic, 16)
	r.next().Ack()
	deleteTopic(t, seeds, topic)
	ended(t, r, log, fmt.Sprintf("topic %s was deleted under", `\"`+topic+`\"`))
}

// A topic was deleted and made anew while it was published to, as a dead-letter topic may be: whatever was published after that failed. And
// once it does not, what Publish has confirmed is there: numbers of a producer that begin again are taken for what was sent before.
func TestPublisherToATopicMadeAnewGoesOn(t *testing.T) {
	_, seeds := fake(t)
	publisherMadeAnew(t, seeds)
}

func TestPublisherToATopicMadeAnewGoesOnOnKafka(t *testing.T) { publisherMadeAnew(t, real(t)) }

func publisherMadeAnew(t *testing.T, seeds []string) {
	const publishers, each = 8, 20
	topic := uniqueTopic(t, seeds, 1)
	config := quick(seeds)
	config.PublishTimeout = 10 * time.Second
	pub := publisher(t, open(t, config))
	for round := range 3 {
		if round > 0 {
			deleteTopic(t, seeds, topic)
			makeAnew(t, seeds, topic)
		}
		confirmed := make(map[string]bool)
		var mu sync.Mutex
		var wg sync.WaitGroup
		late := time.Now().Add(90 * time.Second)
		for p := range publishers {
			wg.Go(func() {
				for i, failed := 0, 0; i < each; {
					id := fmt.Sprintf("%d-%d-%d-%d", round, p, i, failed)
					err := pub.Publish(topic, message.NewMessage(id, []byte(id)))
					switch {
					case err == nil:
						mu.Lock()
						confirmed[id] = true
						mu.Unlock()
						i++
					case time.Now().After(late):
						t.Errorf("round %d: Publish still fails: %v", round, err)
						return
					default:
						failed++
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		cl := client(t, seeds, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
		for len(confirmed) > 0 {
			fetches := cl.PollFetches(t.Context())
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			for _, r := range fetches.Records() {
				delete(confirmed, string(r.Value))
			}
			ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			end, _ := ends.Lookup(topic, 0)
			if rs := fetches.Records(); len(confirmed) > 0 && len(rs) > 0 && rs[len(rs)-1].Offset >= end.Offset-1 {
				t.Fatalf("round %d: %d messages that were confirmed are not in the topic", round, len(confirmed))
			}
		}
		cl.Close()
	}
}

package kafka_test

import (
	"context"
	"crypto/rand"
	"flag"
	mathrand "math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers/kafka"
)

var stormRounds = flag.Int("storm", 12, "joins, leaves and kills in each storm")

// Members join and leave all the time. Nobody dies: so nothing is lost, nothing is out of order, and nothing has
// a second effect.
func TestStormOfJoinsAndLeaves(t *testing.T) {
	_, seeds := fake(t)
	t.Run("cooperative-sticky", func(t *testing.T) { storm(t, seeds, stormConfig{}) })
	t.Run("eager", func(t *testing.T) {
		storm(t, seeds, stormConfig{options: []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}})
	})
}

// Members are cut off as well and live on as zombies until they notice. What they had not committed takes effect again;
// nothing is lost or out of order.
func TestStormOfKills(t *testing.T) {
	_, seeds := fake(t)
	storm(t, seeds, stormConfig{kills: true})
}

func TestStormsOnKafka(t *testing.T) {
	seeds := real(t)
	t.Run("cooperative-sticky", func(t *testing.T) { storm(t, seeds, stormConfig{}) })
	t.Run("eager", func(t *testing.T) {
		storm(t, seeds, stormConfig{options: []kgo.Opt{kgo.Balancers(kgo.RangeBalancer())}})
	})
	t.Run("assigned by the cluster", func(t *testing.T) {
		// Before Kafka 4.3 a commit can be refused with a stale epoch that the client cannot renew, see kgo.ServerSideBalancer:
		// then the new owner repeats what was not committed.
		storm(t, seeds, stormConfig{repeats: true, options: []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}})
	})
	t.Run("kills", func(t *testing.T) { storm(t, seeds, stormConfig{kills: true}) })
}

type stormConfig struct {
	options []kgo.Opt
	kills   bool
	repeats bool // a partition that moves may be repeated from its last commit
}

func storm(t *testing.T, seeds []string, sc stormConfig) {
	const keys, partitions, backlog = 40, 6, 800
	topic := "storm." + rand.Text()
	makeTopic(t, seeds, topic, partitions)
	seed := mathrand.Uint64()
	t.Logf("seed %d", seed)
	r := mathrand.New(mathrand.NewPCG(seed, 0))

	h := newHistory()
	handle := func(ctx context.Context, process int, key string, seq int) error {
		h.start(process, key)
		defer h.end(process, key)
		if err := wait(ctx, jitter(4*time.Millisecond)); err != nil {
			return err
		}
		h.effect(effect{key, seq, process})
		return nil
	}
	config := kafka.Config{
		Seeds: seeds, CommitInterval: 20 * time.Millisecond, CommitTimeout: time.Second, RevokeWait: 5 * time.Second,
		CloseTimeout: time.Second,
		Options: append([]kgo.Opt{
			kgo.HeartbeatInterval(50 * time.Millisecond), kgo.SessionTimeout(time.Second), kgo.RebalanceTimeout(7 * time.Second),
			kgo.MetadataMinAge(50 * time.Millisecond), kgo.RequestRetries(3),
		}, sc.options...),
	}
	var live []*process
	started := 0
	start := func() {
		live = append(live, startProcess(t, started, config, topic, topic, 16, handle))
		started++
	}
	// Messages come as long as the storm lasts, as fast as they are handled with a backlog that is never empty.
	each, calm, published := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(published)
		cl := client(t, seeds, kgo.ProducerLinger(0))
		defer cl.Close()
		for ; ; each++ {
			for each*keys-h.distinct() > backlog {
				select {
				case <-time.After(time.Millisecond):
					continue
				case <-calm:
				}
				return
			}
			records := make([]*kgo.Record, keys)
			for k := range records {
				records[k] = &kgo.Record{Topic: topic, Key: []byte(strconv.Itoa(k)), Value: []byte(strconv.Itoa(each))}
			}
			if err := cl.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
				t.Errorf("publish: %v", err)
				return
			}
			select {
			case <-calm:
				each++
				return
			default:
			}
		}
	}()
	start()
	kills := 0
	for range *stormRounds {
		<-time.After(time.Duration(r.Int64N(int64(250 * time.Millisecond)))) // the storm's own time: there is nothing to wait for
		switch i := r.IntN(len(live)); {
		case len(live) < 2 || len(live) < 5 && r.IntN(2) == 0:
			start()
		case sc.kills && r.IntN(2) == 0:
			live[i].kill(t)
			live = append(live[:i], live[i+1:]...)
			kills++
		default:
			live[i].stop(t)
			live = append(live[:i], live[i+1:]...)
		}
	}
	close(calm)
	<-published
	defer func() {
		if t.Failed() {
			for _, p := range live {
				t.Logf("process %d: %+v %+v", p.number, p.broker.Stats(), p.intake.Stats())
			}
			groups, err := kadm.NewClient(client(t, seeds)).DescribeGroups(context.Background(), topic)
			t.Logf("group is %s, %v", groups[topic].State, err)
			for _, m := range groups[topic].Members {
				a, _ := m.Assigned.AsConsumer()
				t.Logf("member %s at %s has %+v", m.MemberID, m.ClientHost, a)
			}
		}
	}()
	eventually(t, "all messages have an effect", 40*time.Second, func() bool { return h.distinct() == keys*each })
	for _, p := range live {
		p.stop(t)
	}
	// A kill can repeat what was handled since the last commit that arrived.
	duplicates := kills * keys * each
	if sc.repeats {
		duplicates = keys * each
	}
	h.check(t, keys, each, duplicates)
	t.Logf("%d processes, %d kills, %d effects of %d messages", started, kills, len(h.effects), keys*each)
}

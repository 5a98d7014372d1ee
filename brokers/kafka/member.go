package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/brokers"
)

// pauseAfter is how long a full partition holds up the polling before its fetches are paused. A paused partition loses
// what is being fetched for it, so that a partition whose handlers do go on is better waited for.
const pauseAfter = 10 * time.Millisecond

// member is one subscription: a client that is a member of its consumer's group. Four goroutines and one for each
// assignment: run, poll, commitLoop and lagLoop. franz-go calls assigned, offsets, revoked and lost from goroutines of its own, one at
// a time.
//
// Locks: commitMu before mu before assignment.turns before assignment.mu before budget.mu and queue.mu. A turn takes no two
// assignments' locks at once. franz-go holds none of its own when it calls us.
type member struct {
	broker   *Broker
	config   *Config
	consumer string
	topic    string // what was subscribed to
	oneLane  bool   // all of a partition is one lane: nothing overtakes
	limits   limits
	log      *slog.Logger
	client   *kgo.Client
	abandon  context.CancelFunc // ends whatever client waits for
	ready    chan struct{}      // closed when client and refused are set: it may call back before
	refused  bool               // the subscription does not begin; what the group assigns meanwhile is not taken
	ctx      context.Context    // of the subscription and its deliveries
	end      context.CancelCauseFunc
	out      chan *message.Message
	queue    queue
	pulled   bool // from queue; out is not used
	budget   *budget
	ending   atomic.Bool                     // the subscription ends: wait for nothing
	gone     atomic.Bool                     // it has ended
	leaving  atomic.Pointer[context.Context] // how long it may leave in peace, from then on

	drained  chan struct{} // some partition is not full any more; capacity 1
	soon     chan struct{} // commit before the next interval; capacity 1
	newParts chan struct{} // there are new assignments; capacity 1
	unknown  chan string   // a topic whose fetches fail with UnknownTopicID; capacity 1

	mu    sync.Mutex
	parts map[partitionID]*assignment
	polls polls

	// commitMu is held while a commit is collected and sent, and while partitions are given up: a commit
	// that was collected before and sent after that would overwrite that of the next owner (fault K5).
	commitMu    sync.Mutex
	abortCommit atomic.Pointer[context.CancelFunc]
	noMetadata  bool // the cluster refuses ours; guarded by commitMu
}

// polls lets a callback of the group wait until what was polled before it has reached its assignment. Guarded by member.mu.
type polls struct {
	stop   bool // begin no further round
	ended  bool // there is none any more
	done   int  // rounds
	round  *sync.Cond
	cancel context.CancelFunc // of the round that runs, if any
	urgent int                // callbacks that wait: a round must not block
}

func (b *Broker) newMember(ctx context.Context, want brokers.Subscription, topic, instance string, pulled bool) (*member, error) {
	m := &member{
		broker:   b,
		config:   &b.config,
		consumer: want.Consumer,
		topic:    topic,
		oneLane:  want.OwnKeys,
		limits:   b.config.limits(want.Window),
		log:      b.config.Logger.With("consumer", want.Consumer, "topic", topic),
		ctx:      ctx,
		out:      make(chan *message.Message),
		queue:    queue{ready: make(chan struct{}, 1)},
		pulled:   pulled,
		ready:    make(chan struct{}),
		budget:   newBudget(want.Window),
		drained:  make(chan struct{}, 1),
		soon:     make(chan struct{}, 1),
		newParts: make(chan struct{}, 1),
		unknown:  make(chan string, 1),
		parts:    make(map[partitionID]*assignment),
	}
	if m.oneLane {
		m.limits.key = want.Window
	}
	m.polls.round = sync.NewCond(&m.mu)
	clientCtx, abandon := context.WithCancel(context.Background())
	m.abandon = abandon
	opts := append(b.config.consumer(), b.config.reads(topic)...)
	opts = append(opts,
		kgo.WithContext(clientCtx),
		kgo.ConsumerGroup(want.Consumer),
		kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(m.assigned),
		kgo.OnOffsetsFetched(m.offsets),
		kgo.OnPartitionsRevoked(m.revoked),
		kgo.OnPartitionsLost(m.lost),
	)
	if instance != "" {
		opts = append(opts, kgo.InstanceID(instance))
	}
	var err error
	if m.client, err = kgo.NewClient(opts...); err != nil {
		abandon()
		return nil, fmt.Errorf("kafka: subscribe consumer %q to topic %q: %w", want.Consumer, topic, err)
	}
	err = b.config.checkTimes(m.client)
	m.refused = err != nil
	close(m.ready)
	if err != nil {
		m.client.Close()
		abandon()
		return nil, err
	}
	return m, nil
}

// run runs the subscription until its context ends.
func (m *member) run() {
	var polling, others sync.WaitGroup
	stop := make(chan struct{})
	polling.Go(m.poll)
	others.Go(func() { m.commitLoop(stop) })
	others.Go(func() { m.lagLoop(stop) })
	<-m.ctx.Done()
	m.ending.Store(true)
	m.stopPolling()
	polling.Wait()
	m.leave()
	close(stop)
	others.Wait()
	for _, a := range m.take(nil) { // what the group did not tell of
		a.stop()
		a.freeze(context.Cause(m.ctx))
	}
	m.gone.Store(true)
	close(m.out)
	close(m.queue.ready)
}

// poll brings what is fetched to the assignments. It never waits for a handler.
func (m *member) poll() {
	defer m.pollingEnded()
	for {
		ctx, ok := m.beginPoll()
		if !ok {
			return
		}
		fetches := m.client.PollFetches(ctx)
		full := m.distribute(fetches)
		closed := fetches.IsClientClosed()
		m.endPoll()
		if closed {
			return
		}
		m.awaitRoom(full)
	}
}

func (m *member) beginPoll() (context.Context, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.polls.stop {
		return nil, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.polls.cancel = cancel
	if m.polls.urgent > 0 {
		cancel()
	}
	return ctx, true
}

func (m *member) endPoll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polls.cancel()
	m.polls.cancel = nil
	m.polls.done++
	m.polls.round.Broadcast()
}

func (m *member) pollingEnded() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polls.ended = true
	m.polls.round.Broadcast()
}

func (m *member) stopPolling() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polls.stop = true
	if m.polls.cancel != nil {
		m.polls.cancel()
	}
}

// awaitPoll returns when whatever franz-go had given out when it was called has reached its assignment. Of what it fetched
// before, franz-go gives out nothing after it has called revoked; but after it has called lost it does, until it calls assigned.
func (m *member) awaitPoll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A round that begins after this has nothing of ours; the one that runs may.
	m.polls.urgent++
	if m.polls.cancel != nil {
		m.polls.cancel()
	}
	m.room()
	for want := m.polls.done + 1; !m.polls.ended && m.polls.done < want; {
		m.polls.round.Wait()
	}
	m.polls.urgent--
}

// distribute hands fetches to their assignments and returns those that are full.
func (m *member) distribute(fetches kgo.Fetches) (full []*assignment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fetches.EachTopic(func(t kgo.FetchTopic) {
		t.EachPartition(func(p kgo.FetchPartition) {
			if p.Err != nil {
				m.fetchFailed(t.Topic, p)
			}
			id := partitionID{t.Topic, p.Partition}
			a := m.parts[id]
			if a == nil {
				return // given up while this was on its way
			}
			a.heard(t.TopicID, p)
			if !a.push(p.Records) {
				// With topic ids a topic that was made anew does not come here: see checkTopic.
				m.log.Warn("kafka: a partition went back: it was truncated, or made anew in a cluster without topic ids; it is read on from there",
					"topic", t.Topic, "partition", p.Partition, "offset", p.Records[0].Offset)
				a = m.restart(a)
				a.heard(t.TopicID, p)
				a.push(p.Records)
			}
			if a.full() {
				full = append(full, a)
			}
		})
	})
	return full
}

func (m *member) fetchFailed(topic string, p kgo.FetchPartition) {
	if errors.Is(p.Err, context.Canceled) || errors.Is(p.Err, kgo.ErrClientClosed) {
		return
	}
	m.log.Error("kafka: fetch", "topic", topic, "partition", p.Partition, "error", p.Err)
	if errors.Is(p.Err, kerr.UnknownTopicID) {
		select {
		case m.unknown <- topic:
		default: // it will be said again
		}
	}
}

// restart replaces a by an assignment that has seen nothing. What a holds is not told to the broker. mu is held.
func (m *member) restart(a *assignment) *assignment {
	a.stop()
	running := a.freeze(ErrLost)
	n := newAssignment(m.ctx, m, a.partitionID, running)
	m.parts[a.partitionID] = n
	go n.run()
	return n
}

// awaitRoom waits a little for full to have room, and pauses the fetches of those that have none by then.
func (m *member) awaitRoom(full []*assignment) {
	if len(full) == 0 {
		return
	}
	limit := time.NewTimer(pauseAfter)
	defer limit.Stop()
	for {
		full = slices.DeleteFunc(full, func(a *assignment) bool { return !a.full() })
		if len(full) == 0 {
			return
		}
		select {
		case <-m.drained:
			m.mu.Lock()
			urgent := m.polls.urgent > 0 || m.polls.stop
			m.mu.Unlock()
			if !urgent {
				continue
			}
		case <-limit.C:
		}
		for _, a := range full {
			a.pauseIfFull()
		}
		return
	}
}

// room tells awaitRoom to look again.
func (m *member) room() {
	select {
	case m.drained <- struct{}{}:
	default:
	}
}

// find returns the assignments of these partitions, all if ids is nil. take removes them from those that are known as well.
func (m *member) find(ids map[string][]int32) []*assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.findLocked(ids)
}

func (m *member) take(ids map[string][]int32) []*assignment {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := m.findLocked(ids)
	for _, a := range taken {
		delete(m.parts, a.partitionID)
	}
	return taken
}

func (m *member) findLocked(ids map[string][]int32) []*assignment {
	var found []*assignment
	for id, a := range m.parts {
		if ids == nil || slices.Contains(ids[id.topic], id.partition) {
			found = append(found, a)
		}
	}
	return found
}

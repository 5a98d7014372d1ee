package pulsar

import (
	"context"
	"fmt"
	"sync"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// batchDelay is how long the client keeps a batch that nobody flushes. Every call of Publish flushes, but the partitions of a topic one after the
// other. It is also how often each producer wakes.
const batchDelay = 20 * time.Millisecond

// maxPending bounds the messages of one producer that await their confirmation.
const maxPending = 1000

// producers has the producers of a broker, one for each topic, so that messages of one topic are stored in the order of the calls.
type producers struct {
	config *Config
	calls  *sync.WaitGroup

	mu     sync.Mutex
	closed bool
	of     map[string]*producer
}

// producer is a producer of one topic, or will be one.
type producer struct {
	topic  string
	made   chan struct{} // closed when client, or err, is there
	client pulsarclient.Producer
	err    error

	users   int       // calls that use it
	used    time.Time // when the last one began
	dropped bool      // it is closed when nobody uses it
}

func newProducers(config *Config, calls *sync.WaitGroup) *producers {
	return &producers{config: config, calls: calls, of: make(map[string]*producer)}
}

// get returns the producer of a topic, and makes it if need be. put gives it back.
func (s *producers) get(ctx context.Context, topic string) (*producer, error) {
	p, err := s.enter(topic)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.made:
	case <-ctx.Done():
		s.put(p, false)
		return nil, fmt.Errorf("no producer: %w", context.Cause(ctx))
	}
	if p.err != nil {
		s.put(p, true)
		return nil, p.err
	}
	return p, nil
}

func (s *producers) enter(topic string) (*producer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("broker: %w", adapter.ErrClosed)
	}
	p := s.of[topic]
	if p == nil {
		if len(s.of) >= s.config.MaxProducers && !s.evict() {
			return nil, fmt.Errorf("%d topics have a producer at work: as many as Config.MaxProducers allows", len(s.of))
		}
		p = &producer{topic: topic, made: make(chan struct{})}
		s.of[topic] = p
		s.calls.Go(func() { s.make(p) })
	}
	p.users++
	p.used = time.Now()
	return p, nil
}

func (s *producers) make(p *producer) {
	defer close(p.made)
	p.client, p.err = s.config.Client.CreateProducer(pulsarclient.ProducerOptions{
		Topic: p.topic,
		// Publish has its own timeout, and a goroutine of the client would outlive the producer by this one.
		SendTimeout:             -1,
		MaxPendingMessages:      maxPending,
		CompressionType:         s.config.Compression,
		DisableBatching:         !s.config.Batched,
		BatcherBuilderType:      pulsarclient.KeyBasedBatchBuilder,
		BatchingMaxPublishDelay: batchDelay,
		BackOffPolicyFunc:       func() backoff.Policy { return &reconnect{} },
	})
	if p.err != nil {
		p.err = fmt.Errorf("make a producer: %w", p.err)
	}
}

// evict drops the producer that was unused for longest.
func (s *producers) evict() bool {
	var oldest *producer
	for _, p := range s.of {
		if p.users == 0 && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	s.drop(oldest)
	return true
}

// put gives p back. A broken one is not used for further calls: what was sent with it and not confirmed must not be stored much later.
func (s *producers) put(p *producer, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.users--
	if broken || p.dropped {
		s.drop(p)
	}
}

// drop forgets p, and closes it if nobody uses it.
func (s *producers) drop(p *producer) {
	p.dropped = true
	if s.of[p.topic] == p {
		delete(s.of, p.topic)
	}
	if p.users == 0 {
		s.calls.Go(func() {
			<-p.made
			if p.err == nil {
				p.client.Close()
			}
		})
	}
}

// close closes all. It does not wait.
func (s *producers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, p := range s.of {
		s.drop(p)
	}
}

// reconnect is the client's pause between its tries to connect again: 100 ms, twice as long each time, up to 2 s.
type reconnect struct {
	delay time.Duration
}

const firstReconnect, maxReconnect = 100 * time.Millisecond, 2 * time.Second

func (r *reconnect) Next() time.Duration {
	r.delay = min(max(2*r.delay, firstReconnect), maxReconnect)
	return r.delay
}

func (r *reconnect) IsMaxBackoffReached() bool { return r.delay >= maxReconnect }

func (r *reconnect) Reset() { r.delay = 0 }

package pulsar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// redeliveryDelay is how long the client collects what is given back.
const redeliveryDelay = 100 * time.Millisecond

// silence is after which time somebody is told that the client has not connected again.
const silence = time.Minute

// source is the consumer of one partition, or of the topic of delayed messages. One consumer of all partitions would not tell which
// of them has lost its connection.
//
// The client offers what came over a lost connection until it makes another. So whoever takes from it stops in between: the client
// asks for a policy of pauses when it begins to connect again, and resets that when it has. It has no other words for either.
type source struct {
	topic     string // with the partition
	partition int32
	delayed   bool
	consumer  pulsarclient.Consumer
	offered   chan pulsarclient.ConsumerMessage // without a buffer: what is in it would outlive the connection
	breaks    atomic.Uint64                     // how often the connection was lost
	broken    chan struct{}                     // taken before the client connects again
	mended    chan struct{}                     // capacity 1
	end       chan struct{}                     // closed when nobody wants more
	gone      chan struct{}                     // closed when the consumer is closed
}

func newSource(topic string) *source {
	return &source{
		topic:   topic,
		offered: make(chan pulsarclient.ConsumerMessage),
		broken:  make(chan struct{}),
		mended:  make(chan struct{}, 1),
		end:     make(chan struct{}),
		gone:    make(chan struct{}),
	}
}

// received is a message, and how often the connection had been lost when it came.
type received struct {
	source  *source
	message pulsarclient.Message
	breaks  uint64
}

// forward hands over what the client offers until the source has ended, and then drops it, since a client whose queue is full
// does not read the server's answers either.
func (src *source) forward(in chan<- received, log *slog.Logger) {
	for {
		select {
		case <-src.end:
			src.drop()
			return
		case <-src.broken:
			src.pause(log)
		case offered := <-src.offered:
			select {
			case in <- received{src, offered.Message, src.breaks.Load()}:
			case <-src.end:
			case <-src.broken:
				src.pause(log)
			}
		}
	}
}

// pause takes nothing until the client has connected again.
func (src *source) pause(log *slog.Logger) {
	look := time.NewTicker(silence)
	defer look.Stop()
	for began := time.Now(); ; {
		select {
		case <-src.mended:
			return
		case <-src.broken:
		case <-src.end:
			return
		case <-look.C:
			log.Error("pulsar: the client has not connected again; it gives up if the topic was deleted and the server makes none",
				"partition", src.topic, "since", time.Since(began))
		}
	}
}

func (src *source) drop() {
	for {
		select {
		case <-src.offered:
		case <-src.gone:
			return
		}
	}
}

// watched is the policy of a source's consumer.
type watched struct {
	reconnect
	source *source
}

// Reset is called when the client has connected.
func (w *watched) Reset() {
	w.reconnect.Reset()
	select {
	case w.source.mended <- struct{}{}:
	default:
	}
}

// breakUp is called before the client connects again. It returns when nothing that is offered will be taken until it has.
func (src *source) breakUp() *watched {
	select {
	case <-src.mended: // of the time before
	default:
	}
	select {
	case src.broken <- struct{}{}:
		src.breaks.Add(1) // nobody takes anything now
	case <-src.end:
	}
	return &watched{source: src}
}

var errAsWritten = errors.New("there is no key to decrypt it")

// noKeys is a reader of keys that has none.
type noKeys struct{}

func (noKeys) PublicKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errAsWritten
}

func (noKeys) PrivateKey(string, map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return nil, errAsWritten
}

// options are those of a consumer for one partition. The type is not to be changed: the server refuses members of different types.
func (c *Config) options(topic, consumer, member string, window int) pulsarclient.ConsumerOptions {
	decryption := pulsarclient.MessageDecryptionInfo{KeyReader: noKeys{}}
	if c.Decryption != nil {
		decryption = *c.Decryption
	}
	decryption.ConsumerCryptoFailureAction = crypto.ConsumerCryptoFailureActionConsume
	exact := int64(0)
	return pulsarclient.ConsumerOptions{
		Topic:                       topic,
		SubscriptionName:            consumer,
		Name:                        member,
		Type:                        pulsarclient.KeyShared,
		SubscriptionInitialPosition: pulsarclient.SubscriptionPositionEarliest,
		ReceiverQueueSize:           window,
		NackRedeliveryDelay:         redeliveryDelay,
		NackPrecisionBit:            &exact,
		AckWithResponse:             true,
		// With it, the client asks the server for more than it has room for when a batch comes again that was acked in part, and
		// stops reading from its connection, for all who use it.
		EnableBatchIndexAcknowledgment: false,
		Decryption:                     &decryption,
		BackOffPolicyFunc:              func() backoff.Policy { return &reconnect{} },
	}
}

// subscribe opens a consumer, for as long as ctx lasts.
func (b *Broker) subscribe(ctx context.Context, options pulsarclient.ConsumerOptions) (pulsarclient.Consumer, error) {
	return within(ctx, &b.calls, func() (pulsarclient.Consumer, error) {
		return b.config.Client.Subscribe(options)
	}, pulsarclient.Consumer.Close)
}

// partitions returns the topics of a topic's partitions, or the topic itself.
func (b *Broker) partitions(ctx context.Context, topic string) ([]string, error) {
	all, err := within(ctx, &b.calls, func() ([]string, error) { return b.config.Client.TopicPartitions(topic) }, func([]string) {})
	if err != nil {
		return nil, fmt.Errorf("look up the partitions of %q: %w", topic, err)
	}
	return all, nil
}

// register makes a consumer's subscription to each partition, by being a member for a moment.
func (b *Broker) register(ctx context.Context, topic, consumer string) error {
	all, err := b.partitions(ctx, topic)
	if err != nil {
		return err
	}
	for _, partition := range all {
		options := b.config.options(partition, consumer, b.config.member(), 0)
		options.EnableZeroQueueConsumer = true // it asks for no message
		c, err := b.subscribe(ctx, options)
		if err != nil {
			return err
		}
		if _, err := within(ctx, &b.calls, func() (struct{}, error) { c.Close(); return struct{}{}, nil }, func(struct{}) {}); err != nil {
			return err
		}
	}
	return nil
}

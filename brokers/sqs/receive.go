package sqs

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/headrace-go/headrace/brokers"
)

// metaDeadLetterSource is the metadata key of the queue whose redrive policy moved the message here.
const metaDeadLetterSource = "sqs_dead_letter_queue_source_arn"

// gather is how long a poller waits for more places in a window that is nearly full: a receive of one message costs as
// much as one of ten.
const gather = 10 * time.Millisecond

// poll receives and hands over until ctx ends. A spare poller works while there is more than one receive brings.
func (s *subscription) poll(ctx context.Context, spare bool) {
	idle := spare
	for ctx.Err() == nil {
		if idle {
			select {
			case <-s.more:
			case <-ctx.Done():
				return
			}
		}
		n := s.takePlaces(ctx)
		if n == 0 {
			continue
		}
		began := time.Now()
		messages := s.receive(ctx, n)
		if len(messages) == maxEntries {
			select {
			case s.more <- struct{}{}:
			default: // somebody has been called already
			}
		}
		held := s.hold(ctx, messages, began)
		s.settler.Reserve(-n)
		if s.hasRecalled() {
			s.giveBackRecalled() // some of these were held here still
		}
		s.handOver(held)
		idle = spare && len(messages) == 0
	}
}

// takePlaces reserves places in the window for one receive, and returns how many: 0 if ctx has ended. Pollers take turns, and
// nobody else adds to what is held, so what Room says is true until it is reserved.
func (s *subscription) takePlaces(ctx context.Context) int {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return 0
	}
	for d := s.pausedFor(); d > 0; d = s.pausedFor() {
		if sleep(ctx, d) != nil {
			return 0
		}
	}
	room := s.settler.Room(ctx)
	if 0 < room && room < min(maxEntries, s.window) {
		if sleep(ctx, gather) != nil {
			return 0
		}
		room = s.settler.Room(ctx)
	}
	if ctx.Err() != nil {
		return 0
	}
	n := min(room, maxEntries)
	s.settler.Reserve(n)
	return n
}

// receive returns at most n messages, none if there are none or ctx has ended. A receive under way is not broken off when ctx
// ends, since the service can give messages to one that is, and nobody else then gets them for the time of Visibility.
func (s *subscription) receive(ctx context.Context, n int) []types.Message {
	in := &sqs.ReceiveMessageInput{
		MaxNumberOfMessages:   int32(n),
		VisibilityTimeout:     seconds(s.config.Visibility),
		WaitTimeSeconds:       seconds(s.config.WaitTime),
		MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount,
			types.MessageSystemAttributeNameSentTimestamp,
			types.MessageSystemAttributeNameMessageGroupId,
			types.MessageSystemAttributeNameDeadLetterQueueSourceArn,
		},
	}
	if s.config.FIFO {
		// A try whose answer was lost on the way gives the next one the same messages.
		in.ReceiveRequestAttemptId = aws.String(rand.Text())
	}
	for delay := firstDelay; ; delay = min(2*delay, maxDelay) {
		in.QueueUrl = &s.queue.Load().url
		out, err := s.receiveOnce(ctx, in)
		switch {
		case err == nil:
			return out.Messages
		case ctx.Err() != nil:
			s.log.Warn("sqs: the last receive failed", "error", err)
			return nil
		case isNoQueue(err):
			s.log.Error("sqs: the queue is not there", "error", err)
			s.findAgain(ctx)
		default:
			s.log.Warn("sqs: cannot receive; tries again", "error", err, "in", delay)
		}
		if sleep(ctx, delay) != nil {
			return nil
		}
	}
}

func (s *subscription) receiveOnce(ctx context.Context, in *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.WaitTime+s.config.CloseTimeout)
	defer cancel()
	return s.config.Client.ReceiveMessage(ctx, in)
}

// findAgain looks for a queue that was deleted, and makes it if it may.
func (s *subscription) findAgain(ctx context.Context) {
	s.broker.gone(s.queue.Load().name)
	q, err := s.broker.consumerQueue(ctx, s.topic, s.consumer)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("sqs: the queue that was deleted is not there again; tries again", "error", err)
		}
		return
	}
	s.queue.Store(&q)
}

// hold takes received messages in, all before the first is handed over: the keeper prolongs them from now on. What comes
// after the end is given back.
func (s *subscription) hold(ctx context.Context, messages []types.Message, began time.Time) []*hold {
	if len(messages) == 0 {
		return nil
	}
	s.ending.Lock()
	defer s.ending.Unlock()
	if !s.ended {
		// All before the first is held: with an earlier delivery goes what came after it in its group, of which none of these is.
		for i := range messages {
			s.loseEarlier(aws.ToString(messages[i].MessageId))
		}
	}
	now := time.Now()
	all := make([]*hold, 0, len(messages))
	for i := range messages {
		m := &messages[i]
		e := &entry{
			id:      aws.ToString(m.MessageId),
			receipt: aws.ToString(m.ReceiptHandle),
			first:   began,
			until:   now.Add(s.config.Visibility),
		}
		if !s.ended {
			all = append(all, s.holdOne(ctx, m, e))
			continue
		}
		s.mu.Lock()
		s.recalled = append(s.recalled, e)
		s.mu.Unlock()
	}
	return all
}

func (s *subscription) holdOne(ctx context.Context, received *types.Message, e *entry) *hold {
	system := received.Attributes
	m, err := s.decode(received)
	if source := system[string(types.MessageSystemAttributeNameDeadLetterQueueSourceArn)]; source != "" {
		m.Metadata[metaDeadLetterSource] = source
	}
	e.count, _ = strconv.Atoi(system[string(types.MessageSystemAttributeNameApproximateReceiveCount)]) // absent: not known
	group := system[string(types.MessageSystemAttributeNameMessageGroupId)]
	if s.config.FIFO {
		e.group = group
	}
	d := brokers.Delivery{
		Topic:       s.topic,
		Partition:   -1,
		Offset:      -1,
		Key:         keyOf(group, m, s.config.Key),
		Time:        unixMilli(system[string(types.MessageSystemAttributeNameSentTimestamp)]),
		Count:       e.count,
		DecodeError: err,
	}
	s.loseEarlier(e.id) // a standard queue can give two copies at once
	s.mu.Lock()
	s.seq++
	e.seq = s.seq
	s.mu.Unlock()
	h := s.settler.Hold(ctx, m, d, e)
	s.hook(h)
	s.mu.Lock()
	s.held[e.id] = h
	s.mu.Unlock()
	return h
}

var errReceivedAgain = errors.New("it was received again")

// loseEarlier lets go of an earlier delivery of a message.
func (s *subscription) loseEarlier(id string) {
	s.mu.Lock()
	earlier := s.held[id]
	s.mu.Unlock()
	if earlier != nil {
		s.lose(earlier, errReceivedAgain)
	}
}

// hook adds to what the settler does with a delivery. Nobody has it yet.
func (s *subscription) hook(h *hold) {
	e, d := h.Entry, &h.Delivery
	if e.group == "" {
		delay := d.Delay
		d.Delay = func(d time.Duration) bool {
			// Beyond that the service does not hide a message.
			return time.Since(e.first)+d+time.Second < maxVisibility && delay(d)
		}
		return
	}
	// What comes after a message that comes again is recalled at once, before the holder of the next takes its turn.
	settled, release := d.Settled, d.Release
	d.Settled = func() {
		select {
		case <-h.Message.Nacked():
			s.recall(e)
		default:
		}
		settled()
	}
	d.Release = func() {
		s.recall(e)
		release()
	}
}

// decode returns the message that was received. With an error its payload is the body as it came.
func (s *subscription) decode(received *types.Message) (*message.Message, error) {
	body, id := aws.ToString(received.Body), aws.ToString(received.MessageId)
	attributes := make([]attribute, 0, len(received.MessageAttributes))
	for name, a := range received.MessageAttributes {
		value := aws.ToString(a.StringValue)
		if strings.HasPrefix(aws.ToString(a.DataType), "Binary") {
			value = string(a.BinaryValue)
		}
		attributes = append(attributes, attribute{name, value})
	}
	if len(attributes) > 0 || s.config.Envelope == EnvelopeRaw {
		return decode(body, attributes, id)
	}
	n, ok := unwrap(body)
	if !ok {
		m, _ := decode(body, nil, id)
		if s.config.Envelope == EnvelopeWrapped {
			return m, errNoNotification
		}
		return m, nil
	}
	attributes, err := n.attributes()
	if err != nil {
		m, _ := decode(body, nil, id)
		return m, err
	}
	m, err := decode(*n.Message, attributes, n.MessageID)
	if err != nil {
		m.Payload = message.Payload(body) // exactly as it came
	}
	return m, err
}

func unixMilli(text string) time.Time {
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// handOver hands deliveries over, but for those whose context has ended: with the subscription, or since they were recalled.
func (s *subscription) handOver(all []*hold) {
	for _, h := range all {
		given := h.Message.Context()
		if given.Err() != nil {
			continue
		}
		select {
		case s.out <- h.Message:
		case <-given.Done():
		}
	}
}

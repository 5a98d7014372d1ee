package amqp

import (
	"context"
	"fmt"
	"maps"
	"math/bits"
	"strconv"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A delayed message goes through queues of the levels that are 1 in the binary form of its delay, from the highest down: level n keeps
// what it has for delayTick << n, the same time for all, so that none waits behind one with a longer time. Its headers
// say which levels it visits, and its routing key is the consumer's queue, where the last one, which all visit, sends it.
const (
	delayTick   = 100 * time.Millisecond
	delayLevels = 24 // at most 19 days in one go
)

// What a message in the levels has in its headers.
const (
	headerDelay = "headrace-delay" // a table of these:
	delayCount  = "count"          // int64: deliveries until now
	delayLeft   = "left"           // int64: milliseconds to be waited after these
	delayFrom   = "exchange"       // string: of the message before
	delayKey    = "key"            // string: its routing key
	delayDeath  = "death"          // table: its headers about dead-lettering
)

func levelHeader(level int) string { return headerDelay + "-" + strconv.Itoa(level) }

// declareDelays makes the levels up to one, once.
func (b *Broker) declareDelays(ctx context.Context, level int) error {
	b.mu.Lock()
	made := b.level
	b.mu.Unlock()
	if level < made {
		return nil
	}
	err := b.publishing.onChannel(ctx, func(ch *amqp091.Channel) error {
		for n := made; n <= level; n++ {
			if err := declareLevel(ch, n); err != nil {
				return fmt.Errorf("declare %q: %w", delayName(n), err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.level = max(b.level, level+1)
	return nil
}

// forgetDelays has the levels made again before the next message: somebody may have deleted them.
func (b *Broker) forgetDelays() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.level = 0
}

func declareLevel(ch *amqp091.Channel, n int) error {
	name, next := delayName(n), ""
	if err := ch.ExchangeDeclare(name, amqp091.ExchangeHeaders, true, false, false, false, nil); err != nil {
		return err
	}
	if n > 0 {
		next = delayName(n - 1)
		if err := ch.ExchangeBind(next, "", name, false, amqp091.Table{"x-match": "all", levelHeader(n): false}); err != nil {
			return err
		}
	}
	// At least once: what cannot be routed on, or is not confirmed, stays.
	if _, err := ch.QueueDeclare(name, true, false, false, false, amqp091.Table{
		amqp091.QueueTypeArg:       amqp091.QueueTypeQuorum,
		amqp091.QueueMessageTTLArg: (delayTick << n).Milliseconds(),
		amqp091.QueueOverflowArg:   amqp091.QueueOverflowRejectPublish,
		"x-dead-letter-exchange":   next,
		"x-dead-letter-strategy":   "at-least-once",
		"x-delivery-limit":         deliveryLimit,
	}); err != nil {
		return err
	}
	return ch.QueueBind(name, "", name, false, amqp091.Table{"x-match": "all", levelHeader(n): true})
}

// delayLetter is d, which was delivered count times, on its way through the levels and then to queue. It returns the level where it begins.
func delayLetter(d *amqp091.Delivery, queue string, count int, delay time.Duration) (l letter, level int) {
	most := delayTick << delayLevels
	left := max(delay-most+delayTick, 0)
	// Rounded up, and odd.
	ticks := uint64((delay-left+delayTick-1)/delayTick) | 1
	level = bits.Len64(ticks) - 1
	content := republish(d)
	content.Headers = make(amqp091.Table, len(d.Headers)+level+2)
	death := amqp091.Table{}
	for name, value := range d.Headers {
		switch {
		case aboutDeath(name):
			death[name] = value
		case name != headerCount || !d.Redelivered:
			content.Headers[name] = value
		}
	}
	for n := range level + 1 {
		content.Headers[levelHeader(n)] = ticks>>n&1 == 1
	}
	content.Headers[headerDelay] = amqp091.Table{
		delayCount: int64(count),
		delayLeft:  left.Milliseconds(),
		delayFrom:  d.Exchange,
		delayKey:   d.RoutingKey,
		delayDeath: death,
	}
	return letter{exchange: delayName(level), key: queue, content: content}, level
}

// aboutDeath tells whether the server writes a header when it dead-letters.
func aboutDeath(name string) bool {
	return name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// undelay makes d what it was before it was delayed, and returns how often it was delivered before, and what is left of its delay. Only
// what came from the levels has been delayed.
func undelay(d *amqp091.Delivery) (count int, left time.Duration) {
	note, ok := d.Headers[headerDelay].(amqp091.Table)
	if !ok || d.Exchange != "" {
		return 0, 0
	}
	maps.DeleteFunc(d.Headers, func(name string, _ any) bool {
		return strings.HasPrefix(name, headerDelay) || aboutDeath(name)
	})
	if death, ok := note[delayDeath].(amqp091.Table); ok {
		maps.Copy(d.Headers, death)
	}
	d.Exchange, _ = note[delayFrom].(string)
	d.RoutingKey, _ = note[delayKey].(string)
	n, _ := integer(note[delayCount])
	ms, _ := integer(note[delayLeft])
	return int(max(n, 0)), time.Duration(max(ms, 0)) * time.Millisecond
}

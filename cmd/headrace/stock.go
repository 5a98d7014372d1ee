package main

import (
	"fmt"
	"strings"
)

// stockAdapter tells what a stock Watermill adapter cannot do, as far as the guarantees depend on it. What settings can mend says so:
// examples/stock has them. docs/stock-adapters.md is made of this.
type stockAdapter struct {
	name, version, instead string
	cannot                 []string
}

var stock = []stockAdapter{
	{"watermill-kafka", "3", "brokers/kafka", []string{
		"It delivers one un-acked message per partition: a retry holds the whole partition, and concurrency is the number of partitions.",
		"An undecodable record ends the session, again and again: use the default unmarshaler, which takes any bytes.",
		"Its default marshaler drops record keys: order by key is lost in redrives and dead letters unless a marshaler writes the key. Headers of one name become one.",
		"It starts at the newest message unless Offsets.Initial says otherwise, which loses what was published before the first start.",
		"Handlers go on after a rebalance has taken their partition, beside the new owner's: only an inbox keeps the effect from happening twice.",
	}},
	{"watermill-nats", "2", "brokers/jetstream", []string{
		"It delivers one un-acked message. What the client has prefetched uses up its AckWait and is delivered again, and a handler that takes longer than AckWait runs twice: nothing extends it.",
		"A negative ack changes the order, 0 1 2 becomes 0 2 1, unless the durable has MaxAckPending 1.",
		"An undecodable message crashes the process, and so does a context that ends while messages come.",
	}},
	{"watermill-amqp", "3", "brokers/amqp", []string{
		"It delivers one un-acked message per subscription, whatever the prefetch.",
		"While that one is un-acked it does not see that its subscription was ended: a stop can take 5 s longer, until the runtime closes the subscriber.",
		"A negative ack requeues at once, without a pause and without a count. A header that is not text, such as RabbitMQ's own x-death, requeues the message in a hot loop.",
		"A lost connection can deliver an empty message that nobody published.",
		"Publisher confirms are off by default, and a topic without a consumer drops what is published: both lose messages.",
		"Topics cannot be read again: no replay, and dead letters need a database.",
	}},
	{"watermill-sql", "4", "brokers/postgres", []string{
		"It delivers one un-acked message per subscription, inside of an open transaction, in which one failed statement fails every retry.",
		"The queue schema loses rows: it marks messages of a batch as acked that were not, at a deadline or a close (8 of 10 in a test). Use offsets, and batches of 1.",
		"An undecodable message is retried for ever, and what is not acked within AckDeadline comes again while its handler runs.",
	}},
	{"watermill-redisstream", "1", "brokers/redisstream", []string{
		"It delivers one un-acked message, and reads ahead: what it held when it stopped comes after later entries, so there is no order over a restart.",
		"An undecodable message ends the subscription, and the consumer with it.",
		"It claims its own messages after a minute: a longer handler runs twice. A negative ack sends again at once.",
		"Close closes the application's client.",
	}},
	{"gochannel", "1", "brokers/memory", []string{
		"It keeps nothing: what is not handled when the process ends is lost.",
		"A negative ack is sent again at once, in a hot loop, and after later messages.",
	}},
}

func (d *doctor) examineAdapter() {
	name := d.checkup.Adapter
	if name == "" {
		return
	}
	var known []string
	for _, s := range stock {
		known = append(known, s.name)
		if s.name != name {
			continue
		}
		for _, limit := range s.cannot {
			d.found(statusWarn, "adapter", name, "%s", limit)
		}
		return
	}
	d.found(statusFail, "adapter", name, "it is not known; known are %s", strings.Join(known, ", "))
}

// stockPage is docs/stock-adapters.md.
func stockPage() string {
	var b strings.Builder
	b.WriteString("# What stock Watermill adapters cannot do\n\n" +
		"`runtime.Watermill` runs any of them, and the runtime's guarantees hold as far as the adapter's own do. `headrace doctor --adapter NAME`\n" +
		"prints the same. [examples/stock](../examples/stock) has each but gochannel with settings that lost nothing in our tests.\n")
	for _, s := range stock {
		fmt.Fprintf(&b, "\n## %s v%s\n\nInstead: `%s`.\n\n", s.name, s.version, s.instead)
		for _, limit := range s.cannot {
			fmt.Fprintf(&b, "- %s\n", limit)
		}
	}
	return b.String()
}

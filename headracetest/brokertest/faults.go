package brokertest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Server is what is between a broker and its server, or the server itself. testserver.Proxy is one.
type Server interface {
	// Cut ends the connections that there are, without an orderly end. Others can be made at once.
	Cut()
	// Down cuts and lets nothing through until Up.
	Down()
	Up()
}

// bounded is the context of one call of Publish that nobody answers.
func (t *T) bounded(m *message.Message, d time.Duration) context.CancelFunc {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	m.SetContext(ctx)
	return cancel
}

// An ack for a delivery of a lost connection must settle nothing else on the new one, and nothing comes that nobody has published. The
// stock AMQP adapter delivers an empty message when its connection is lost.
func ackAfterDisconnect(t *T) {
	size := t.window(4)
	n := 2 * size
	t.publish(0, n)
	r := t.read("c", size)
	old := r.take(size)
	t.server.Cut()
	for _, m := range old {
		m.Ack()
		if d := t.delivery(m); d.Settled != nil {
			d.Settled()
		}
	}
	seen := make(map[int]bool)
	for _, m := range old {
		seen[number(m)] = true
	}
	r.collect(seen, n, "after the connection was cut")
	r.close()
	// What was acked after the cut may come again, as all that is not known to be settled; what was acked later does not.
	last := t.read("c", size)
	last.quiet("at the next subscriber: it was acked on a connection that was there")
}

// collect acks what comes until all numbers up to n are seen, and whatever still comes again.
func (r *reader) collect(seen map[int]bool, n int, when string) {
	r.t.Helper()
	limit := time.Now().Add(2 * r.t.Wait)
	for {
		wait := time.Until(limit)
		if len(seen) == n {
			wait = max(r.t.Quiet, r.t.settled())
		}
		m := r.poll(wait)
		switch {
		case m == nil && len(seen) == n:
			return
		case m == nil:
			r.t.Fatalf("%s: only %d of %d messages came: %v", when, len(seen), n, missing(seen, n))
		}
		i := number(m)
		if i < 0 || i >= n {
			r.t.Fatalf("%s: a message %q came, which nobody has published", when, m.Payload)
		}
		seen[i] = true
		m.Ack()
	}
}

// settled is the time after which what was held by a lost connection has come again.
func (t *T) settled() time.Duration {
	if t.caps.ExtendsPatience {
		return t.caps.Patience*3/2 + time.Second
	}
	return time.Second
}

func missing(seen map[int]bool, n int) (numbers []int) {
	for i := range n {
		if !seen[i] {
			numbers = append(numbers, i)
		}
	}
	return numbers
}

// The server goes and comes back, and connections are lost, while messages are published and handled. What was confirmed arrives.
func restartUnderLoad(t *T) {
	const n, outages = 400, 4
	r := t.read("c", t.window(16))
	var ended sync.WaitGroup
	defer ended.Wait()
	ended.Go(func() {
		pub := t.publisher()
		limit := time.Now().Add(4 * t.Wait)
		for i := range n {
			for {
				m := numbered(i, strconv.Itoa(i%10))
				cancel := t.bounded(m, t.Wait)
				err := pub.Publish(t.topic, m)
				cancel()
				if err == nil {
					break
				}
				if time.Now().After(limit) {
					t.Errorf("Publish after the outage: %v", err)
					return
				}
			}
		}
	})
	seen := make(map[int]bool)
	for i := range outages {
		for len(seen) < (i+1)*n/(outages+1) {
			m := r.poll(2 * t.Wait)
			if m == nil {
				t.Fatalf("after %d outages no message comes; %d of %d have", i, len(seen), n)
			}
			seen[number(m)] = true
			m.Ack()
		}
		if i%2 == 1 {
			t.server.Cut()
			continue
		}
		t.server.Down()
		down := time.After(300 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case m := <-r.in: // what had been received
				seen[number(m)] = true
				m.Ack()
			case <-down:
				waiting = false
			}
		}
		t.server.Up()
	}
	r.collect(seen, n, "after the outages")
}

// While nothing answers Publish does not say that anything is stored. It gives up, or goes on and is confirmed when the server is back. What
// was confirmed arrives.
func publishDuringOutage(t *T) {
	const n = 4
	r := t.read("c", t.window(16))
	pub := t.publisher()
	if err := pub.Publish(t.topic, numbered(0, "key")); err != nil {
		t.Fatalf("Publish before the outage: %v", err)
	}
	r.ack(1)
	t.server.Down()
	outcomes := make([]chan error, n) // of messages 1, 2, ...; the limit of the first ends in the outage
	for i := range outcomes {
		outcomes[i] = make(chan error, 1)
		limit := 3 * t.Wait
		if i == 0 {
			limit = 500 * time.Millisecond
		}
		m := numbered(i+1, strconv.Itoa(i))
		defer t.bounded(m, limit)()
		go func() { outcomes[i] <- pub.Publish(t.topic, m) }()
	}
	up := time.After(time.Second)
	for away := true; away; {
		for i, done := range outcomes {
			select {
			case err := <-done:
				if err == nil {
					t.Errorf("Publish of message %d, without a server, said that it is stored", i+1)
				}
				done <- err
			default:
			}
		}
		select {
		case <-up:
			away = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.server.Up()
	confirmed := make(map[int]bool)
	for i, done := range outcomes {
		select {
		case err := <-done:
			if err == nil {
				confirmed[i+1] = true
			}
		case <-time.After(4 * t.Wait):
			t.Fatalf("Publish of message %d has not returned %v after the outage", i+1, 4*t.Wait)
		}
	}
	for limit := time.Now().Add(2 * t.Wait); ; { // until the adapter is connected again
		m := numbered(n+1, "key")
		cancel := t.bounded(m, t.Wait)
		err := pub.Publish(t.topic, m)
		cancel()
		if err == nil {
			confirmed[n+1] = true
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("Publish after the outage: %v", err)
		}
	}
	// Others may be stored though their Publish failed: nobody knows.
	for len(confirmed) > 0 {
		m := r.poll(2 * t.Wait)
		if m == nil {
			t.Fatalf("these were confirmed and did not come: %v", confirmed)
		}
		delete(confirmed, number(m))
		m.Ack()
	}
}

const childVariable = "HEADRACE_BROKERTEST_CHILD"

// consumerKilled kills a process that has acked some messages and holds others. Another one gets these, in order; of the acks some may
// not have been on their way yet.
func consumerKilled(t *T) {
	const acked = 5
	held := t.window(4)
	if topic := os.Getenv(childVariable); topic != "" {
		t.topic = topic
		r := t.read("c", held)
		for range acked {
			m := r.next()
			m.Ack()
			r.contextEnds(m, "its ack")
			fmt.Printf("acked %s;", m.Payload)
		}
		r.take(held)
		fmt.Println("held")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		return
	}
	n := acked + held + 3
	t.read("c", held).close() // where messages go to consumers that are known
	inOrder := t.publishWide(n)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), childVariable+"="+t.topic)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(said.String(), "held\n"); {
		k, err := out.Read(buf)
		said.Write(buf[:k])
		if err != nil {
			_ = cmd.Wait()
			t.Fatalf("the child ended: %v\n%s", err, said.String())
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	r := t.read("c", held)
	seen := make(map[int]bool)
	var first, want []int // the first in the order in which they came
	for i := range n {
		seen[i] = strings.Contains(said.String(), fmt.Sprintf("acked %d;", i))
		if !seen[i] {
			want = append(want, i)
		}
	}
	if len(want) != n-acked {
		t.Fatalf("the child said %q, want %d messages acked", said.String(), acked)
	}
	for len(first) < len(want) {
		m := r.poll(2*t.Wait + t.settled())
		if m == nil {
			t.Fatalf("after the kill only %v came of %v, which were not acked", first, want)
		}
		if i := number(m); !seen[i] {
			seen[i] = true
			first = append(first, i)
		}
		m.Ack()
	}
	if t.UnorderedAfterKill || !inOrder {
		slices.Sort(first)
	}
	t.same("after the kill", first, want)
}

package redisstream

import (
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// unreachable is a client of no server, whose calls fail at once.
func unreachable(t *testing.T, o redis.Options) *redis.Client {
	t.Helper()
	o.Addr, o.MaxRetries = "127.0.0.1:1", -1
	c := redis.NewClient(&o)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// An answer was lost, and the member looked for what was pending with it and not known. An entry that was acked, and of which the server was not
// told yet, was neither held nor about to be told for a moment: it was handed over a second time.
func TestWhatIsBeingSettledIsKnown(t *testing.T) {
	config, err := Config{Client: unreachable(t, redis.Options{}), Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := newSubscription(&config, newMembership(&config, "topic", "group", "name"), "topic", 10)
	s.settler.Close()
	settles, goOn := make(chan struct{}), make(chan struct{})
	s.settler = adapter.NewSettler(10, func(batch []*adapter.Held[*entry]) {
		settles <- struct{}{}
		<-goOn
		s.settle(batch)
	})
	handed := make(chan struct{})
	go func() {
		defer close(handed)
		s.handOver(t.Context(), []*entry{{id: "1-0", count: 1}})
	}()
	m := <-s.out
	<-handed
	m.Ack()
	<-settles // the settler has let go of it, and the subscription does not know yet
	if !s.known()["1-0"] {
		t.Error("an entry is unknown while it is settled")
	}
	close(goOn)
	s.settler.Close()
	if !s.known()["1-0"] {
		t.Error("an entry is unknown whose ack could not be sent")
	}
	if len(s.busy) > 0 {
		t.Errorf("%v are busy after all was settled", s.busy)
	}
}

// The client gave up each read that waited for longer than its ReadTimeout, and dropped the connection.
func TestReadsWaitForLessThanTheReadTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0:                      250 * time.Millisecond, // go-redis's own default is longer
		-1:                     250 * time.Millisecond, // none
		100 * time.Millisecond: 50 * time.Millisecond,
		time.Second:            250 * time.Millisecond,
	} {
		config, err := Config{Client: unreachable(t, redis.Options{ReadTimeout: timeout})}.withDefaults()
		if err != nil || config.Block != want {
			t.Errorf("ReadTimeout %v: Block is %v, %v; want %v", timeout, config.Block, err, want)
		}
	}
}

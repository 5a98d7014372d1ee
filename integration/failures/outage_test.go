package failures_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/runtime"
)

// A database was away for a while, and all that came meanwhile was in the dead-letter topic when it was back.
func TestD6DatabaseOutageUnderLoadDeadLettersNothing(t *testing.T) {
	for _, on := range sites {
		t.Run(on.name, func(t *testing.T) {
			t.Parallel()
			testOutage(t, on.open(t))
		})
	}
}

func testOutage(t *testing.T, s *site) {
	sizes := size()
	v := start(s, sizes.keys, func(c *runtime.ConsumerConfig) { c.Breaker.MaxProbeDelay = sizes.probe })
	v.publish(500)
	await(t, "some orders are handled", func() bool { return v.work.Stats().Effects >= 100 })
	s.cut()
	began := time.Now()
	load := time.NewTicker(20 * time.Millisecond)
	defer load.Stop()
	for time.Since(began) < sizes.outage {
		<-load.C
		v.publish(10)
	}
	await(t, "the breaker is open and has probed", func() bool {
		b := v.work.Breaker()
		return b.State != middleware.BreakerClosed && b.Probes > 0
	})
	during := v.work.Stats().Effects
	away := time.Since(began)
	s.mend()
	back := time.Now()
	await(t, "the first order after the outage is handled", func() bool { return v.work.Stats().Effects > during })
	first := time.Since(back)
	v.publish(500)
	settled := func() int { c := v.work.Stats(); return int(c.Effects + c.Duplicates + c.DeadLettered) }
	reach(t, "orders that were settled", v.sent, settled)
	all := time.Since(back)
	await(t, "the breaker is closed", func() bool { return v.work.Breaker().State == middleware.BreakerClosed })
	v.quit()

	stats, breaker := v.work.Stats(), v.work.Breaker()
	t.Logf("away for %v; %d orders, %d before the end of the outage; the first one %v after it, all after %v; %d outages, %d probes, %d retries",
		away.Round(time.Millisecond), v.sent, during, first.Round(time.Millisecond), all.Round(time.Millisecond), breaker.Outages, breaker.Probes, stats.Retries)
	if stats.DeadLettered != 0 || breaker.Outages == 0 {
		t.Errorf("%+v, %+v: want no dead letter and an outage", stats, breaker)
	}
	err := s.reader.Read(t.Context(), v.topic+poison.Suffix, brokers.Range{}, func(m *message.Message) error {
		t.Errorf("there is a dead letter: %v", m.Metadata)
		return nil
	})
	if err != nil && !errors.Is(err, brokers.ErrNoTopic) {
		t.Error(err)
	}
	v.once(nil)
	v.judge()
}

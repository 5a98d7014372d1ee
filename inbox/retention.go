package inbox

import (
	"fmt"
	"math"
	"time"
)

// Horizon is how old a redelivery can get, by its parts. A part of zero is not known and counts as nothing.
type Horizon struct {
	// Broker is how long the broker keeps a message.
	Broker time.Duration
	// Retry is how long the runtime retries one message.
	Retry time.Duration
	// DeadLetters is how long dead letters are kept for a redrive.
	DeadLetters time.Duration
}

// Total is the sum of the parts: a message can be read at the end of the broker's retention, retried,
// and redriven at the end of the dead letters'.
func (h Horizon) Total() time.Duration {
	var sum time.Duration
	for _, d := range []time.Duration{h.Broker, h.Retry, h.DeadLetters} {
		if d = max(d, 0); d > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += d
	}
	return sum
}

// Check returns an error that names both numbers if claims are pruned while a redelivery can still come:
// it would take effect a second time. The runtime logs it as a warning at start.
func (h Horizon) Check(retention time.Duration) error {
	if total := h.Total(); retention < total {
		return fmt.Errorf("inbox retention %s is shorter than the oldest redelivery %s (broker %s + retries %s + dead letters %s): an older one would take effect again",
			retention, total, max(h.Broker, 0), max(h.Retry, 0), max(h.DeadLetters, 0))
	}
	return nil
}

package adapter

import "time"

// NackDelay is the delay before a message that was nacked comes again, after count deliveries: first, then twice as long each time, and at
// most most.
func NackDelay(first, most time.Duration, count int) time.Duration {
	delay := first
	for ; count > 1 && delay < most; count-- {
		if delay > most/2 {
			return most
		}
		delay *= 2
	}
	return min(delay, most)
}

package adapter_test

import (
	"math"
	"testing"
	"time"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

func TestNackDelayDoublesUpToItsLimit(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	for _, tt := range []struct {
		first, most time.Duration
		count       int
		want        time.Duration
	}{
		{time.Second, time.Minute, 0, time.Second},
		{time.Second, time.Minute, 1, time.Second},
		{time.Second, time.Minute, 2, 2 * time.Second},
		{time.Second, time.Minute, 6, 32 * time.Second},
		{time.Second, time.Minute, 7, time.Minute},
		{time.Second, time.Minute, math.MaxInt, time.Minute},
		{time.Second, time.Second, 5, time.Second},
		{time.Minute, time.Second, 1, time.Second},
		{time.Second, longest, 1000, longest},
	} {
		if got := adapter.NackDelay(tt.first, tt.most, tt.count); got != tt.want {
			t.Errorf("NackDelay(%v, %v, %d) = %v, want %v", tt.first, tt.most, tt.count, got, tt.want)
		}
	}
}

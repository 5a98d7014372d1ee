package redisstream_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers/redisstream"
)

func TestBadConfigNamesTheFieldAndTheValue(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tt := range []struct {
		want   string
		config redisstream.Config
	}{
		{"Client is nil", redisstream.Config{}},
		{`Member is "a b"`, redisstream.Config{Client: c, Member: "a b"}},
		{"Patience is 1ms", redisstream.Config{Client: c, Patience: time.Millisecond}},
		{"ClaimInterval is -1s", redisstream.Config{Client: c, ClaimInterval: -time.Second}},
		{"Window is -1", redisstream.Config{Client: c, Window: -1}},
		{"NackDelay is -1s", redisstream.Config{Client: c, NackDelay: -time.Second}},
		{"MaxNackDelay is 1ms", redisstream.Config{Client: c, NackDelay: time.Second, MaxNackDelay: time.Millisecond}},
		{"Block is 1µs", redisstream.Config{Client: c, Block: time.Microsecond}},
		{"Block is 5s: want less than the ReadTimeout of Config.Client, 5s", redisstream.Config{Client: c, Block: 5 * time.Second}},
		{"Retention is -2ns", redisstream.Config{Client: c, Retention: -2}},
		{"TrimInterval is -1s", redisstream.Config{Client: c, TrimInterval: -time.Second}},
		{"ForgetAfter is -1s", redisstream.Config{Client: c, ForgetAfter: -time.Second}},
	} {
		t.Run(tt.want, func(t *testing.T) {
			if _, err := redisstream.New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New: %v, want an error with %q", err, tt.want)
			}
		})
	}
}

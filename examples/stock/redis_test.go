package main

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/internal/testserver"
)

func TestStockRedisLosesNothing(t *testing.T) {
	url := testserver.Redis(t)
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	defer client.Close()
	// The example's topics have fixed names, so it has a database of its own on the server.
	options.DB = 7
	own := redis.NewClient(options)
	defer own.Close()
	if err := own.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	url = url[:len(url)-1] + "7"
	losesNothing(t, func(context.Context) (brokers.Broker, func(*error), error) { return stockRedis(url, 2*time.Second) }, false, nil)
	dead, err := own.XRange(t.Context(), "orders.DLT", "-", "+").Result()
	if err != nil || len(dead) == 0 {
		t.Fatalf("dead letters %v, error %v; want one", dead, err)
	}
	for _, d := range dead { // a stop between dead letter and ack repeats it
		if d.Values["_watermill_message_uuid"] != dead[0].Values["_watermill_message_uuid"] {
			t.Errorf("there are dead letters of several messages: %v", dead)
		}
	}
}

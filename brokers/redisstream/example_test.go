package redisstream_test

import (
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/brokers/redisstream"
	"github.com/headrace-go/headrace/runtime"
)

func ExampleNew() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379", PoolSize: 50})
	defer client.Close()
	broker, err := redisstream.New(redisstream.Config{Client: client})
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	rt, err := runtime.New(runtime.Config{Service: "billing", Broker: broker})
	if err != nil {
		log.Fatal(err)
	}
	_ = rt // register consumers, then rt.Run(ctx)
}

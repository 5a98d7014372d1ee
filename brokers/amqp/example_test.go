package amqp_test

import (
	"log"

	"github.com/headrace-go/headrace/brokers/amqp"
	"github.com/headrace-go/headrace/runtime"
)

func ExampleNew() {
	broker, err := amqp.New(amqp.Config{URLs: []string{"amqp://guest:guest@localhost:5672/"}})
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

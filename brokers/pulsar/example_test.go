package pulsar_test

import (
	"log"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"

	"github.com/headrace-go/headrace/brokers/pulsar"
	"github.com/headrace-go/headrace/runtime"
)

func ExampleNew() {
	client, err := pulsarclient.NewClient(pulsarclient.ClientOptions{URL: "pulsar://localhost:6650", OperationTimeout: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	broker, err := pulsar.New(pulsar.Config{Client: client})
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

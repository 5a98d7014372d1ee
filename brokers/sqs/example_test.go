package sqs_test

import (
	"log"

	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/headrace-go/headrace/brokers/sqs"
	"github.com/headrace-go/headrace/runtime"
)

func ExampleNew() {
	client := sdk.New(sdk.Options{Region: "eu-central-1"}) // or of what config.LoadDefaultConfig found
	broker, err := sqs.New(sqs.Config{Client: client, FIFO: true})
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

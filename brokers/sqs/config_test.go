package sqs_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sns"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/headrace-go/headrace/brokers/sqs"
)

func TestBadConfigNamesTheFieldAndTheValue(t *testing.T) {
	c := sdk.New(sdk.Options{})
	for _, tt := range []struct {
		want   string
		config sqs.Config
	}{
		{"Client is nil", sqs.Config{}},
		{"Retention is 1s", sqs.Config{Client: c, Retention: time.Second}},
		{"Visibility is 1.5s", sqs.Config{Client: c, Visibility: 1500 * time.Millisecond}},
		{"Visibility is 13h0m0s", sqs.Config{Client: c, Visibility: 13 * time.Hour}},
		{"WaitTime is 21s", sqs.Config{Client: c, WaitTime: 21 * time.Second}},
		{"NackDelay is 1ms", sqs.Config{Client: c, NackDelay: time.Millisecond}},
		{"MaxNackDelay is 1s", sqs.Config{Client: c, NackDelay: 2 * time.Second, MaxNackDelay: time.Second}},
		{"Window is -1", sqs.Config{Client: c, Window: -1}},
		{"Pollers is 65", sqs.Config{Client: c, Pollers: 65}},
		{"MaxMessageBytes is 1", sqs.Config{Client: c, MaxMessageBytes: 1}},
		{"MinReceives is -2", sqs.Config{Client: c, MinReceives: -2}},
		{"CloseTimeout is -1s", sqs.Config{Client: c, CloseTimeout: -time.Second}},
		{`Envelope is "paper"`, sqs.Config{Client: c, Envelope: "paper"}},
		{"SNS.Client is nil", sqs.Config{Client: c, SNS: &sqs.SNS{}}},
		{"SNS.TopicARN is nil", sqs.Config{Client: c, CheckOnly: true, SNS: &sqs.SNS{Client: sns.New(sns.Options{})}}},
	} {
		t.Run(tt.want, func(t *testing.T) {
			if _, err := sqs.New(tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New: %v, want an error with %q", err, tt.want)
			}
		})
	}
}

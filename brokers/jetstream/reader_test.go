package jetstream_test

import (
	"testing"

	"github.com/headrace-go/headrace/brokers/jetstream"
	"github.com/headrace-go/headrace/brokers/jetstream/embedded"
	"github.com/headrace-go/headrace/headracetest/readersuite"
)

func TestReader(t *testing.T) {
	readersuite.Run(t, func(t *testing.T) readersuite.Broker {
		b, err := embedded.New(embedded.Config{Dir: t.TempDir(), Logger: logTo(t)}, jetstream.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		return b
	}, func(name string) string { return name })
}

package testonly_test

import (
	"testing"

	"github.com/headrace-go/headrace/headracetest/ledgersuite"
	"github.com/headrace-go/headrace/stores/testonly"
)

func TestLedger(t *testing.T) {
	ledgersuite.Run(t, testonly.NewLedger())
}

package pgxstore_test

import (
	"testing"

	"github.com/headrace-go/headrace/headracetest/ledgersuite"
)

func TestLedger(t *testing.T) { ledgersuite.Run(t, outboxStore(t).Ledger()) }

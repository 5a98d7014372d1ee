package pgxstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headrace-go/headrace/headracetest/deadlettersuite"
)

func TestDeadLetters(t *testing.T) {
	deadlettersuite.Run(t, func(t *testing.T) deadlettersuite.Harness[pgx.Tx] {
		store := outboxStore(t)
		return deadlettersuite.Harness[pgx.Tx]{Table: store.DeadLetters(), Store: store, Writer: store}
	})
}

package outboxsuite_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	outboxsuite.Run(t, func(*testing.T) outboxsuite.Subject[*outboxsuite.MemoryTx] {
		m := outboxsuite.NewMemory()
		return outboxsuite.Subject[*outboxsuite.MemoryTx]{
			Source: m, Writer: m,
			Begin: func(context.Context) (*outboxsuite.MemoryTx, func() error, func() error, error) {
				tx := m.Begin()
				return tx, tx.Commit, tx.Rollback, nil
			},
		}
	})
}

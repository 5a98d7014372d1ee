//go:build stress

package pulsar_test

import (
	"testing"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
)

func TestStress(t *testing.T) { universal(t, adaptertest.Stress) }

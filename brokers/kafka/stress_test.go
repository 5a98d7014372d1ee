//go:build stress

package kafka_test

import (
	"testing"

	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
)

func TestStress(t *testing.T) {
	_, seeds := fake(t)
	universal(t, seeds, adaptertest.Stress)
}

func TestStressOnKafka(t *testing.T) { universal(t, real(t), adaptertest.Stress) }

package memory_test

import (
	"testing"

	"github.com/headrace-go/headrace/internal/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }

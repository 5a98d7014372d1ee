//go:build unix

package ledger_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main function of the processes that the crash tests start.
func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		os.Exit(crashMain(dir))
	}
	goleak.VerifyTestMain(m)
}

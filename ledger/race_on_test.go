//go:build race

package ledger_test

const (
	raceEnabled = true
	many        = 256 // the services of the crash tests have the race detector too
)

//go:build !race

package ledger_test

const (
	raceEnabled = false
	many        = 1024 // a whole window in flight
)

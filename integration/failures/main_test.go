package failures_test

import (
	"flag"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var fullFlag = flag.Bool("full", false, "run the sizes of the promise; it takes many minutes")

// sizes are how much a run of the tests is.
type sizes struct {
	outage   time.Duration // how long the database is away
	probe    time.Duration // the longest time between two probes; 0: the default
	messages int           // of them
	poison   int           // cannot be handled,
	keys     int           // and they have so many keys: a prime, so that each poison message has its own
	inFlight int           // when the process is killed
}

var (
	full  = sizes{outage: time.Minute, messages: 100_000, poison: 1_000, keys: 1_999, inFlight: 1_024}
	small = sizes{outage: 4 * time.Second, probe: time.Second, messages: 5_000, poison: 50, keys: 97, inFlight: 128}
)

func size() sizes {
	if *fullFlag {
		return full
	}
	return small
}

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		os.Exit(crashMain(dir))
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

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
	keys     int           // of all orders: a prime, so that each order that cannot be handled has its own
	plain    mix           // for a consumer that does not park,
	parking  mix           // and for one that does
	inFlight int           // when the process is killed
}

// mix is how many orders there are, and how many of them cannot be handled.
type mix struct{ messages, poison int }

var (
	full = sizes{
		outage: time.Minute, keys: 1_999, plain: mix{100_000, 1_000}, parking: mix{100_000, 1_000}, inFlight: 1_024,
	}
	small = sizes{
		outage: 4 * time.Second, probe: time.Second, keys: 97, plain: mix{5_000, 50}, parking: mix{2_000, 20}, inFlight: 128,
	}
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

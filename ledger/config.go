package ledger

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
)

// The defaults of [Config].
const (
	DefaultTTL             = 30 * time.Second
	DefaultStoreTimeout    = 5 * time.Second
	DefaultHorizonMessages = 10_000
	DefaultHorizonTime     = 5 * time.Minute
	DefaultRetention       = 7 * 24 * time.Hour
)

// minTTL leaves room for three heartbeats.
const minTTL = 300 * time.Millisecond

// Config configures a [Ledger]. Store is required, and Service where no runtime sets it.
type Config struct {
	// Store keeps the ledger: the service's database, or ledger/file. On SQLite let it be a file of its own: the
	// ledger writes while the handlers' transactions hold the one place of a writer.
	Store Store

	// Service names whose ledger it is: all processes of one name share it. Under the runtime it is the
	// runtime's own by default.
	Service string

	// Instance names this process among those of the service that run at the same time, and is the same after a restart:
	// a run that comes back under its name tells that the one before has died, before its lease has run out.
	// Default: the host's name, which is the pod's on Kubernetes. Two processes on one host each need a name.
	Instance string

	// TTL is how long the process counts as alive after its last heartbeat; there are three in it. Default 30 s, at
	// least 300 ms.
	TTL time.Duration

	// StoreTimeout bounds each call of the store. Default 5 s.
	StoreTimeout time.Duration

	// HorizonMessages and HorizonTime are for how many starts and how long starts are recorded after an unclean
	// end: until both have passed, looked at with each heartbeat. The time must be longer than the broker takes to deliver
	// again what a dead process held. Defaults 10,000 and 5 min.
	HorizonMessages int
	HorizonTime     time.Duration

	// Retention is how long a message that does not come again is remembered as a suspect. Default 7 days.
	Retention time.Duration

	// Logger is told of unclean ends, of convictions, and when the ledger goes off and comes back. Default
	// slog.Default().
	Logger *slog.Logger
}

// maxSuspects bounds the starts of dead runs that a service keeps, and the suspects in memory.
const maxSuspects = 16_384

// maxNameBytes is the longest name that a store keeps.
const maxNameBytes = 255

func (c Config) withDefaults() (Config, error) {
	if c.Instance == "" {
		name, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("ledger.Config.Instance is \"\", and the host has no name: %w", err)
		}
		c.Instance = name
	}
	defaultTo(&c.TTL, DefaultTTL)
	defaultTo(&c.StoreTimeout, DefaultStoreTimeout)
	defaultTo(&c.HorizonMessages, DefaultHorizonMessages)
	defaultTo(&c.HorizonTime, DefaultHorizonTime)
	defaultTo(&c.Retention, DefaultRetention)
	defaultTo(&c.Logger, slog.Default())
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("ledger.Config.%s is %v: want %s", field, value, want))
	}
	if v := reflect.ValueOf(c.Store); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		bad("Store", "nil", "the store that keeps the ledger")
	}
	for _, name := range []struct{ field, value string }{{"Service", c.Service}, {"Instance", c.Instance}} {
		if !isName(name.value) {
			bad(name.field, fmt.Sprintf("%q", name.value), "1 to 255 bytes of UTF-8 without a NUL")
		}
	}
	if c.TTL < minTTL {
		bad("TTL", c.TTL, fmt.Sprintf("at least %v", minTTL))
	}
	if c.StoreTimeout < 0 {
		bad("StoreTimeout", c.StoreTimeout, "a duration above zero")
	}
	if c.HorizonMessages < 0 {
		bad("HorizonMessages", c.HorizonMessages, "a number above zero")
	}
	if c.HorizonTime < 0 {
		bad("HorizonTime", c.HorizonTime, "a duration above zero")
	}
	if c.Retention < c.HorizonTime {
		bad("Retention", c.Retention, fmt.Sprintf("at least HorizonTime, %v", c.HorizonTime))
	}
	return c, errors.Join(errs...)
}

func isName(s string) bool {
	return s != "" && len(s) <= maxNameBytes && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// defaultTo gives v a value if it has none.
func defaultTo[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

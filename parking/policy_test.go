package parking_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/testonly"
)

func TestPolicyNamesEveryBadFieldAndValue(t *testing.T) {
	for _, tc := range []struct {
		policy parking.Policy
		want   []string
	}{
		{parking.Policy{}, nil},
		{parking.Policy{MaxPerKey: 1 << 20}, nil}, // MaxMessages follows
		{parking.Policy{MaxMessages: 5}, nil},     // MaxPerKey follows
		{parking.Policy{HoldDelay: time.Hour}, nil},
		{parking.Policy{MaxHoldDelay: time.Millisecond}, nil},
		{parking.Policy{MaxPerKey: -1, MaxMessages: -2}, []string{"MaxPerKey is -1", "MaxMessages is -2"}},
		{parking.Policy{Poll: -time.Second, Concurrency: -3, Lease: -1}, []string{"Poll is -1s", "Concurrency is -3", "Lease is -1ns"}},
		{parking.Policy{HoldDelay: -1, MaxHoldDelay: -2}, []string{"HoldDelay is -1ns", "MaxHoldDelay is -2ns"}},
		{parking.Policy{MaxPerKey: 3, MaxMessages: 2}, []string{"MaxPerKey is 3", "MaxMessages, 2"}},
		{parking.Policy{HoldDelay: 3, MaxHoldDelay: 2}, []string{"HoldDelay is 3ns", "MaxHoldDelay, 2ns"}},
		{parking.Policy{Overflow: "drop"}, []string{`Overflow is "drop"`, `"hold"`, `"deadletter"`}},
	} {
		err := tc.policy.Validate()
		if (err == nil) != (tc.want == nil) {
			t.Errorf("%+v: %v, want an error with %q", tc.policy, err, tc.want)
		}
		for _, part := range tc.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: %q, want it to contain %q", tc.policy, err, part)
			}
		}
	}
}

func TestWrapRefusesWhatCannotPark(t *testing.T) {
	_, err := parking.Wrap(inbox.Store[*testonly.Tx](testonly.New()), "c", parking.Policy{})
	if !errors.Is(err, parking.ErrCannotPark) || !strings.Contains(err.Error(), "*testonly.Store") {
		t.Errorf("a store without parking: %v; want ErrCannotPark that names it", err)
	}
	if _, err := parking.Wrap[*sql.Tx](nil, "c", parking.Policy{}); err == nil {
		t.Error("no store: no error")
	}
	store := openStore(t)
	for consumer, want := range map[string]string{"": "consumer is empty", strings.Repeat("c", 256): "256 bytes"} {
		if _, err := parking.Wrap(inbox.Store[*sql.Tx](store), consumer, parking.Policy{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("consumer %.10q: %v; want an error with %q", consumer, err, want)
		}
	}
	if _, err := parking.Wrap(inbox.Store[*sql.Tx](store), "c", parking.Policy{Poll: -1}); err == nil || !strings.Contains(err.Error(), "Poll") {
		t.Errorf("bad policy: %v", err)
	}
}

func TestNewSourceNamesTheBadField(t *testing.T) {
	l := openStore(t).Parking()
	for want, c := range map[string]parking.SourceConfig{
		"Consumer": {Ledger: l},
		"Ledger":   {Consumer: "c"},
		"Lease":    {Consumer: "c", Ledger: l, Policy: parking.Policy{Lease: -1}},
	} {
		if _, err := parking.NewSource(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewSource without a good %s: %v; want it named", want, err)
		}
	}
}

// Names are in databases: the form is frozen.
func TestNameIsFrozen(t *testing.T) {
	for key, want := range map[string]string{
		"order-7":                "order-7",
		"with space ":            "with space ",
		strings.Repeat("k", 255): strings.Repeat("k", 255),
		strings.Repeat("k", 256): "sha256:ce16fe78208a4e93f7158e62393680e025b2ad584f4e875ce903a654bb74cf93",
		"ä":                      "sha256:33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc",
		"sha256:x":               "sha256:fe8eb9ab9836bcf963c044b6f84eb71c089db399876f45e72a6c21b488da26c4",
		"\x00":                   "sha256:6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
	} {
		if got := parking.Name(key); got != want {
			t.Errorf("Name(%.20q) is %q, want %q", key, got, want)
		}
	}
}

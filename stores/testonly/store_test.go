package testonly_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/headrace-go/headrace/headracetest/inboxsuite"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/testonly"
)

func TestInbox(t *testing.T) {
	inboxsuite.Run(t, func(*testing.T) inboxsuite.Harness[*testonly.Tx] {
		store := testonly.New()
		return inboxsuite.Harness[*testonly.Tx]{
			Store: store,
			Add: func(_ context.Context, tx *testonly.Tx, counter string) error {
				n, _ := strconv.Atoi(tx.Get(counter))
				tx.Set(counter, strconv.Itoa(n+1))
				return nil
			},
			Count: func(_ context.Context, counter string) (int, error) {
				n, _ := strconv.Atoi(store.Get(counter))
				return n, nil
			},
		}
	})
}

func Example() {
	store := testonly.New()
	order := inbox.Claim{Consumer: "billing", ID: "order-1"}
	for range 2 { // delivered twice
		done, err := store.Once(context.Background(), order, func(_ context.Context, tx *testonly.Tx) error {
			tx.Set("invoices", tx.Get("invoices")+"I")
			return nil
		})
		fmt.Println(done, err)
	}
	fmt.Println(store.Get("invoices"))
	// Output:
	// true <nil>
	// false <nil>
	// I
}

package deadletter_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/poison"
	"github.com/headrace-go/headrace/stores/sqlite"
)

// printer is a publisher that tells what it gets.
type printer struct{}

func (printer) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		fmt.Println(topic, "gets", string(m.Payload))
	}
	return nil
}

func (printer) Close() error { return nil }

// A dead letter on its way: indexed, found, redriven, and what its trail tells. In a service Index is the handler of
// runtime.HandleDeadLettersTx, and an operator does the rest with cmd/headrace.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "deadletter")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	db, err := sqlite.Open(filepath.Join(dir, "billing.db"))
	if err != nil {
		panic(err)
	}
	defer db.Close()
	if err := db.Migrate(ctx); err != nil {
		panic(err)
	}

	index := deadletter.Index(db, deadletter.Protection{})
	dead := poison.Record{
		ID: "dead-1", Version: poison.Version, Consumer: "billing.orders", Topic: "orders", Partition: -1, Offset: -1,
		UUID: "order-1", Payload: []byte(`{"total":1}`), MessageID: "uuid:orders order-1", Deaths: 1, ErrorType: "timeout", Error: "warehouse is down",
	}
	if _, err := db.Once(ctx, inbox.Claim{Consumer: "billing.deadletters", ID: dead.ID}, func(ctx context.Context, tx *sql.Tx) error {
		return index(ctx, tx, dead)
	}); err != nil {
		panic(err)
	}

	letters, err := deadletter.NewStore(db.DeadLetters(), deadletter.Protection{})
	if err != nil {
		panic(err)
	}
	redriver, err := deadletter.NewRedriver(deadletter.RedriveConfig{
		Source: letters, Publisher: printer{}, Actor: "ann", Reason: "INC-812: the warehouse is back",
	})
	if err != nil {
		panic(err)
	}
	report, err := redriver.Run(ctx, deadletter.Filter{Text: "warehouse"})
	if err != nil {
		panic(err)
	}
	fmt.Println("redriven", report.Redriven, "of", report.Selected)
	trail, err := letters.Trail(ctx, "dead-1")
	if err != nil {
		panic(err)
	}
	for _, e := range trail {
		fmt.Println(e.Action, "by", e.Actor, "for", e.Reason)
	}
	// Output:
	// billing.orders.REDRIVE gets {"total":1}
	// redriven 1 of 1
	// claim by ann for INC-812: the warehouse is back
	// redrive by ann for INC-812: the warehouse is back
}

// Bodies are encrypted, and searched by a blinded subject: its data can still be purged.
func ExampleNewCipher() {
	cipher, err := deadletter.NewCipher(deadletter.NewSecret(), deadletter.Key{ID: "2026-03", Secret: deadletter.NewSecret()})
	if err != nil {
		panic(err)
	}
	protection := deadletter.Protection{
		Cipher:  cipher,
		Redact:  func(r *poison.Record) { r.Stack = "" },
		Subject: func(r poison.Record) string { return r.Metadata["customer"] },
	}
	subject := protection.Subject(poison.Record{Metadata: map[string]string{"customer": "c-7"}})
	sealed, err := cipher.Seal("note", []byte("about "+subject))
	if err != nil {
		panic(err)
	}
	plain, err := cipher.Open("note", sealed)
	fmt.Println(string(plain), err)
	// Output: about c-7 <nil>
}

// A purge without a filter is refused.
func ExampleStore_Purge() {
	letters, err := deadletter.NewStore(none{}, deadletter.Protection{})
	if err != nil {
		panic(err)
	}
	_, err = letters.Purge(context.Background(), deadletter.Filter{}, deadletter.By{Actor: "ann", Reason: "spring"})
	fmt.Println(err)
	// Output: deadletter: purge: the filter selects everything: name the states
}

// none is a table that nobody asks.
type none struct{ deadletter.Table }

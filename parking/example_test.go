package parking_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/headrace-go/headrace/brokers/memory"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/runtime"
	"github.com/headrace-go/headrace/stores/sqlite"
)

type booking struct{ ID string }

// A booking of account 7 fails for good. The later ones of the account wait for it; those of account 8 do not.
func Example() {
	if err := bookings(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// booked 8-1
	// account 7: 3 messages parked: card declined
	// booked 7-1
	// booked 7-2
	// booked 7-3
}

func bookings() error {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	dir, err := os.MkdirTemp("", "parking")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(filepath.Join(dir, "bank.db"))
	if err != nil {
		return err
	}
	defer store.Close()
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer broker.Close()
	rt, err := runtime.New(runtime.Config{Service: "bank", Broker: broker, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}

	var isFixed atomic.Bool
	booked := make(chan string, 10)
	c := rt.ConsumerWith(runtime.ConsumerConfig{Name: "bank.bookings", Topic: "bookings", Park: &parking.Policy{Poll: 10 * time.Millisecond}})
	runtime.HandleTx(c, "booking.made", store, func(_ context.Context, _ *sql.Tx, b booking) error {
		if b.ID == "7-1" && !isFixed.Load() {
			return classify.Permanent(errors.New("card declined"))
		}
		booked <- b.ID
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()
	<-rt.Running()
	for _, b := range []struct{ account, id string }{{"7", "7-1"}, {"7", "7-2"}, {"7", "7-3"}, {"8", "8-1"}} {
		msg, err := event.New(event.ContextWithSource(ctx, "/shop"), "booking.made", booking{ID: b.id}, event.WithKey(b.account))
		if err != nil {
			return err
		}
		if err := rt.Publisher().Publish("bookings", msg); err != nil {
			return err
		}
	}
	fmt.Println("booked", <-booked)

	// An operator, with the command headrace or in Go:
	desk := store.Parking()
	for c.Stats().Parked < 2 {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	keys, err := desk.Keys(ctx, "bank.bookings", "", 10)
	if err != nil {
		return err
	}
	for _, k := range keys {
		fmt.Printf("account %s: %d messages %s: %s\n", k.Name, k.Messages, k.State, k.FirstError)
	}
	isFixed.Store(true)
	if _, err := desk.Release(ctx, "bank.bookings", "7", parking.Reason{Actor: "ada", Reason: "limit raised"}); err != nil {
		return err
	}
	for range 3 {
		fmt.Println("booked", <-booked)
	}
	stop()
	return <-ended
}

func ExampleName() {
	fmt.Println(parking.Name("account-7"))
	fmt.Println(parking.Name("Müller"))
	// Output:
	// account-7
	// sha256:a78429899bb825ce667d25d92e2cde488f8a7d6871bb2be7365601cad6b0a8f2
}

package outbox_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/headracetest/outboxsuite"
	"github.com/headrace-go/headrace/outbox"
)

// A message that is to come again in an hour, without a transaction to go with.
func ExampleDelay() {
	box := outboxsuite.NewMemory() // store.Outbox() in a service
	ctx := context.Background()
	if err := outbox.Delay(ctx, box, time.Hour, "reminders", message.NewMessage("r-1", []byte("pay"))); err != nil {
		fmt.Println(err)
	}
	backlog, err := box.Backlog(ctx, 10)
	fmt.Println(backlog.Rows, "to publish now,", backlog.Delayed, "later,", err)
	// Output: 0 to publish now, 1 later, <nil>
}

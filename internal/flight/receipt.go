package flight

import "context"

// Receipt is the proof that a delivery may be acked (invariant I2).
type Receipt uint32

// The receipts and who gives them.
const (
	NoReceipt    Receipt = iota
	Handled              // runtime: a plain handler returned nil
	Committed            // inbox: the effect and the claim were committed
	Duplicate            // inbox: the claim was there already
	Stale                // inbox: a newer version of the entity was applied before; the claim was committed
	Ignored              // runtime: no handler for the type, and the policy says that is fine
	Dropped              // runtime: the verdict was Drop
	DeadLettered         // poison: the dead letter is confirmed stored
	Parked               // parking: the message was committed behind others of its key, which is parked
	Deferred             // runtime: the message is stored to come again later, as its error asked
)

var receiptNames = [...]string{"none", "handled", "committed", "duplicate", "stale", "ignored", "dropped", "dead_lettered", "parked", "delayed"}

// String gives the receipt's name as metrics and logs use it.
func (r Receipt) String() string {
	if int(r) < len(receiptNames) {
		return receiptNames[r]
	}
	return "unknown"
}

// Give records r for the delivery that ctx belongs to. Without a flight it does nothing.
func Give(ctx context.Context, r Receipt) {
	if f := From(ctx); f != nil {
		f.receipt.Store(uint32(r))
	}
}

// Receipt returns the receipt given in the current attempt. A nil flight has none.
func (f *Flight) Receipt() Receipt {
	if f == nil {
		return NoReceipt
	}
	return Receipt(f.receipt.Load())
}

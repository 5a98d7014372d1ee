package flight

import "context"

// Rewind forgets what a run of the handler left that was undone within the attempt: its receipt, and the
// events it created beyond outputs, so that the next run gives the same ids to the same events. It counts no
// attempt.
func (f *Flight) Rewind(outputs uint32) {
	f.receipt.Store(uint32(NoReceipt))
	f.outputs.Store(outputs)
}

// Without returns ctx without its flight: what handles many deliveries at once belongs to none of them.
func Without(ctx context.Context) context.Context { return withoutFlight{ctx} }

type withoutFlight struct{ context.Context }

func (c withoutFlight) Value(k any) any {
	if k == (key{}) {
		return nil
	}
	return c.Context.Value(k)
}

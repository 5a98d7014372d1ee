package flight

import (
	"context"
	"time"
)

// Trial is what the test kit plans for a delivery. Outside of tests there is none.
type Trial struct {
	// BeforeCommit is called when the handler has succeeded and its transaction would be committed now. Its
	// error rolls it back, and is the attempt's. It is called again when the handler runs again within the
	// attempt. nil: nothing is planned.
	BeforeCommit func(context.Context) error

	// Wait gives what is waited for where d would be.
	Wait func(d time.Duration) time.Duration
}

// Fault returns the failure that is planned between the handler's success and the COMMIT, or nil.
func (f *Flight) Fault() func(context.Context) error {
	if f.Trial == nil {
		return nil
	}
	return f.Trial.BeforeCommit
}

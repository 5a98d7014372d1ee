package ledger

import (
	"fmt"
	"strings"
	"time"
)

// CrashLoopError says that the handling of a message kills the process. The stage returns it marked permanent, and so
// the message is dead-lettered without being started again.
type CrashLoopError struct {
	// Consumer and ID name the message.
	Consumer, ID string
	// Starts are those that ended with their process, oldest first.
	Starts []Start
}

// maxNamed bounds the starts that an error's text names.
const maxNamed = 8

// Error names the message and its starts.
func (e *CrashLoopError) Error() string {
	var b strings.Builder
	alone := 0
	for _, s := range e.Starts {
		if s.Alone {
			alone++
		}
	}
	fmt.Fprintf(&b, "the handling of message %q by consumer %s kills the process: %d recorded starts ended with their process, %d of them while it ran alone:",
		e.ID, e.Consumer, len(e.Starts), alone)
	for i, s := range e.Starts[max(0, len(e.Starts)-maxNamed):] {
		if i > 0 {
			b.WriteString(";")
		}
		how := "among others"
		if s.Alone {
			how = "alone"
		}
		fmt.Fprintf(&b, " %s on %s in run %s, %s", s.At.UTC().Format(time.RFC3339Nano), s.Instance, s.Run, how)
	}
	return b.String()
}

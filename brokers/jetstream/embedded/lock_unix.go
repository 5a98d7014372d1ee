//go:build unix

package embedded

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// lockPatience is how long a server waits for the lock of one that is ending: a process that was killed may
// take a moment to be gone.
const lockPatience = 2 * time.Second

// lock takes the file at path for this process. A process that dies lets go of it.
func lock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 100) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			_ = f.Close() // the lock's error says more
			return nil, fmt.Errorf("another server has it (lock %s): %w", path, err)
		}
	}
}

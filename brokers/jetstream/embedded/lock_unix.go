//go:build unix

package embedded

import (
	"fmt"
	"os"
	"syscall"
)

// lock takes the file at path for this process. A process that dies lets go of it.
func lock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // the lock's error says more
		return nil, fmt.Errorf("another server has it (lock %s): %w", path, err)
	}
	return f.Close, nil
}

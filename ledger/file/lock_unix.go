//go:build unix

package file

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// lockPoll is how often a lock that another process holds is asked for.
const lockPoll = 2 * time.Millisecond

// lock takes f for this process, until ctx ends. A process that dies lets go of it.
func lock(ctx context.Context, f *os.File) (unlock func() error, err error) {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

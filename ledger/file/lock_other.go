//go:build !unix

package file

import (
	"context"
	"os"
)

// lock does nothing: there is no lock that a dead process lets go of in every system's standard library.
func lock(ctx context.Context, _ *os.File) (unlock func() error, err error) {
	return func() error { return nil }, ctx.Err()
}

// syncDir does nothing: a directory cannot be forced to the disk everywhere.
func syncDir(string) error { return nil }

package classify

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"io"
	"io/fs"
	"net"
)

var sentinels = [...]struct {
	err  error
	name string
}{
	{context.Canceled, "canceled"},
	{context.DeadlineExceeded, "timeout"},
	{io.EOF, "eof"},
	{io.ErrUnexpectedEOF, "eof"},
	{io.ErrClosedPipe, "io"},
	{io.ErrShortWrite, "io"},
	{io.ErrShortBuffer, "io"},
	{io.ErrNoProgress, "io"},
	{fs.ErrClosed, "io"},
	{net.ErrClosed, "net.closed"},
	{sql.ErrNoRows, "sql.no_rows"},
	{sql.ErrTxDone, "sql.tx_done"},
	{sql.ErrConnDone, "sql.conn"},
	{driver.ErrBadConn, "sql.conn"},
}

// sentinel knows the well-known error values, all of which pass, and errors that say by a method Is that
// they are one of them.
func sentinel(err error) Result {
	for i := range sentinels {
		if err == sentinels[i].err {
			return retry(sentinels[i].name)
		}
	}
	if is, ok := err.(interface{ Is(error) bool }); ok {
		for i := range sentinels {
			if is.Is(sentinels[i].err) {
				return retry(sentinels[i].name)
			}
		}
	}
	return Result{}
}

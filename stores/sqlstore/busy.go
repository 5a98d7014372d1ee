package sqlstore

import (
	"errors"

	"github.com/headrace-go/headrace/classify"
)

// SQLite's primary result codes for a lock that another connection holds.
const (
	sqliteBusy   = 5
	sqliteLocked = 6
)

// busy reports whether err is SQLite's word for a lock that is taken, by the method that modernc.org/sqlite
// has on its errors.
func busy(err error) bool {
	coded, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	if !ok {
		return false
	}
	primary := coded.Code() & 0xff
	return primary == sqliteBusy || primary == sqliteLocked
}

// transient marks a lock that was taken as worth a retry, whatever an application makes of errors that
// nothing knows. Other errors stay as they are: classify judges them.
func transient(err error) error {
	if busy(err) {
		return classify.Transient(err)
	}
	return err
}

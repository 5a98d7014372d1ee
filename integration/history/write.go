package history

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// Log writes records as JSON lines, each with one call of Write. It is safe for concurrent use: the records'
// times and their order agree.
type Log struct {
	mu   sync.Mutex
	w    io.Writer
	now  func() int64
	err  error
	last int64
}

// NewLog returns a log that writes to w, which the caller closes. Give it a file opened with O_APPEND: then a
// kill of the process loses no line that was written.
func NewLog(w io.Writer) *Log {
	return &Log{w: w, now: func() int64 { return time.Now().UnixNano() }}
}

// Write sets r's time and writes it. A record that is not written leaves an error for [Log.Err].
func (l *Log) Write(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Time = max(l.now(), l.last)
	l.last = r.Time
	if err := r.check(); err != nil {
		l.keep(err)
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		_, err = l.w.Write(append(line, '\n'))
	}
	l.keep(err)
}

func (l *Log) keep(err error) {
	if l.err == nil {
		l.err = err
	}
}

// Err returns the first error of any Write: a history with a hole proves nothing.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

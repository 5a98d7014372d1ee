// Package file keeps a crash ledger in a directory, for services without a database. It owns the directory: a
// journal of what was asked of the ledger, one JSON line each, and a lock. Each write is forced to the disk before
// the call returns, but heartbeats.
//
// Processes of one host may share the directory, under the lock, on Unix; elsewhere it belongs to one process at a
// time. It is not for network file systems. A container needs a volume that outlives it, else every start is the
// first.
package file

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/headrace-go/headrace/internal/ledgerbook"
	"github.com/headrace-go/headrace/ledger"
)

const (
	journalName = "ledger.jsonl"
	lockName    = "ledger.lock"

	// compactFrom is the size of the journal at which Begin and Beat replace it by what it amounts to.
	compactFrom = 1 << 20
)

// Store is a ledger in a directory. It is safe for concurrent use; one Store serves a process.
type Store struct {
	dir  string
	lock *os.File

	mu      sync.Mutex
	journal *os.File
	read    int64 // how much of the journal the book has seen
	book    *ledgerbook.Book
	last    time.Time // of the newest line
}

var _ ledger.Store = (*Store)(nil)

// line is one line of the journal: a snapshot, which is the first, or one call. The names are a wire contract.
type line struct {
	Version  int                  `json:"v"`
	At       time.Time            `json:"at"`
	Op       string               `json:"op"`
	Run      ledger.Run           `json:"run,omitzero"`
	Terms    ledger.Terms         `json:"terms,omitzero"`
	Done     []ledger.Key         `json:"done,omitempty"`
	Begun    []ledger.Key         `json:"begun,omitempty"`
	Key      ledger.Key           `json:"key,omitzero"`
	Force    bool                 `json:"force,omitempty"`
	Snapshot *ledgerbook.Snapshot `json:"snapshot,omitempty"`
}

// version is that of the lines that this program writes.
const version = 1

// Open makes the directory if it is not there and returns the ledger in it. Close it.
func Open(dir string) (*Store, error) {
	if dir == "" {
		return nil, errors.New("ledger/file: the directory is \"\"")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("ledger/file: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("ledger/file: %w", err)
	}
	return &Store{dir: dir, lock: lock, book: ledgerbook.New()}, nil
}

// Close closes the files. Calls after it fail.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.lock.Close()
	if s.journal != nil {
		err = errors.Join(err, s.journal.Close())
		s.journal = nil
	}
	return err
}

// Check implements [ledger.Store]: the directory can be locked, read and written.
func (s *Store) Check(ctx context.Context) error {
	if err := s.do(ctx, func() error { return nil }); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("%w: %w", ledger.ErrNotUsable, err)
	}
	return nil
}

// do runs f while no other process has the ledger and the book is up to date.
func (s *Store) do(ctx context.Context, f func() error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if err != nil && !errors.Is(err, ledger.ErrLost) {
			err = fmt.Errorf("ledger/file: %s: %w", s.dir, err)
		}
	}()
	unlock, err := lock(ctx, s.lock)
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if err := s.catchUp(); err != nil {
		return err
	}
	return f()
}

// catchUp reads what other processes have written since.
func (s *Store) catchUp() error {
	if err := s.reopen(); err != nil {
		return err
	}
	if _, err := s.journal.Seek(s.read, io.SeekStart); err != nil {
		return err
	}
	r := bufio.NewReaderSize(s.journal, 1<<16)
	for {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(text) == 0 {
				return nil
			}
			// The end of a process that died while it wrote: its call was never answered.
			return s.journal.Truncate(s.read)
		}
		if err != nil {
			return err
		}
		if err := s.apply(text); err != nil {
			return fmt.Errorf("%s, byte %d: %w", journalName, s.read, err)
		}
		s.read += int64(len(text))
	}
}

// reopen opens the journal if it is not open, or if another process has replaced it.
func (s *Store) reopen() error {
	path := filepath.Join(s.dir, journalName)
	if s.journal != nil {
		there, err := os.Stat(path)
		mine, mineErr := s.journal.Stat()
		if err == nil && mineErr == nil && os.SameFile(there, mine) {
			return nil
		}
		if err := s.journal.Close(); err != nil {
			return err
		}
		s.journal = nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	s.journal, s.read, s.book = f, 0, ledgerbook.New()
	return syncDir(s.dir)
}

func (s *Store) apply(text []byte) error {
	var l line
	if err := json.Unmarshal(bytes.TrimSpace(text), &l); err != nil {
		return err
	}
	if l.Version > version {
		return fmt.Errorf("a line has version %d, this program knows %d", l.Version, version)
	}
	if l.At.After(s.last) {
		s.last = l.At
	}
	if l.Snapshot != nil {
		s.book = ledgerbook.Restore(*l.Snapshot)
		return nil
	}
	l.call(s.book)
	return nil
}

// result is what a call answered.
type result struct {
	standing ledger.Standing
	suspects []ledger.Suspect
	suspect  ledger.Suspect
	err      error
}

// call makes the call that the line stands for.
func (l *line) call(b *ledgerbook.Book) (r result) {
	switch l.Op {
	case "begin":
		r.standing = b.Begin(l.At, l.Run, l.Terms)
	case "beat":
		r.standing = b.Beat(l.At, l.Run, l.Terms)
	case "stopping":
		b.Stopping(l.Run)
	case "end":
		b.End(l.Run)
	case "record":
		r.suspects, r.err = b.Record(l.At, l.Run, l.Done, l.Begun)
	case "alone":
		r.suspect, r.err = b.Alone(l.At, l.Run, l.Key, l.Force)
	case "clear":
		b.Clear(l.Run, l.Key)
	}
	return r
}

// write makes a call durable and answers it. The journal comes first: a call that was not written was not made.
func (s *Store) write(ctx context.Context, l line) (r result, err error) {
	err = s.do(ctx, func() error {
		l.Version, l.At = version, time.Now().UTC().Truncate(time.Microsecond)
		if l.At.Before(s.last) {
			l.At = s.last // the host's clock was set back
		}
		text, err := json.Marshal(l)
		if err != nil {
			return err
		}
		text = append(text, '\n')
		if _, err := s.journal.WriteAt(text, s.read); err != nil {
			return errors.Join(err, s.journal.Truncate(s.read))
		}
		if l.Op != "beat" {
			if err := s.journal.Sync(); err != nil {
				return errors.Join(err, s.journal.Truncate(s.read))
			}
		}
		s.read += int64(len(text))
		s.last = l.At
		r = l.call(s.book)
		if (l.Op == "begin" || l.Op == "beat") && s.read >= compactFrom {
			return s.compact(l.At)
		}
		return nil
	})
	if err == nil {
		err = r.err
	}
	return r, err
}

// compact replaces the journal by one line.
func (s *Store) compact(now time.Time) error {
	snapshot := s.book.Snapshot()
	text, err := json.Marshal(line{Version: version, At: now, Op: "snapshot", Snapshot: &snapshot})
	if err != nil {
		return err
	}
	text = append(text, '\n')
	path := filepath.Join(s.dir, journalName)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	old := s.journal
	s.journal, s.read = f, int64(len(text))
	return errors.Join(old.Close(), syncDir(s.dir))
}

// Begin implements [ledger.Store].
func (s *Store) Begin(ctx context.Context, run ledger.Run, terms ledger.Terms) (ledger.Standing, error) {
	r, err := s.write(ctx, line{Op: "begin", Run: run, Terms: terms})
	return r.standing, err
}

// Beat implements [ledger.Store].
func (s *Store) Beat(ctx context.Context, run ledger.Run, terms ledger.Terms) (ledger.Standing, error) {
	r, err := s.write(ctx, line{Op: "beat", Run: run, Terms: terms})
	return r.standing, err
}

// Stopping implements [ledger.Store].
func (s *Store) Stopping(ctx context.Context, run ledger.Run) error {
	_, err := s.write(ctx, line{Op: "stopping", Run: run})
	return err
}

// End implements [ledger.Store].
func (s *Store) End(ctx context.Context, run ledger.Run) error {
	_, err := s.write(ctx, line{Op: "end", Run: run})
	return err
}

// Record implements [ledger.Store].
func (s *Store) Record(ctx context.Context, run ledger.Run, done, begun []ledger.Key) ([]ledger.Suspect, error) {
	r, err := s.write(ctx, line{Op: "record", Run: run, Done: done, Begun: begun})
	return r.suspects, err
}

// Alone implements [ledger.Store].
func (s *Store) Alone(ctx context.Context, run ledger.Run, key ledger.Key, force bool) (ledger.Suspect, error) {
	r, err := s.write(ctx, line{Op: "alone", Run: run, Key: key, Force: force})
	return r.suspect, err
}

// Clear implements [ledger.Store].
func (s *Store) Clear(ctx context.Context, run ledger.Run, key ledger.Key) error {
	_, err := s.write(ctx, line{Op: "clear", Run: run, Key: key})
	return err
}

// Suspects implements [ledger.Store].
func (s *Store) Suspects(ctx context.Context, service string, retention time.Duration, limit int) (keys []ledger.Key, err error) {
	err = s.do(ctx, func() error {
		keys = s.book.Suspects(time.Now(), service, retention, limit)
		return nil
	})
	return keys, err
}

// Package ledgersql is the crash ledger on any SQL database that stores/* supports. It knows no driver; a store
// lends it a [DB].
//
// Whoever takes a run for dead holds the row of its service meanwhile; what runs for each message, and
// heartbeats as long as nobody has died, take no lock that another process waits for.
package ledgersql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/ledger"
	"github.com/headrace-go/headrace/stores/schema"
)

// DB runs statements, each by itself unless it is a transaction.
type DB interface {
	// Exec returns the number of rows that the statement changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Query calls row for each row of the answer until it returns false.
	Query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error
}

// Store is a ledger.Store. It is safe for concurrent use.
type Store struct {
	d     dialect
	tx    func(ctx context.Context, f func(DB) error) error
	check func(context.Context) error

	service, run, start string // the tables
}

var _ ledger.Store = (*Store)(nil)

// New returns a store. tx runs f in a transaction that reads what is committed; check is the schema's.
func New(n schema.Names, tx func(ctx context.Context, f func(DB) error) error, check func(context.Context) error) *Store {
	return &Store{
		d: dialect(n.Dialect), tx: tx, check: check,
		service: n.Table("ledger_service"), run: n.Table("ledger_run"), start: n.Table("ledger_start"),
	}
}

// Check implements ledger.Store.
func (s *Store) Check(ctx context.Context) error {
	err := s.check(ctx)
	if errors.Is(err, schema.ErrNotMigrated) || errors.Is(err, schema.ErrTooNew) {
		return fmt.Errorf("%w: %w", ledger.ErrNotUsable, err)
	}
	return err
}

// tries is how often a transaction is begun that another one pushes aside.
const tries = 10

// atomically runs f in a transaction, again if that was the victim of a deadlock.
func (s *Store) atomically(ctx context.Context, what string, f func(db) error) error {
	var err error
	for try := range tries {
		err = s.tx(ctx, func(tx DB) error { return f(db{DB: tx, d: s.d}) })
		if !pushedAside(err) {
			break
		}
		select { // not in step with the other one
		case <-time.After(rand.N(time.Millisecond << try)):
		case <-ctx.Done():
		}
	}
	if err != nil && !errors.Is(err, ledger.ErrLost) {
		err = fmt.Errorf("ledger: %s: %w", what, err)
	}
	return err
}

func pushedAside(err error) bool {
	if err == nil {
		return false
	}
	switch (*classify.Classifier)(nil).Classify(err).ErrorType {
	case "sql.40001", "sql.40P01", "mysql.1213":
		return true
	}
	return false
}

// db is a transaction with the dialect's placeholders.
type db struct {
	DB
	d dialect
}

func (t db) exec(ctx context.Context, query string, args ...any) (int64, error) {
	return t.Exec(ctx, t.d.text(query), args...)
}

func (t db) query(ctx context.Context, row func(scan func(...any) error) (bool, error), query string, args ...any) error {
	return t.Query(ctx, row, t.d.text(query), args...)
}

// Begin implements ledger.Store.
func (s *Store) Begin(ctx context.Context, run ledger.Run, terms ledger.Terms) (ledger.Standing, error) {
	var standing ledger.Standing
	err := s.atomically(ctx, "begin a run", func(tx db) error {
		known, err := s.exists(ctx, tx, "SELECT 1 FROM "+s.service+" WHERE service = ?", run.Service)
		if err != nil {
			return err
		}
		if err := s.lock(ctx, tx, run.Service); err != nil {
			return err
		}
		dead, err := s.dead(ctx, tx, run, true)
		if err != nil {
			return err
		}
		if err := s.bury(ctx, tx, run.Service, dead, terms); err != nil {
			return err
		}
		if err := s.register(ctx, tx, run, terms); err != nil {
			return err
		}
		standing, err = s.standing(ctx, tx, run.Service)
		standing.Fresh = !known
		return err
	})
	return standing, err
}

// Beat implements ledger.Store.
func (s *Store) Beat(ctx context.Context, run ledger.Run, terms ledger.Terms) (ledger.Standing, error) {
	var standing ledger.Standing
	calm := false
	err := s.atomically(ctx, "prolong a run", func(tx db) error {
		prolonged, err := s.prolong(ctx, tx, run, terms)
		if err != nil {
			return err
		}
		dead, err := s.dead(ctx, tx, run, false)
		if err != nil {
			return err
		}
		if calm = prolonged && len(dead) == 0; !calm {
			return nil
		}
		standing, err = s.standing(ctx, tx, run.Service)
		return err
	})
	if err != nil || calm {
		return standing, err
	}
	err = s.atomically(ctx, "take runs for dead", func(tx db) error {
		if err := s.lock(ctx, tx, run.Service); err != nil {
			return err
		}
		prolonged, err := s.prolong(ctx, tx, run, terms)
		if err != nil {
			return err
		}
		if !prolonged {
			if err := s.takeUp(ctx, tx, run, terms); err != nil {
				return err
			}
		}
		dead, err := s.dead(ctx, tx, run, false)
		if err != nil {
			return err
		}
		if err := s.bury(ctx, tx, run.Service, dead, terms); err != nil {
			return err
		}
		standing, err = s.standing(ctx, tx, run.Service)
		standing.Lost = !prolonged
		return err
	})
	return standing, err
}

// lock makes the service's row if it is not there, and holds it to the end of the transaction.
func (s *Store) lock(ctx context.Context, tx db, service string) error {
	if s.d == postgres {
		// A process that is frozen here must not hold up the others' heartbeats.
		if _, err := tx.exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = '10s'"); err != nil {
			return err
		}
	}
	_, err := tx.exec(ctx, "INSERT INTO "+s.service+" (service, alarms, alarmed_at, misses) VALUES (?, 0, "+s.d.now()+", 0)"+s.d.ignore("service"), service)
	if err != nil {
		return err
	}
	_, err = s.exists(ctx, tx, "SELECT 1 FROM "+s.service+" WHERE service = ?"+s.d.forUpdate(), service)
	return err
}

func (s *Store) exists(ctx context.Context, tx db, query string, args ...any) (found bool, err error) {
	err = tx.query(ctx, func(func(...any) error) (bool, error) { found = true; return false, nil }, query, args...)
	return found, err
}

func (s *Store) register(ctx context.Context, tx db, run ledger.Run, terms ledger.Terms) error {
	// The run may be there: the answer to an earlier call was lost.
	if _, err := tx.exec(ctx, "DELETE FROM "+s.run+" WHERE service = ? AND run = ?", run.Service, run.ID); err != nil {
		return err
	}
	_, err := tx.exec(ctx, "INSERT INTO "+s.run+" (service, run, instance, started_at, expires_at, stopping) VALUES (?, ?, ?, "+
		s.d.now()+", "+s.d.later()+", FALSE)", run.Service, run.ID, run.Instance, terms.TTL.Microseconds())
	return err
}

func (s *Store) prolong(ctx context.Context, tx db, run ledger.Run, terms ledger.Terms) (bool, error) {
	n, err := tx.exec(ctx, "UPDATE "+s.run+" SET expires_at = "+s.d.later()+" WHERE service = ? AND run = ?",
		terms.TTL.Microseconds(), run.Service, run.ID)
	return n > 0, err
}

// takeUp registers a run again that was taken for dead, with its starts.
func (s *Store) takeUp(ctx context.Context, tx db, run ledger.Run, terms ledger.Terms) error {
	if err := s.register(ctx, tx, run, terms); err != nil {
		return err
	}
	_, err := tx.exec(ctx, "UPDATE "+s.start+" SET died = FALSE WHERE service = ? AND run = ?", run.Service, run.ID)
	return err
}

// deadRun is a run that is taken for dead.
type deadRun struct {
	id       string
	stopping bool
}

// dead lists the runs of run's service that have died: their lease has run out, or run has their name.
func (s *Store) dead(ctx context.Context, tx db, run ledger.Run, byName bool) ([]deadRun, error) {
	cond, args := "expires_at < "+s.d.now(), []any{run.Service, run.ID}
	if byName {
		cond, args = "("+cond+" OR instance = ?)", append(args, run.Instance)
	}
	var list []deadRun
	err := tx.query(ctx, func(scan func(...any) error) (bool, error) {
		var id []byte
		var r deadRun
		err := scan(&id, &r.stopping)
		r.id = string(id)
		list = append(list, r)
		return true, err
	}, "SELECT run, stopping FROM "+s.run+" WHERE service = ? AND run <> ? AND "+cond, args...)
	return list, err
}

// bury makes suspicions of the starts of dead runs, and of those whose run is not there. The caller has locked the
// service.
func (s *Store) bury(ctx context.Context, tx db, service string, dead []deadRun, terms ledger.Terms) error {
	if len(dead) == 0 {
		return nil
	}
	alarms, left := 0, int64(0)
	for _, r := range dead {
		if _, err := tx.exec(ctx, "DELETE FROM "+s.run+" WHERE service = ? AND run = ?", service, r.id); err != nil {
			return err
		}
		set := "died = TRUE"
		if r.stopping {
			set += ", alone = FALSE"
		}
		n, err := tx.exec(ctx, "UPDATE "+s.start+" SET "+set+" WHERE service = ? AND run = ? AND NOT died", service, r.id)
		if err != nil {
			return err
		}
		left += n
		if !r.stopping || n > 0 {
			alarms++
		}
	}
	if alarms > 0 {
		misses := "misses + ?"
		if left > 0 {
			misses = "? * 0"
		}
		_, err := tx.exec(ctx, "UPDATE "+s.service+" SET alarms = alarms + ?, alarmed_at = "+s.d.now()+", misses = "+misses+" WHERE service = ?",
			alarms, alarms, service)
		if err != nil {
			return err
		}
	}
	_, err := tx.exec(ctx, "UPDATE "+s.start+" SET died = TRUE WHERE service = ? AND NOT died AND run NOT IN (SELECT run FROM "+s.run+" WHERE service = ?)",
		service, service)
	if err != nil {
		return err
	}
	return s.prune(ctx, tx, service, terms)
}

// prune forgets suspicions that are too old or too many.
func (s *Store) prune(ctx context.Context, tx db, service string, terms ledger.Terms) error {
	_, err := tx.exec(ctx, "DELETE FROM "+s.start+" WHERE service = ? AND died AND started_at < "+s.d.later(),
		service, -terms.Retention.Microseconds())
	if err != nil {
		return err
	}
	var oldest any
	err = tx.query(ctx, func(scan func(...any) error) (bool, error) { return false, scan(&oldest) },
		"SELECT started_at FROM "+s.start+" WHERE service = ? AND died AND NOT alone ORDER BY started_at DESC LIMIT 1 OFFSET ?",
		service, terms.MaxSuspects)
	if err != nil || oldest == nil {
		return err
	}
	_, err = tx.exec(ctx, "DELETE FROM "+s.start+" WHERE service = ? AND died AND NOT alone AND started_at <= ?", service, oldest)
	return err
}

func (s *Store) standing(ctx context.Context, tx db, service string) (ledger.Standing, error) {
	var standing ledger.Standing
	var since int64
	err := tx.query(ctx, func(scan func(...any) error) (bool, error) {
		return false, scan(&standing.Alarms, &since, &standing.Misses)
	}, "SELECT alarms, "+s.d.micros(s.d.now())+" - "+s.d.micros("alarmed_at")+", misses FROM "+s.service+" WHERE service = ?", service)
	standing.SinceAlarm = max(0, time.Duration(since)*time.Microsecond)
	return standing, err
}

// Stopping implements ledger.Store.
func (s *Store) Stopping(ctx context.Context, run ledger.Run) error {
	return s.atomically(ctx, "announce the stop of a run", func(tx db) error {
		_, err := tx.exec(ctx, "UPDATE "+s.run+" SET stopping = TRUE WHERE service = ? AND run = ?", run.Service, run.ID)
		return err
	})
}

// End implements ledger.Store.
func (s *Store) End(ctx context.Context, run ledger.Run) error {
	return s.atomically(ctx, "end a run", func(tx db) error {
		for _, table := range []string{s.start, s.run} {
			if _, err := tx.exec(ctx, "DELETE FROM "+table+" WHERE service = ? AND run = ?", run.Service, run.ID); err != nil {
				return err
			}
		}
		_, err := tx.exec(ctx, "UPDATE "+s.service+" SET misses = 0 WHERE service = ? AND misses <> 0", run.Service)
		return err
	})
}

// held fails if the run is not there. It locks nothing: a start that slips in behind a run that is just being taken for
// dead is found by the next one who takes a run for dead, unless the run is taken up again.
func (s *Store) held(ctx context.Context, tx db, run ledger.Run) error {
	found, err := s.exists(ctx, tx, "SELECT 1 FROM "+s.run+" WHERE service = ? AND run = ?", run.Service, run.ID)
	if err == nil && !found {
		err = ledger.ErrLost
	}
	return err
}

// Record implements ledger.Store.
func (s *Store) Record(ctx context.Context, run ledger.Run, done, begun []ledger.Key) ([]ledger.Suspect, error) {
	// All processes and all calls take the rows in one order.
	done, begun = sorted(done), sorted(begun)
	var suspects []ledger.Suspect
	err := s.atomically(ctx, "record starts", func(tx db) error {
		if err := s.held(ctx, tx, run); err != nil {
			return err
		}
		for _, keys := range chunks(done) {
			if err := s.erase(ctx, tx, run, keys); err != nil {
				return err
			}
		}
		suspects = nil
		for _, keys := range chunks(begun) {
			found, err := s.suspected(ctx, tx, run, keys)
			if err != nil {
				return err
			}
			suspects = append(suspects, found...)
		}
		for _, keys := range chunks(without(begun, suspects)) {
			if err := s.insert(ctx, tx, run, keys); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return suspects, nil
}

func sorted(keys []ledger.Key) []ledger.Key {
	return slices.SortedFunc(slices.Values(keys), compare)
}

func compare(a, b ledger.Key) int {
	return cmp.Or(cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.ID, b.ID))
}

func without(keys []ledger.Key, suspects []ledger.Suspect) []ledger.Key {
	if len(suspects) == 0 {
		return keys
	}
	known := make(map[ledger.Key]bool, len(suspects))
	for _, s := range suspects {
		known[s.Key] = true
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k ledger.Key) bool { return known[k] })
}

func (s *Store) erase(ctx context.Context, tx db, run ledger.Run, keys []ledger.Key) error {
	in, args := s.d.in(keys)
	_, err := tx.exec(ctx, "DELETE FROM "+s.start+" WHERE service = ? AND run = ? AND "+in, append([]any{run.Service, run.ID}, args...)...)
	return err
}

func (s *Store) insert(ctx context.Context, tx db, run ledger.Run, keys []ledger.Key) error {
	row := "(?, ?, ?, ?, ?, " + s.d.now() + ", FALSE, FALSE)"
	query := "INSERT INTO " + s.start + " (service, consumer, id, run, instance, started_at, alone, died) VALUES "
	args := make([]any, 0, 5*len(keys))
	for i, k := range keys {
		if i > 0 {
			query += ", "
		}
		query += row
		args = append(args, run.Service, k.Consumer, k.ID, run.ID, run.Instance)
	}
	_, err := tx.exec(ctx, query+s.d.ignore("run"), args...)
	return err
}

// suspected returns those of keys that are suspects or elsewhere.
func (s *Store) suspected(ctx context.Context, tx db, run ledger.Run, keys []ledger.Key) ([]ledger.Suspect, error) {
	in, args := s.d.in(keys)
	var list []ledger.Suspect
	err := tx.query(ctx, func(scan func(...any) error) (bool, error) {
		var consumer, id, of, instance []byte
		var at int64
		var start ledger.Start
		var died bool
		err := scan(&consumer, &id, &of, &instance, &at, &start.Alone, &died)
		start.Run, start.Instance, start.At = string(of), string(instance), time.UnixMicro(at).UTC()
		key := ledger.Key{Consumer: string(consumer), ID: string(id)}
		if n := len(list); n == 0 || list[n-1].Key != key {
			list = append(list, ledger.Suspect{Key: key})
		}
		last := &list[len(list)-1]
		if died {
			last.Starts = append(last.Starts, start)
		} else {
			last.Elsewhere = true
		}
		return true, err
	}, "SELECT consumer, id, run, instance, "+s.d.micros("started_at")+", alone, died FROM "+s.start+
		" WHERE service = ? AND (died OR run <> ?) AND "+in+" ORDER BY consumer, id, started_at, run",
		append([]any{run.Service, run.ID}, args...)...)
	return list, err
}

// Alone implements ledger.Store.
func (s *Store) Alone(ctx context.Context, run ledger.Run, key ledger.Key, force bool) (ledger.Suspect, error) {
	suspect := ledger.Suspect{Key: key}
	err := s.atomically(ctx, "record a start alone", func(tx db) error {
		if err := s.held(ctx, tx, run); err != nil {
			return err
		}
		keys := []ledger.Key{key}
		found, err := s.suspected(ctx, tx, run, keys)
		if err != nil {
			return err
		}
		suspect = ledger.Suspect{Key: key}
		if len(found) > 0 {
			suspect = found[0]
		}
		if suspect.Convicted() || suspect.Elsewhere && !force {
			return nil
		}
		if err := s.erase(ctx, tx, run, keys); err != nil {
			return err
		}
		_, err = tx.exec(ctx, "INSERT INTO "+s.start+" (service, consumer, id, run, instance, started_at, alone, died) VALUES (?, ?, ?, ?, ?, "+s.d.now()+", TRUE, FALSE)",
			run.Service, key.Consumer, key.ID, run.ID, run.Instance)
		return err
	})
	if err != nil {
		return ledger.Suspect{}, err
	}
	return suspect, nil
}

// Clear implements ledger.Store.
func (s *Store) Clear(ctx context.Context, run ledger.Run, key ledger.Key) error {
	return s.atomically(ctx, "clear a suspect", func(tx db) error {
		_, err := tx.exec(ctx, "DELETE FROM "+s.start+" WHERE service = ? AND consumer = ? AND id = ? AND (died OR run = ?)",
			run.Service, key.Consumer, key.ID, run.ID)
		return err
	})
}

// Suspects implements ledger.Store.
func (s *Store) Suspects(ctx context.Context, service string, retention time.Duration, limit int) ([]ledger.Key, error) {
	var keys []ledger.Key
	err := s.atomically(ctx, "list the suspects", func(tx db) error {
		keys = nil
		return tx.query(ctx, func(scan func(...any) error) (bool, error) {
			var consumer, id []byte
			err := scan(&consumer, &id)
			keys = append(keys, ledger.Key{Consumer: string(consumer), ID: string(id)})
			return true, err
		}, "SELECT DISTINCT consumer, id FROM "+s.start+" WHERE service = ? AND died AND started_at >= "+s.d.later()+" ORDER BY consumer, id LIMIT ?",
			service, -retention.Microseconds(), limit)
	})
	return keys, err
}

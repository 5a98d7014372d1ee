package parksql

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/schema"
)

// Lease implements parking.Ledger. A key whose row is locked is being drained, whatever its lease says, and is
// passed over.
func (l *Ledger) Lease(ctx context.Context, consumer, owner string, ttl time.Duration, limit int) ([]string, error) {
	// Nearly always there is none, which a look finds out without a lock.
	names, err := l.names(ctx, l.DB, l.free(""), consumer, 1)
	if err == nil && len(names) > 0 {
		lease := l.lease
		if l.dialect == schema.MySQL {
			lease = l.leaseMySQL
		}
		names, err = lease(ctx, consumer, owner, ttl, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("parking: lease released keys of %q: %w", consumer, l.Explain(ctx, err))
	}
	return names, nil
}

func (l *Ledger) free(lock string) string {
	return "SELECT msg_key FROM " + l.keys + " WHERE consumer = ? AND state = 'released' AND lease_until <= " + l.now +
		" ORDER BY released_at, msg_key LIMIT ?" + lock
}

func (l *Ledger) lease(ctx context.Context, consumer, owner string, ttl time.Duration, limit int) ([]string, error) {
	these := "IN (" + l.free(l.skipped) + ")"
	if l.dialect == schema.Postgres { // which may run a subquery of IN again and again, and each time gets more rows
		these = "= ANY (ARRAY(" + l.free(l.skipped) + "))"
	}
	return l.names(ctx, l.DB, "UPDATE "+l.keys+" SET owner = ?, lease_until = "+l.now+" + ?"+
		" WHERE consumer = ? AND msg_key "+these+" RETURNING msg_key",
		owner, ttl.Microseconds(), consumer, consumer, limit)
}

// leaseMySQL changes each row by its primary key: a range would lock what is beside it as well.
func (l *Ledger) leaseMySQL(ctx context.Context, consumer, owner string, ttl time.Duration, limit int) (names []string, err error) {
	err = l.Tx(ctx, func(db DB) error {
		if names, err = l.names(ctx, db, l.free(l.skipped), consumer, limit); err != nil {
			return err
		}
		for _, name := range names {
			if _, err := l.exec(ctx, db, "UPDATE "+l.keys+" SET owner = ?, lease_until = "+l.now+" + ?"+ofKey,
				owner, ttl.Microseconds(), consumer, name); err != nil {
				return err
			}
		}
		return nil
	})
	return names, err
}

func (l *Ledger) names(ctx context.Context, db DB, query string, args ...any) (list []string, err error) {
	err = l.query(ctx, db, func(scan func(...any) error) (bool, error) {
		var name string
		err := scan(&name)
		list = append(list, name)
		return true, err
	}, query, args...)
	return list, err
}

// Next implements parking.Ledger.
func (l *Ledger) Next(ctx context.Context, consumer, key, owner string, ttl time.Duration) (parking.Message, bool, error) {
	n, err := l.exec(ctx, l.DB, "UPDATE "+l.keys+" SET lease_until = "+l.now+" + ?"+ofKey+" AND state = 'released' AND owner = ?",
		ttl.Microseconds(), consumer, key, owner)
	if err != nil || n == 0 {
		return parking.Message{}, false, l.failed(ctx, "prolong the lease of", consumer, key, err)
	}
	list, err := l.Messages(ctx, consumer, key, 0, 1)
	if err != nil || len(list) == 0 {
		return parking.Message{}, false, err
	}
	return list[0], true, nil
}

// Leave implements parking.Ledger.
func (l *Ledger) Leave(ctx context.Context, consumer, owner string) error {
	_, err := l.exec(ctx, l.DB, "UPDATE "+l.keys+" SET owner = '', lease_until = 0 WHERE consumer = ? AND state = 'released' AND owner = ?", consumer, owner)
	if err != nil {
		return fmt.Errorf("parking: end the leases of %q: %w", consumer, l.Explain(ctx, err))
	}
	return nil
}

package outboxsql

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// Lease implements outbox.Source. Each step is a statement by itself, so that a process that is frozen
// between two of them holds no lock. Two relays that take at once get different buckets.
func (s *Source) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	tenure, err := s.leases(ctx, owner, ttl.Microseconds())
	if err != nil {
		return outbox.Tenure{}, fmt.Errorf("lease buckets in %s: %w", s.lease, err)
	}
	return tenure, nil
}

func (s *Source) leases(ctx context.Context, owner string, ttl int64) (outbox.Tenure, error) {
	heartbeat := "INSERT INTO " + s.relay + " (owner, expires_at) VALUES (?, " + s.d.later() + ")"
	if s.d == mysql {
		heartbeat += " ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at)"
	} else {
		heartbeat += " ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at"
	}
	if _, err := s.exec(ctx, s.db, heartbeat, owner, ttl); err != nil {
		return outbox.Tenure{}, err
	}
	if _, err := s.exec(ctx, s.db, "DELETE FROM "+s.relay+" WHERE expires_at <= "+s.d.now()); err != nil {
		return outbox.Tenure{}, err
	}
	var relays, now int64
	err := s.query(ctx, func(scan func(...any) error) (bool, error) { return false, scan(&relays, &now) },
		"SELECT count(*), "+s.d.micros(s.d.now())+" FROM "+s.relay+" WHERE expires_at > "+s.d.now())
	if err != nil {
		return outbox.Tenure{}, err
	}
	if _, err := s.exec(ctx, s.db, "UPDATE "+s.lease+" SET expires_at = "+s.d.later()+" WHERE owner = ? AND expires_at > "+s.d.now(), ttl, owner); err != nil {
		return outbox.Tenure{}, err
	}
	list, err := s.held(ctx, owner)
	if err != nil {
		return outbox.Tenure{}, err
	}
	if want := outbox.Share(int(relays)) - len(list); want > 0 {
		n, err := s.take(ctx, owner, ttl, want)
		if err != nil {
			return outbox.Tenure{}, err
		}
		if n > 0 {
			if list, err = s.held(ctx, owner); err != nil {
				return outbox.Tenure{}, err
			}
		}
	}
	return outbox.Tenure{Leases: list, Relays: int(relays), Now: time.UnixMicro(now)}, nil
}

func (s *Source) held(ctx context.Context, owner string) ([]outbox.Lease, error) {
	list := make([]outbox.Lease, 0, outbox.Buckets)
	err := s.query(ctx, func(scan func(...any) error) (bool, error) {
		var l outbox.Lease
		err := scan(&l.Bucket, &l.Epoch)
		list = append(list, l)
		return true, err
	}, "SELECT bucket, epoch FROM "+s.lease+" WHERE owner = ? AND expires_at > "+s.d.now()+" ORDER BY bucket", owner)
	return list, err
}

// take leases at most n free buckets and returns how many.
func (s *Source) take(ctx context.Context, owner string, ttl int64, n int) (int64, error) {
	update := "UPDATE " + s.lease + " SET owner = ?, epoch = epoch + 1, expires_at = " + s.d.later() + " WHERE "
	free := "expires_at <= " + s.d.now()
	switch s.d {
	case postgres:
		update += "bucket IN (SELECT bucket FROM " + s.lease + " WHERE " + free + " ORDER BY bucket LIMIT ? FOR UPDATE SKIP LOCKED)"
	case mysql:
		update += free + " ORDER BY bucket LIMIT ?"
	default:
		update += "bucket IN (SELECT bucket FROM " + s.lease + " WHERE " + free + " ORDER BY bucket LIMIT ?)"
	}
	return s.exec(ctx, s.db, update, owner, ttl, n)
}

// Release implements outbox.Source.
func (s *Source) Release(ctx context.Context, owner string, leases []outbox.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	leased, args := s.d.leased(leases)
	_, err := s.exec(ctx, s.db, "UPDATE "+s.lease+" SET owner = '', expires_at = "+s.d.never()+" WHERE owner = ? AND "+leased,
		append([]any{owner}, args...)...)
	if err != nil {
		return fmt.Errorf("release %d buckets in %s: %w", len(leases), s.lease, err)
	}
	return nil
}

// Leave implements outbox.Source.
func (s *Source) Leave(ctx context.Context, owner string) error {
	if _, err := s.exec(ctx, s.db, "UPDATE "+s.lease+" SET owner = '', expires_at = "+s.d.never()+" WHERE owner = ?", owner); err != nil {
		return fmt.Errorf("release all buckets in %s: %w", s.lease, err)
	}
	if _, err := s.exec(ctx, s.db, "DELETE FROM "+s.relay+" WHERE owner = ?", owner); err != nil {
		return fmt.Errorf("leave %s: %w", s.relay, err)
	}
	return nil
}

package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/stores/schema"
)

// OnceGroup implements [inbox.GroupStore]: one statement claims all, and tells which are new. On MySQL that
// takes a second transaction when some were committed before.
func (s *Store) OnceGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx *sql.Tx, isNew []bool) error) error {
	if err := s.slots.Take(ctx); err != nil {
		return groupFailed(ctx, "begin", claims, err)
	}
	defer s.slots.Give()

	isNew := make([]bool, len(claims))
	tx, err := s.beginGroup(ctx, claims, isNew)
	if err != nil {
		return groupFailed(ctx, "claim", claims, s.explain(ctx, err))
	}
	defer func() { _ = tx.rollback() }()
	if err := fn(ctx, tx.Tx, isNew); err != nil {
		if errors.Is(tx.rollback(), sql.ErrTxDone) {
			return errors.Join(err, groupFailed(ctx, "roll back", claims, inbox.ErrTxEnded))
		}
		return err
	}
	witness := inbox.Claim{}
	for i, c := range claims {
		if isNew[i] {
			witness = c
		}
	}
	if err := s.finish(ctx, tx, witness); err != nil {
		return groupFailed(ctx, "commit", claims, err)
	}
	return nil
}

// beginGroup starts a transaction and claims in it what was not claimed before.
func (s *Store) beginGroup(ctx context.Context, claims []inbox.Claim, isNew []bool) (*transaction, error) {
	tx, err := s.beginShared(ctx)
	if err != nil {
		return nil, err
	}
	if s.names.Dialect != schema.MySQL {
		err := s.claimMany(ctx, tx.Tx, claims, isNew)
		if err != nil {
			_ = tx.rollback()
			return nil, err
		}
		s.countDuplicates(isNew)
		return tx, nil
	}
	ok, err := s.claimManyMySQL(ctx, tx.Tx, claims)
	if err == nil && ok {
		for i := range isNew {
			isNew[i] = true
		}
		return tx, nil
	}
	_ = tx.rollback()
	if err != nil {
		return nil, err
	}
	// Some were committed before. They are looked for outside of a transaction, whose snapshot would otherwise be
	// older than the claims.
	fresh, err := s.unclaimed(ctx, claims, isNew)
	if err != nil {
		return nil, err
	}
	s.countDuplicates(isNew)
	if tx, err = s.beginShared(ctx); err != nil || len(fresh) == 0 {
		return tx, err
	}
	if ok, err = s.claimManyMySQL(ctx, tx.Tx, fresh); err == nil && !ok {
		err = errors.New("another copy was committed meanwhile")
	}
	if err != nil {
		_ = tx.rollback()
		return nil, err
	}
	return tx, nil
}

func (s *Store) countDuplicates(isNew []bool) {
	for _, n := range isNew {
		if !n {
			s.duplicates.Add(1)
		}
	}
}

// claimMany sets isNew of what was inserted. The rows come in the order of claims.
func (s *Store) claimMany(ctx context.Context, tx *sql.Tx, claims []inbox.Claim, isNew []bool) error {
	query, args := s.claimText(claims)
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // rows.Err tells
	var got inbox.Claim
	for i := 0; rows.Next(); i++ {
		if err := rows.Scan(&got.Consumer, &got.ID); err != nil {
			return err
		}
		for i < len(claims) && claims[i] != got {
			i++
		}
		if i == len(claims) {
			return fmt.Errorf("the database answered with a claim out of order: %q of %q", got.ID, got.Consumer)
		}
		isNew[i] = true
	}
	return rows.Err()
}

// claimManyMySQL is false if some were there already. MySQL counts a new row as 1 and a changed one as 2, and
// every one that was there is changed.
func (s *Store) claimManyMySQL(ctx context.Context, tx *sql.Tx, claims []inbox.Claim) (bool, error) {
	query, args := s.claimText(claims)
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == int64(len(claims)), err
}

// claimText is the claim of the dialect with as many rows as claims.
func (s *Store) claimText(claims []inbox.Claim) (string, []any) {
	var b strings.Builder
	b.WriteString(s.sql.claimHead)
	args := make([]any, 0, 3*len(claims))
	now := time.Now().UnixMicro()
	for i, c := range claims {
		if i > 0 {
			b.WriteByte(',')
		}
		args = append(args, c.Consumer, c.ID)
		switch s.names.Dialect {
		case schema.Postgres:
			fmt.Fprintf(&b, "($%d,$%d)", 2*i+1, 2*i+2)
		case schema.MySQL:
			b.WriteString("(?,?,UTC_TIMESTAMP(6))")
		default:
			b.WriteString("(?,?,?)")
			args = append(args, now)
		}
	}
	b.WriteString(s.sql.claimTail)
	return b.String(), args
}

// unclaimed returns the claims that are not there, and sets isNew of them.
func (s *Store) unclaimed(ctx context.Context, claims []inbox.Claim, isNew []bool) ([]inbox.Claim, error) {
	args := make([]any, 0, 2*len(claims))
	for _, c := range claims {
		args = append(args, c.Consumer, c.ID)
	}
	query := s.sql.claimed + strings.TrimSuffix(strings.Repeat("(?,?),", len(claims)), ",") + ")"
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // rows.Err tells
	there := map[inbox.Claim]bool{}
	for rows.Next() {
		var c inbox.Claim
		if err := rows.Scan(&c.Consumer, &c.ID); err != nil {
			return nil, err
		}
		there[c] = true
	}
	var fresh []inbox.Claim
	for i, c := range claims {
		if isNew[i] = !there[c]; isNew[i] {
			fresh = append(fresh, c)
		}
	}
	return fresh, rows.Err()
}

func groupFailed(ctx context.Context, operation string, claims []inbox.Claim, err error) error {
	return fmt.Errorf("inbox: %s a group of %d for %q: %w", operation, len(claims), claims[0].Consumer, inbox.Outage(ctx, err))
}

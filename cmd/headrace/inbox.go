package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/stores/schema"
)

func (a *app) inboxCommand() *cobra.Command {
	return group("inbox", "Look into what consumers remember", a.inboxStat(), a.inboxForget())
}

// claims is a consumer's inbox as JSON.
type claims struct {
	Consumer string    `json:"consumer"`
	Claims   int64     `json:"claims"`
	Oldest   time.Time `json:"oldest"`
	Newest   time.Time `json:"newest"`
}

func (a *app) inboxStat() *cobra.Command {
	var consumer string
	cmd := &cobra.Command{
		Use: "stat", Short: "Count what each consumer has handled and remembers",
		Long: "Count what each consumer has handled and remembers. It reads the whole inbox: not for a dashboard.",
		Args: args(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&consumer, "consumer", "", "this one alone")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		db, err := a.needInbox(cmd, "inbox stat")
		if err != nil {
			return err
		}
		defer closing(db, &err)
		list, err := db.inboxStat(cmd.Context(), consumer)
		if err != nil {
			return err
		}
		if a.isJSON() {
			err = a.writeJSON(list)
		} else if len(list) > 0 {
			err = a.table("CONSUMER\tCLAIMS\tOLDEST\tNEWEST", len(list), func(i int) []string {
				c := &list[i]
				return []string{c.Consumer, fmt.Sprint(c.Claims), timeText(c.Oldest), timeText(c.Newest)}
			})
		}
		if err == nil && len(list) == 0 {
			err = errNothing
		}
		return err
	}
	return cmd
}

func (a *app) inboxForget() *cobra.Command {
	var consumer string
	cmd := &cobra.Command{
		Use: "forget --consumer NAME MESSAGE-ID...", Short: "Make a consumer forget messages, so that they take effect again",
		Long: `Make a consumer forget messages, so that they take effect AGAIN if they come again. It is for an effect that was lost outside of the
database. It does not undo anything.`,
		Args: args(cobra.MinimumNArgs(1)),
	}
	cmd.Flags().StringVar(&consumer, "consumer", "", "whose inbox")
	cmd.RunE = func(cmd *cobra.Command, ids []string) (err error) {
		if consumer == "" {
			return usage("inbox forget: --consumer is empty")
		}
		if len(ids) > maxForget {
			return usage("inbox forget: %d ids: want at most %d", len(ids), maxForget)
		}
		db, err := a.needInbox(cmd, "inbox forget")
		if err != nil {
			return err
		}
		defer closing(db, &err)
		there, err := db.claimed(cmd.Context(), consumer, ids)
		if err != nil {
			return err
		}
		if len(there) == 0 {
			return errNothing
		}
		if err := a.confirm("%s will take effect again at %s if they come again. Forget them?", plural(len(there), "message"), consumer); err != nil {
			return err
		}
		n, err := db.forget(cmd.Context(), consumer, there)
		if err != nil {
			return err
		}
		missing := slices.Compact(slices.Sorted(slices.Values(ids)))
		missing = slices.DeleteFunc(missing, func(id string) bool { return slices.Contains(there, id) })
		if a.isJSON() {
			err = a.writeJSON(struct {
				Forgotten int64    `json:"forgotten"`
				Missing   []string `json:"missing,omitempty"`
			}{n, missing})
		} else {
			fmt.Fprintf(a.out, "forgot %s\n", plural(n, "message"))
		}
		if err == nil && len(missing) > 0 {
			err = exit(exitPartly, "%s does not remember %q", consumer, missing)
		}
		return err
	}
	return cmd
}

// maxForget bounds the ids of one command.
const maxForget = 1000

func (a *app) needInbox(cmd *cobra.Command, what string) (*database, error) {
	db, err := a.openDatabase(cmd.Context())
	if err == nil && db == nil {
		err = a.needDatabase(what)
	}
	return db, err
}

// bind writes each ? as the driver wants it.
func (d *database) bind(query string) string {
	if d.names.Dialect != schema.Postgres {
		return query
	}
	for n := 1; strings.Contains(query, "?"); n++ {
		query = strings.Replace(query, "?", fmt.Sprintf("$%d", n), 1)
	}
	return query
}

// micros is a column of time in microseconds since 1970.
func (d *database) micros(column string) string {
	switch d.names.Dialect {
	case schema.Postgres:
		return "CAST(extract(epoch FROM " + column + ") * 1000000 AS bigint)"
	case schema.MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + column + ")"
	default:
		return column
	}
}

func (d *database) inboxStat(ctx context.Context, consumer string) (list []claims, err error) {
	list = []claims{}
	query, args := "SELECT consumer, count(*), "+d.micros("min(claimed_at)")+", "+d.micros("max(claimed_at)")+" FROM "+d.names.Table("inbox"), []any(nil)
	if consumer != "" {
		query, args = query+" WHERE consumer = ?", []any{consumer}
	}
	rows, err := d.db.QueryContext(ctx, d.bind(query+" GROUP BY consumer ORDER BY consumer LIMIT 1000"), args...)
	if err != nil {
		return nil, fmt.Errorf("read the inbox: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var c claims
		var oldest, newest int64
		if err := rows.Scan(&c.Consumer, &c.Claims, &oldest, &newest); err != nil {
			return nil, fmt.Errorf("read the inbox: %w", err)
		}
		c.Oldest, c.Newest = time.UnixMicro(oldest).UTC(), time.UnixMicro(newest).UTC()
		list = append(list, c)
	}
	return list, rows.Err()
}

// claimed returns those of ids that consumer has handled.
func (d *database) claimed(ctx context.Context, consumer string, ids []string) (found []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	cond, args := oneOf(consumer, ids)
	rows, err := d.db.QueryContext(ctx, d.bind("SELECT id FROM "+d.names.Table("inbox")+cond), args...)
	if err != nil {
		return nil, fmt.Errorf("read the inbox: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read the inbox: %w", err)
		}
		found = append(found, id)
	}
	return found, rows.Err()
}

func (d *database) forget(ctx context.Context, consumer string, ids []string) (int64, error) {
	cond, args := oneOf(consumer, ids)
	result, err := d.db.ExecContext(ctx, d.bind("DELETE FROM "+d.names.Table("inbox")+cond), args...)
	if err != nil {
		return 0, fmt.Errorf("forget messages: %w", err)
	}
	n, err := result.RowsAffected()
	return n, err
}

func oneOf(consumer string, ids []string) (string, []any) {
	args := []any{consumer}
	for _, id := range ids {
		args = append(args, id)
	}
	return " WHERE consumer = ? AND id IN (?" + strings.Repeat(", ?", len(ids)-1) + ")", args
}

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/outbox"
)

func (a *app) outboxCommand() *cobra.Command {
	return group("outbox", "Work outbox rows that were given up", a.outboxLs(), a.outboxRetry(), a.outboxDiscard())
}

// deadRow is a row of the outbox that was given up, as JSON.
type deadRow struct {
	ID        int64     `json:"id"`
	Topic     string    `json:"topic"`
	Key       string    `json:"key,omitempty"`
	UUID      string    `json:"uuid"`
	CreatedAt time.Time `json:"created_at"`
	DiedAt    time.Time `json:"died_at"`
	ErrorType string    `json:"error_type"`
	Error     string    `json:"error"`
	Blocks    bool      `json:"blocks"`
}

func (a *app) outboxLs() *cobra.Command {
	var limit int
	cmd := &cobra.Command{Use: "ls", Short: "List rows that the relay gave up, and those that wait", Args: args(cobra.NoArgs)}
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many at most")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if limit < 1 || limit > 10_000 {
			return usage("--limit is %d: want 1 to 10000", limit)
		}
		db, err := a.needInbox(cmd, "outbox ls")
		if err != nil {
			return err
		}
		defer closing(db, &err)
		source := db.Outbox()
		rows, err := source.Dead(cmd.Context(), 0, limit)
		if err != nil {
			return err
		}
		backlog, err := source.Backlog(cmd.Context(), 100_000)
		if err != nil {
			return err
		}
		if a.isJSON() {
			views := make([]deadRow, len(rows))
			for i, r := range rows {
				views[i] = deadRow{r.ID, r.Topic, r.Key, r.UUID, r.CreatedAt.UTC(), r.DiedAt.UTC(), r.ErrorType, r.Error, r.Blocks}
			}
			return a.writeJSON(map[string]any{"waiting": backlog.Rows, "dead": views})
		}
		fmt.Fprintf(a.out, "%s wait to be published\n", plural(int64(backlog.Rows), "row"))
		if len(rows) == 0 {
			return errNothing
		}
		return a.table("ID\tTOPIC\tKEY\tDIED\tBLOCKS\tERROR", len(rows), func(i int) []string {
			r := &rows[i]
			return []string{
				fmt.Sprint(r.ID), r.Topic, printable(r.Key), timeText(r.DiedAt), strconv.FormatBool(r.Blocks),
				r.ErrorType + ": " + oneLine(r.Error),
			}
		})
	}
	return cmd
}

func (a *app) outboxRetry() *cobra.Command {
	return a.outboxChange("retry", "Put rows back into the outbox; the relay publishes them", "put back",
		func(ctx context.Context, g outbox.Graveyard, id int64) (bool, error) { return g.Revive(ctx, id) })
}

func (a *app) outboxDiscard() *cobra.Command {
	return a.outboxChange("discard", "Delete rows for good; what they blocked goes on", "discarded",
		func(ctx context.Context, g outbox.Graveyard, id int64) (bool, error) { return g.Discard(ctx, id) })
}

func (a *app) outboxChange(use, short, done string, change func(context.Context, outbox.Graveyard, int64) (bool, error)) *cobra.Command {
	var all bool
	cmd := &cobra.Command{Use: use + " [ID...]", Short: short}
	cmd.Flags().BoolVar(&all, "all", false, "all of them")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		var ids []int64
		for _, arg := range args {
			id, err := strconv.ParseInt(arg, 10, 64)
			if err != nil {
				return usage("outbox %s: the id %q is no number", use, arg)
			}
			ids = append(ids, id)
		}
		if all == (len(ids) > 0) {
			return usage("outbox %s: name rows by their ids, or --all", use)
		}
		db, err := a.needInbox(cmd, "outbox "+use)
		if err != nil {
			return err
		}
		defer closing(db, &err)
		graveyard := db.Outbox()
		if all {
			if ids, err = allDead(cmd.Context(), graveyard); err != nil {
				return err
			}
		}
		if len(ids) == 0 {
			return errNothing
		}
		if err := a.confirm("%s %s?", use, plural(len(ids), "row")); err != nil {
			return err
		}
		n := 0
		for _, id := range ids {
			ok, err := change(cmd.Context(), graveyard, id)
			if err != nil {
				return fmt.Errorf("row %d, after %s: %w", id, plural(n, "row"), err)
			}
			if ok {
				n++
			}
		}
		if a.isJSON() {
			err = a.writeJSON(map[string]int{"selected": len(ids), "changed": n})
		} else {
			fmt.Fprintf(a.out, "%s %s\n", done, plural(n, "row"))
		}
		switch {
		case err != nil:
			return err
		case n == 0:
			return errNothing
		case n < len(ids):
			return exit(exitPartly, "%s were not there", plural(len(ids)-n, "row"))
		}
		return nil
	}
	return cmd
}

func allDead(ctx context.Context, g outbox.Graveyard) ([]int64, error) {
	var ids []int64
	after := int64(0)
	for {
		rows, err := g.Dead(ctx, after, 1000)
		if err != nil || len(rows) == 0 {
			return ids, err
		}
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
		after = rows[len(rows)-1].ID
	}
}

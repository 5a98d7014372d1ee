package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/poison"
)

func (a *app) dltCommand() *cobra.Command {
	return group("dlt", "Work dead letters",
		a.dltLs(), a.dltGroups(), a.dltShow(), a.dltRedrive(), a.dltEdit(), a.dltDiscard(), a.dltResolve(), a.dltPurge(), a.dltIndex())
}

func (a *app) dltLs() *cobra.Command {
	var f filterFlags
	var limit int
	var oldest bool
	cmd := &cobra.Command{Use: "ls", Short: "List dead letters, the last failure first", Args: args(cobra.NoArgs)}
	f.add(cmd)
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many at most")
	cmd.Flags().BoolVar(&oldest, "oldest", false, "the first failure first")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		filter, err := f.parse()
		if err != nil {
			return err
		}
		if limit < 1 || limit > deadletter.MaxTopicLetters {
			return usage("--limit is %d: want 1 to %d", limit, deadletter.MaxTopicLetters)
		}
		d, err := a.openDesk(cmd.Context(), &f, false)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		letters, err := d.list(cmd.Context(), filter, !oldest, limit)
		if err != nil {
			return err
		}
		a.warnSkipped(d)
		if err := a.showLetters(letters); err != nil {
			return err
		}
		if len(letters) == 0 {
			return errNothing
		}
		return nil
	}
	return cmd
}

func (a *app) dltGroups() *cobra.Command {
	var f filterFlags
	var limit int
	cmd := &cobra.Command{Use: "groups", Short: "Count dead letters by kind of failure", Args: args(cobra.NoArgs)}
	f.add(cmd)
	cmd.Flags().IntVarP(&limit, "limit", "n", 50, "how many at most")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		filter, err := f.parse()
		if err != nil {
			return err
		}
		if limit < 1 || limit > deadletter.MaxLimit {
			return usage("--limit is %d: want 1 to %d", limit, deadletter.MaxLimit)
		}
		d, err := a.openDesk(cmd.Context(), &f, false)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		groups, err := d.groups(cmd.Context(), filter, limit)
		if err != nil {
			return err
		}
		a.warnSkipped(d)
		if err := a.showGroups(groups); err != nil {
			return err
		}
		if len(groups) == 0 {
			return errNothing
		}
		return nil
	}
	return cmd
}

func (a *app) dltShow() *cobra.Command {
	var f filterFlags
	var payload bool
	cmd := &cobra.Command{Use: "show ID", Short: "Show one dead letter whole, and what was done to it", Args: args(cobra.ExactArgs(1))}
	cmd.Flags().StringSliceVar(&f.topics, "dlt", nil, "dead-letter topics, without a database (default: --topic and .DLT)")
	cmd.Flags().StringVar(&f.filter.Topic, "topic", "", "where it was read, without a database")
	cmd.Flags().BoolVar(&payload, "payload", false, "write the payload alone, byte for byte")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		d, err := a.openDesk(cmd.Context(), &f, false)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		l, trail, err := d.one(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if payload {
			_, err := a.out.Write(l.Payload)
			return err
		}
		return a.showLetter(&l, trail)
	}
	return cmd
}

func (a *app) dltEdit() *cobra.Command {
	var file, reason string
	var set []string
	var dry, force, skip bool
	cmd := &cobra.Command{
		Use: "edit ID", Short: "Replace a dead letter by an edited copy, which can be redriven",
		Long: `Replace a dead letter by an edited copy, which can be redriven.

The copy has a new id, is caused by the original, and is handled as a message of its own. The original is resolved. Both
trails keep the difference.

It is refused while the original is parked, since both would run: --skip-parked takes it out of its key first. The copy then comes
behind the others of the key.`,
		Args: args(cobra.ExactArgs(1)),
	}
	cmd.Flags().StringVar(&file, "payload", "", "file with the new payload; - is the standard input")
	cmd.Flags().StringArrayVar(&set, "set", nil, "metadata KEY=VALUE; an empty value removes it")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the trail")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show the difference and do nothing")
	cmd.Flags().BoolVar(&force, "force", false, "also if it was redriven: what then took effect does so again as the copy")
	cmd.Flags().BoolVar(&skip, "skip-parked", false, skipParkedHelp)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		by, err := a.by(reason)
		if err != nil {
			return err
		}
		edit := deadletter.Edit{Metadata: map[string]string{}, Force: force}
		for _, entry := range set {
			key, value, ok := strings.Cut(entry, "=")
			if !ok || key == "" {
				return usage("--set is %q: want KEY=VALUE", entry)
			}
			edit.Metadata[key] = value
		}
		if edit.Payload, err = a.read(file); err != nil {
			return err
		}
		d, err := a.openStore(cmd.Context(), "dlt edit", false)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		diff, err := d.store.Preview(cmd.Context(), args[0], edit)
		if err != nil {
			return err
		}
		if dry {
			_, err = io.WriteString(a.out, diff)
			return err
		}
		if err := a.beforeEdit(cmd.Context(), d, args[0], force, skip, by); err != nil {
			return err
		}
		l, err := d.store.Edit(cmd.Context(), args[0], edit, by)
		if err != nil {
			return err
		}
		if a.isJSON() {
			return a.writeJSON(viewOf(&l))
		}
		fmt.Fprintf(a.out, "%s is replaced by %s; redrive it with: headrace dlt redrive --id %s\n", args[0], l.ID, l.ID)
		return nil
	}
	return cmd
}

// beforeEdit asks, and sees to it that the original does not run beside its copy.
func (a *app) beforeEdit(ctx context.Context, d *desk, id string, force, skip bool, by deadletter.By) error {
	l, err := d.store.One(ctx, id)
	if err != nil {
		return err
	}
	switch l.State {
	case deadletter.Redriving, deadletter.Redriven:
		if !force {
			return exit(exitPartly, "dead letter %s is %s: its message may have taken effect, and the copy would do so as well; --force edits it all the same", id, l.State)
		}
	case deadletter.Resolved, deadletter.Discarded:
		return fmt.Errorf("dead letter %s is %s: %w", id, l.State, deadletter.ErrBusy)
	case deadletter.New:
	}
	pin := pinOf(&l)
	pin.sealed = false // it has been opened
	parked, _, err := d.parkedOf(ctx, []pinnedLetter{pin})
	if err != nil {
		return err
	}
	if len(parked) > 0 && !skip {
		return refuseParked("edit", parked, by.Reason)
	}
	if err := a.confirm("Replace dead letter %s (%s) by an edited copy?", id, l.State); err != nil {
		return err
	}
	return d.skip(ctx, parked, by)
}

// read returns what a file holds; nil for no name.
func (a *app) read(name string) ([]byte, error) {
	switch name {
	case "":
		return nil, nil
	case "-":
		b, err := io.ReadAll(a.in)
		return append([]byte{}, b...), err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, usage("--payload: %w", err)
	}
	return append([]byte{}, b...), nil
}

func (a *app) dltDiscard() *cobra.Command {
	return a.dltMark("discard", "Give dead letters up", "discarded", (*deadletter.Store).Discard)
}

func (a *app) dltResolve() *cobra.Command {
	return a.dltMark("resolve", "Mark dead letters as done with by other means", "resolved", (*deadletter.Store).Resolve)
}

func (a *app) dltMark(use, short, done string, mark func(*deadletter.Store, context.Context, deadletter.Filter, deadletter.By) (int, error)) *cobra.Command {
	cmd := a.dltChange(use, short, done, []deadletter.State{deadletter.New}, mark)
	cmd.Long = short + `.

It is refused while one of the messages is parked, since that would run when its key is released: --skip-parked takes them out of their
keys first.`
	return cmd
}

func (a *app) dltPurge() *cobra.Command {
	cmd := a.dltChange("purge", "Delete dead letters for good, with their trails", "purged", nil, (*deadletter.Store).Purge)
	cmd.Long = `Delete dead letters for good, with their trails. One entry stays that tells who did it and why.

For a person's data: headrace dlt purge --subject customer-7 --reason "erasure request 12". That leaves what is parked, in other tables:
see the runbook. It is refused while a new or discarded letter's message is parked, which nothing would tell of any more.`
	return cmd
}

// dltChange is a command that changes all letters that a filter selects.
func (a *app) dltChange(use, short, done string, states []deadletter.State, change func(*deadletter.Store, context.Context, deadletter.Filter, deadletter.By) (int, error)) *cobra.Command {
	var f filterFlags
	var reason string
	var dry, all, skip, force bool
	cmd := &cobra.Command{Use: use, Short: short, Args: args(cobra.NoArgs)}
	f.add(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the trail")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "count them and do nothing")
	cmd.Flags().BoolVar(&all, "all", false, "without a filter: all of them")
	cmd.Flags().BoolVar(&skip, "skip-parked", false, skipParkedHelp)
	cmd.Flags().BoolVar(&force, "force", false, "also encrypted ones of which nobody can tell without their keys whether their messages are parked")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		given, err := f.parse()
		if err != nil {
			return err
		}
		if given.IsZero() && !all {
			return usage("dlt %s: name which dead letters with a filter, or --all", use)
		}
		filter, err := f.parse(states...)
		if err != nil {
			return err
		}
		if len(filter.States) == 0 && all {
			filter.States = deadletter.States
		}
		by := deadletter.By{}
		if !dry {
			if by, err = a.by(reason); err != nil {
				return err
			}
		}
		d, err := a.openStore(cmd.Context(), "dlt "+use, false)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		if dry {
			counts, err := d.store.Count(cmd.Context(), filter)
			if err != nil {
				return err
			}
			return a.showCounts(use, counts)
		}
		pins, err := d.pin(cmd.Context(), filter)
		if err != nil {
			return err
		}
		counts := countsOf(pins)
		if len(pins) == 0 {
			return a.showCounts(use, counts)
		}
		parked, untold, err := d.parkedOf(cmd.Context(), unworked(use, pins))
		if err != nil {
			return err
		}
		if len(parked) > 0 && !skip {
			return refuseParked(use, parked, by.Reason)
		}
		if untold > 0 && !force {
			return refuseUntold(use, untold)
		}
		if err := a.confirm("%s: %s (%s)?", use, plural(len(pins), "dead letter"), statesText(counts)); err != nil {
			return err
		}
		if err := d.skip(cmd.Context(), parked, by); err != nil {
			return err
		}
		n := 0
		for ids := range slices.Chunk(idsOf(pins), deadletter.MaxIDs) {
			filter.IDs = ids
			changed, err := change(d.store, cmd.Context(), filter, by)
			n += changed
			if err != nil {
				return err
			}
		}
		if a.isJSON() {
			err = a.writeJSON(map[string]int64{done: int64(n), "selected": total(counts)})
		} else {
			fmt.Fprintf(a.out, "%s %s\n", done, plural(n, "dead letter"))
		}
		if err == nil && int64(n) < total(counts) {
			err = exit(exitPartly, "%s are being redriven or were changed meanwhile", plural(total(counts)-int64(n), "dead letter"))
		}
		return err
	}
	return cmd
}

// unworked are the letters whose messages must not be parked when use changes them. A purge of the others is no decision about
// a message: that was redriven, or has a later letter.
func unworked(use string, pins []pinnedLetter) []pinnedLetter {
	if use != "purge" {
		return pins
	}
	return slices.DeleteFunc(slices.Clone(pins), func(p pinnedLetter) bool {
		return p.state != deadletter.New && p.state != deadletter.Discarded
	})
}

func (a *app) dltIndex() *cobra.Command {
	var f filterFlags
	cmd := &cobra.Command{
		Use: "index", Short: "Put the dead letters of their topics into the database",
		Long: `Put the dead letters of their topics into the database, where the broker can read a topic again. Those that are there stay as they
are, so it can be run at any time, beside a service that indexes all the time (deadletter.Index).`,
		Args: args(cobra.NoArgs),
	}
	cmd.Flags().StringSliceVar(&f.topics, "dlt", nil, "dead-letter topics (default: --topic and .DLT)")
	cmd.Flags().StringVar(&f.filter.Topic, "topic", "", "the topic that was consumed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		names, err := f.deadTopics()
		if err != nil {
			return err
		}
		d, err := a.openStore(cmd.Context(), "dlt index", true)
		if err != nil {
			return err
		}
		defer closing(d, &err)
		if d.broker.reader == nil {
			return usage("dlt index: this broker's topics cannot be read again; let a service index (deadletter.Index)")
		}
		if d.topics, err = deadletter.NewTopics(d.broker.reader, names...); err != nil {
			return err
		}
		read, added := 0, 0
		var page []poison.Record
		flush := func() error {
			n, err := d.store.Add(cmd.Context(), page...)
			added += n
			page = page[:0]
			return err
		}
		err = d.topics.Each(cmd.Context(), func(r poison.Record) error {
			read++
			if page = append(page, r); len(page) < 100 {
				return nil
			}
			return flush()
		})
		if err == nil {
			err = flush()
		}
		a.warnSkipped(d)
		if err != nil {
			return err
		}
		if a.isJSON() {
			return a.writeJSON(map[string]int{"read": read, "added": added, "skipped": d.topics.Skipped})
		}
		fmt.Fprintf(a.out, "read %s, %d of them new\n", plural(read, "dead letter"), added)
		return nil
	}
	return cmd
}

// closing closes c and adds its error.
func closing(c io.Closer, err *error) { *err = errors.Join(*err, c.Close()) }

// isText tells whether a payload can be shown as it is.
func isText(b []byte) bool {
	return bytes.IndexFunc(b, func(r rune) bool { return r == '\uFFFD' || r < ' ' && r != '\n' && r != '\t' && r != '\r' }) < 0
}

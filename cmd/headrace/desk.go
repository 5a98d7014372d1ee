package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/headrace-go/headrace/deadletter"
)

// desk is where dead letters are worked: the database, else their topics.
type desk struct {
	db     *database
	store  *deadletter.Store  // nil without a database
	cipher deadletter.Cipher  // nil if the letters are in clear, or their keys were not given
	topics *deadletter.Topics // nil with one
	broker *broker            // nil if it was not asked for
	names  []string           // the dead-letter topics, as far as they were named
}

// openDesk opens what there is. withBroker asks for the broker also where there is a database.
func (a *app) openDesk(ctx context.Context, f *filterFlags, withBroker bool) (d *desk, err error) {
	d = &desk{names: f.topics}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.db, err = a.openDatabase(ctx); err != nil {
		return d, err
	}
	if d.db != nil {
		protection, err := a.protection()
		if err != nil {
			return d, err
		}
		d.cipher = protection.Cipher
		if d.store, err = deadletter.NewStore(d.db.DeadLetters(), protection); err != nil || !withBroker {
			return d, err
		}
	}
	if d.store == nil {
		if a.brokerURL == "" {
			return d, usage("where are the dead letters? Give --database, or --broker to read their topics")
		}
		if d.names, err = f.deadTopics(); err != nil {
			return d, err
		}
	}
	if d.broker, err = a.openBroker(ctx); err != nil {
		return d, err
	}
	if d.store == nil {
		if d.broker.reader == nil {
			return d, a.needDatabase("a broker whose topics cannot be read again")
		}
		d.topics, err = deadletter.NewTopics(d.broker.reader, d.names...)
	}
	return d, err
}

// openStore opens a desk that has a database.
func (a *app) openStore(ctx context.Context, what string, withBroker bool) (*desk, error) {
	if a.databaseURL == "" {
		return nil, a.needDatabase(what)
	}
	return a.openDesk(ctx, &filterFlags{}, withBroker)
}

// Close closes what was opened.
func (d *desk) Close() error {
	if d == nil {
		return nil
	}
	var errs []error
	if d.broker != nil && d.broker.Broker != nil {
		errs = append(errs, d.broker.Close())
	}
	return errors.Join(append(errs, d.db.Close())...)
}

func (d *desk) list(ctx context.Context, f deadletter.Filter, newest bool, limit int) ([]deadletter.Letter, error) {
	if d.store == nil {
		return d.topics.List(ctx, f, newest, limit)
	}
	var all []deadletter.Letter
	var at deadletter.Cursor
	for len(all) < limit {
		page, next, err := d.store.List(ctx, f, newest, at, min(limit-len(all), deadletter.MaxLimit))
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		all, at = append(all, page...), next
	}
	return all, nil
}

// pinnedLetter is a letter that an operator was asked about.
type pinnedLetter struct {
	id, consumer string
	messageID    string // blinded if sealed
	sealed       bool
	state        deadletter.State
}

func pinOf(l *deadletter.Letter) pinnedLetter {
	return pinnedLetter{l.ID, l.Consumer, l.MessageID, l.Sealed, l.State}
}

// pin returns what f selects now, so that what is confirmed is what is changed: others come while somebody reads the question.
func (d *desk) pin(ctx context.Context, f deadletter.Filter) ([]pinnedLetter, error) {
	var pins []pinnedLetter
	var at deadletter.Cursor
	for {
		letters, next, err := d.page(ctx, f, at)
		if err != nil {
			return nil, err
		}
		for i := range letters {
			pins = append(pins, pinOf(&letters[i]))
		}
		if d.store == nil || len(letters) == 0 {
			return pins, nil
		}
		at = next
	}
}

// page is the next page of a store, and all of topics.
func (d *desk) page(ctx context.Context, f deadletter.Filter, at deadletter.Cursor) ([]deadletter.Letter, deadletter.Cursor, error) {
	if d.store == nil {
		letters, err := d.topics.List(ctx, f, false, deadletter.MaxTopicLetters)
		return letters, at, err
	}
	return d.store.List(ctx, f, false, at, deadletter.MaxLimit)
}

func idsOf(pins []pinnedLetter) []string {
	ids := make([]string, len(pins))
	for i := range pins {
		ids[i] = pins[i].id
	}
	return ids
}

func countsOf(pins []pinnedLetter) map[deadletter.State]int64 {
	counts := map[deadletter.State]int64{}
	for _, p := range pins {
		counts[p.state]++
	}
	return counts
}

func (d *desk) groups(ctx context.Context, f deadletter.Filter, limit int) ([]deadletter.Group, error) {
	if d.store == nil {
		return d.topics.Groups(ctx, f, limit)
	}
	return d.store.Groups(ctx, f, limit)
}

func (d *desk) one(ctx context.Context, id string) (deadletter.Letter, []deadletter.Entry, error) {
	if d.store == nil {
		l, err := d.topics.One(ctx, id)
		return l, nil, err
	}
	l, err := d.store.One(ctx, id)
	if err != nil {
		return l, nil, err
	}
	trail, err := d.store.Trail(ctx, id)
	return l, trail, err
}

func (d *desk) source() deadletter.Source {
	if d.store == nil {
		return d.topics
	}
	return d.store
}

// total adds up counts.
func total(counts map[deadletter.State]int64) int64 {
	var n int64
	for _, c := range counts {
		n += c
	}
	return n
}

// warnSkipped tells of messages on dead-letter topics that are none.
func (a *app) warnSkipped(d *desk) {
	if d.topics != nil && d.topics.Skipped > 0 {
		fmt.Fprintf(a.err, "headrace: left out %s that cannot be read as dead letters, the first one: %v\n", plural(d.topics.Skipped, "message"), d.topics.SkippedWhy)
	}
}

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/parking"
)

// A letter and its parked message are two things. Whoever gives the letter up, or replaces it, and leaves the message where it is, has the
// message run all the same when its key is released.

// skipParkedHelp is that of --skip-parked.
const skipParkedHelp = "take messages that are parked out of their keys for good (park skip), first"

// parkedLetter is a letter whose message is parked.
type parkedLetter struct {
	id string
	parking.Message
}

// command takes the message out of its key.
func (p *parkedLetter) command(why string) string {
	return fmt.Sprintf("headrace park skip --consumer %s --key %s --seq %d --reason %s", shellQuoted(p.Consumer), shellQuoted(p.Key), p.Seq, shellQuoted(why))
}

func shellQuoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.:/@", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// parkedMessages are those of a consumer, by what a letter tells of them.
type parkedMessages struct {
	places   []parking.Message // without their records
	byID     map[string]int    // and by the blinded id
	byLetter map[string]int
}

// parkedOf returns those of the letters whose messages are parked, and how many there are of which nobody can tell: the letter's keys are
// not here. It reads no letter and no payload: who has lost the keys may still erase.
func (d *desk) parkedOf(ctx context.Context, pins []pinnedLetter) (parked []parkedLetter, untold int, err error) {
	all := map[string]*parkedMessages{} // by consumer: most never park
	for _, p := range pins {
		of := all[p.consumer]
		if of == nil {
			if of, err = d.db.parkedMessages(ctx, p.consumer, d.cipher); err != nil {
				return nil, 0, err
			}
			all[p.consumer] = of
		}
		at, is := of.byID[p.messageID]
		if !is {
			at, is = of.byLetter[p.id]
		}
		switch {
		case is:
			parked = append(parked, parkedLetter{p.id, of.places[at]})
		case p.sealed && d.cipher == nil && len(of.places) > 0:
			untold++
		}
	}
	return parked, untold, nil
}

// parkedMessages reads what consumer has parked.
func (d *database) parkedMessages(ctx context.Context, consumer string, cipher deadletter.Cipher) (*parkedMessages, error) {
	of := &parkedMessages{byID: map[string]int{}, byLetter: map[string]int{}}
	rows, err := d.db.QueryContext(ctx, d.bind("SELECT msg_key, seq, id, dead_letter FROM "+d.names.Table("parked_msg")+" WHERE consumer = ?"), consumer)
	if err != nil {
		return nil, fmt.Errorf("read what is parked: %w", err)
	}
	defer rows.Close() //nolint:errcheck // Err tells
	for rows.Next() {
		m, letter := parking.Message{Consumer: consumer}, ""
		if err := rows.Scan(&m.Key, &m.Seq, &m.ID, &letter); err != nil {
			return nil, fmt.Errorf("read what is parked: %w", err)
		}
		at := len(of.places)
		of.places, of.byID[m.ID] = append(of.places, m), at
		if letter != "" {
			of.byLetter[letter] = at
		}
		if cipher != nil {
			of.byID[cipher.Blind(m.ID)] = at
		}
	}
	return of, rows.Err()
}

// refuseUntold is the error of a command that might leave messages parked.
func refuseUntold(use string, n int) error {
	return exit(exitPartly, "dlt %s: nothing was done: whether the messages of %s are parked can only be told with HEADRACE_DEADLETTER_BLIND (and any key): what is parked "+
		"would still run. Look with park ls; --force goes on", use, plural(n, "encrypted dead letter"))
}

// refuseParked is the error of a command that would leave messages parked.
func refuseParked(use string, parked []parkedLetter, why string) error {
	const most = 10
	var b strings.Builder
	for i := range parked[:min(len(parked), most)] {
		fmt.Fprintf(&b, "\n  %s: seq %d of key %s: %s", parked[i].id, parked[i].Seq, parked[i].Key, parked[i].command(why))
	}
	if more := len(parked) - most; more > 0 {
		fmt.Fprintf(&b, "\n  and %d more", more)
	}
	return exit(exitPartly, "dlt %s: nothing was done: %s parked, and would still run when their keys are released. Take them out first, or give --skip-parked:%s",
		use, isAre(len(parked), "message"), b.String())
}

// isAre is "1 message is", "2 messages are".
func isAre(n int, what string) string {
	if n == 1 {
		return plural(n, what) + " is"
	}
	return plural(n, what) + " are"
}

// skip takes the messages out of their keys. One that is gone has taken effect, most likely: then nothing is done to the letters.
func (d *desk) skip(ctx context.Context, parked []parkedLetter, by deadletter.By) error {
	type place struct {
		consumer, key string
		seq           int64
	}
	done := map[place]bool{}
	for i := range parked {
		p := &parked[i]
		at := place{p.Consumer, p.Key, p.Seq}
		if done[at] { // two deaths of one message
			continue
		}
		skipped, err := d.db.Parking().Skip(ctx, p.Consumer, p.Key, p.Seq, parking.Reason(by))
		if err != nil {
			return err
		}
		if !skipped {
			return exit(exitPartly, "the message of dead letter %s was handled or skipped meanwhile: no letter was changed, %d of %s skipped", p.id, len(done), isAre(len(parked), "message"))
		}
		done[at] = true
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"slices"
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
func (p *parkedLetter) command() string {
	return fmt.Sprintf("headrace park skip --consumer %s --key %s --seq %d", p.Consumer, shellQuoted(p.Key), p.Seq)
}

func shellQuoted(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-_.:/@", r))
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// parkedOf returns those of the letters whose messages are parked.
func (d *desk) parkedOf(ctx context.Context, pins []pinnedLetter) ([]parkedLetter, error) {
	ledger := d.db.Parking()
	parks := map[string]bool{} // by consumer: most never park
	var suspects []string
	for _, p := range pins {
		does, known := parks[p.consumer]
		if !known {
			count, err := ledger.Count(ctx, p.consumer)
			if err != nil {
				return nil, err
			}
			does = count.Messages > 0
			parks[p.consumer] = does
		}
		if does {
			suspects = append(suspects, p.id)
		}
	}
	var parked []parkedLetter
	for ids := range slices.Chunk(suspects, 100) {
		letters, err := d.store.Get(ctx, ids...) // a listing may have the message's id blinded
		if err != nil {
			return nil, err
		}
		for i := range letters {
			m, is, err := findParked(ctx, ledger, letters[i].Consumer, letters[i].MessageID)
			if err != nil {
				return nil, err
			}
			if is {
				m.Record = parking.Message{}.Record // it can be large
				parked = append(parked, parkedLetter{letters[i].ID, m})
			}
		}
	}
	return parked, nil
}

// refuseParked is the error of a command that would leave messages parked.
func refuseParked(use string, parked []parkedLetter) error {
	const most = 10
	var b strings.Builder
	for i := range parked[:min(len(parked), most)] {
		fmt.Fprintf(&b, "\n  %s: seq %d of key %s: %s", parked[i].id, parked[i].Seq, parked[i].Key, parked[i].command())
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

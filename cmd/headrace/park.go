package main

import (
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/parking"
)

func (a *app) parkCommand() *cobra.Command {
	return group("park", "Work parked keys", a.parkLs(), a.parkRelease(), a.parkSkip())
}

var hashedKey = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// keyName is the name of a key, also of one that is given by its name already, as park ls shows it.
func keyName(key string) string {
	if hashedKey.MatchString(key) {
		return key
	}
	return parking.Name(key)
}

// parkedKey is a parked key as JSON.
type parkedKey struct {
	Consumer  string    `json:"consumer"`
	Key       string    `json:"key"`
	State     string    `json:"state"`
	Messages  int       `json:"messages"`
	ParkedAt  time.Time `json:"parked_at"`
	Until     time.Time `json:"delayed_until,omitzero"`
	Failures  int       `json:"failures"`
	ErrorType string    `json:"error_type"`
	Error     string    `json:"error"`
}

// parkedMessage is a message of a parked key as JSON.
type parkedMessage struct {
	Seq        int64     `json:"seq"`
	ID         string    `json:"id"`
	ParkedAt   time.Time `json:"parked_at"`
	DeadLetter string    `json:"dead_letter,omitempty"`
	Error      string    `json:"error,omitempty"`
}

func (a *app) parkLs() *cobra.Command {
	var consumer, key string
	var limit int
	cmd := &cobra.Command{Use: "ls --consumer NAME [--key KEY]", Short: "List a consumer's parked keys, or the messages of one", Args: args(cobra.NoArgs)}
	cmd.Flags().StringVar(&consumer, "consumer", "", "whose keys")
	cmd.Flags().StringVar(&key, "key", "", "the messages of this key")
	cmd.Flags().IntVarP(&limit, "limit", "n", 100, "how many at most")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if consumer == "" {
			return usage("park ls: --consumer is empty")
		}
		if limit < 1 || limit > 10_000 {
			return usage("--limit is %d: want 1 to 10000", limit)
		}
		db, err := a.needInbox(cmd, "park ls")
		if err != nil {
			return err
		}
		defer closing(db, &err)
		if key != "" {
			messages, err := db.Parking().Messages(cmd.Context(), consumer, keyName(key), 0, limit)
			if err != nil {
				return err
			}
			return a.showMessages(messages)
		}
		keys, err := db.Parking().Keys(cmd.Context(), consumer, "", limit)
		if err != nil {
			return err
		}
		return a.showKeys(keys)
	}
	return cmd
}

func (a *app) showKeys(keys []parking.Key) error {
	if a.isJSON() {
		views := make([]parkedKey, len(keys))
		for i, k := range keys {
			views[i] = parkedKey{k.Consumer, k.Name, string(k.State), k.Messages, k.ParkedAt.UTC(), k.DelayedUntil, k.Failures, k.LastErrorType, k.LastError}
		}
		if err := a.writeJSON(views); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return errNothing
	}
	if a.isJSON() {
		return nil
	}
	return a.table("KEY\tSTATE\tMESSAGES\tPARKED\tFAILURES\tERROR", len(keys), func(i int) []string {
		k := &keys[i]
		return []string{
			k.Name, stateText(k), fmt.Sprint(k.Messages), timeText(k.ParkedAt), fmt.Sprint(k.Failures),
			k.LastErrorType + ": " + oneLine(k.LastError),
		}
	})
}

// stateText is a key's state; a delayed one is released, but not yet.
func stateText(k *parking.Key) string {
	if k.DelayedUntil.IsZero() {
		return string(k.State)
	}
	return "delayed until " + timeText(k.DelayedUntil)
}

func (a *app) showMessages(messages []parking.Message) error {
	if a.isJSON() {
		views := make([]parkedMessage, len(messages))
		for i, m := range messages {
			views[i] = parkedMessage{m.Seq, m.ID, m.ParkedAt.UTC(), m.Record.ID, m.Record.Error}
		}
		if err := a.writeJSON(views); err != nil {
			return err
		}
	}
	if len(messages) == 0 {
		return errNothing
	}
	if a.isJSON() {
		return nil
	}
	return a.table("SEQ\tMESSAGE ID\tPARKED\tDEAD LETTER\tERROR", len(messages), func(i int) []string {
		m := &messages[i]
		return []string{fmt.Sprint(m.Seq), m.ID, timeText(m.ParkedAt), first(m.Record.ID, "-"), first(oneLine(m.Record.Error), "-")}
	})
}

func (a *app) parkRelease() *cobra.Command {
	var consumer, key, reason string
	var all, back bool
	cmd := &cobra.Command{
		Use: "release --consumer NAME --key KEY", Short: "Let the messages of a parked key be handled, in order, before live ones",
		Args: args(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&consumer, "consumer", "", "whose key")
	cmd.Flags().StringVar(&key, "key", "", "which key")
	cmd.Flags().BoolVar(&all, "all", false, "all keys of the consumer")
	cmd.Flags().BoolVar(&back, "withhold", false, "take a release back: the rest stays parked")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		switch {
		case consumer == "":
			return usage("park release: --consumer is empty")
		case all == (key != "") || all && back:
			return usage("park release: name one --key, or --all")
		}
		by, err := a.by(reason)
		if err != nil {
			return err
		}
		db, err := a.needInbox(cmd, "park release")
		if err != nil {
			return err
		}
		defer closing(db, &err)
		ledger := db.Parking()
		if err := a.confirm("release %s of %s?", first(key, "all keys"), consumer); err != nil {
			return err
		}
		n := 0
		switch {
		case all:
			n, err = ledger.ReleaseAll(cmd.Context(), consumer, parking.Reason(by))
		default:
			change := ledger.Release
			if back {
				change = ledger.Withhold
			}
			var ok bool
			if ok, err = change(cmd.Context(), consumer, keyName(key), parking.Reason(by)); ok {
				n = 1
			}
		}
		if err != nil {
			return err
		}
		return a.changed(map[bool]string{false: "released", true: "withheld"}[back], n, "key")
	}
	return cmd
}

func (a *app) parkSkip() *cobra.Command {
	var consumer, key, reason string
	var seq int64
	cmd := &cobra.Command{
		Use: "skip --consumer NAME --key KEY --seq N", Short: "Take one message out of a parked key for good",
		Long: "Take one message out of a parked key for good. Neither a redelivery nor a redrive will run it; the audit keeps it.",
		Args: args(cobra.NoArgs),
	}
	cmd.Flags().StringVar(&consumer, "consumer", "", "whose key")
	cmd.Flags().StringVar(&key, "key", "", "which key")
	cmd.Flags().Int64Var(&seq, "seq", 0, "which message, see park ls --key")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if consumer == "" || key == "" || seq < 1 {
			return usage("park skip: name --consumer, --key and --seq")
		}
		by, err := a.by(reason)
		if err != nil {
			return err
		}
		db, err := a.needInbox(cmd, "park skip")
		if err != nil {
			return err
		}
		defer closing(db, &err)
		if err := a.confirm("skip message %d of key %s of %s for good?", seq, key, consumer); err != nil {
			return err
		}
		ok, err := db.Parking().Skip(cmd.Context(), consumer, keyName(key), seq, parking.Reason(by))
		if err != nil {
			return err
		}
		n := 0
		if ok {
			n = 1
		}
		return a.changed("skipped", n, "message")
	}
	return cmd
}

// changed tells how many were changed; none is errNothing.
func (a *app) changed(done string, n int, what string) error {
	if n == 0 {
		return errNothing
	}
	if a.isJSON() {
		return a.writeJSON(map[string]int{done: n})
	}
	fmt.Fprintf(a.out, "%s %s\n", done, plural(n, what))
	return nil
}

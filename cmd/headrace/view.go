package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/headrace-go/headrace/deadletter"
)

// view is a dead letter as JSON: a contract with scripts. Fields are added, never changed.
type view struct {
	ID            string           `json:"id"`
	State         deadletter.State `json:"state"`
	Consumer      string           `json:"consumer"`
	Topic         string           `json:"topic"`
	Partition     int32            `json:"partition"`
	Offset        int64            `json:"offset"`
	Key           string           `json:"key,omitempty"`
	Type          string           `json:"type,omitempty"`
	Subject       string           `json:"subject,omitempty"`
	MessageID     string           `json:"message_id,omitempty"`
	CorrelationID string           `json:"correlation_id,omitempty"`
	FailedAt      time.Time        `json:"failed_at,omitzero"`
	ErrorType     string           `json:"error_type"`
	Error         string           `json:"error"`
	Fingerprint   string           `json:"fingerprint"`
	Deaths        int              `json:"deaths"`
	Hops          int              `json:"hops,omitempty"`
	FailedIn      string           `json:"failed_in,omitempty"`
	EditedFrom    string           `json:"edited_from,omitempty"`
	ClaimedBy     string           `json:"claimed_by,omitempty"`
	ClaimedUntil  time.Time        `json:"claimed_until,omitzero"`
	Redacted      bool             `json:"redacted,omitempty"`
}

// detail is a whole dead letter as JSON.
type detail struct {
	view
	Reference    bool              `json:"reference,omitempty"`
	UUID         string            `json:"uuid,omitempty"`
	Incarnation  string            `json:"incarnation,omitempty"`
	StoredAt     time.Time         `json:"stored_at,omitzero"`
	Attempts     int               `json:"attempts"`
	FirstFailure time.Time         `json:"first_failure,omitzero"`
	Verdict      string            `json:"verdict"`
	TraceParent  string            `json:"traceparent,omitempty"`
	Stack        string            `json:"stack,omitempty"`
	Metadata     map[string]string `json:"metadata"`
	Payload      *string           `json:"payload,omitempty"`        // if it is text
	PayloadBytes *string           `json:"payload_base64,omitempty"` // if it is not
	Trail        []trailEntry      `json:"trail"`
}

type trailEntry struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action string    `json:"action"`
	Reason string    `json:"reason"`
	Batch  string    `json:"batch,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

func viewOf(l *deadletter.Letter) view {
	return view{
		ID: l.ID, State: l.State, Consumer: l.Consumer, Topic: l.Topic, Partition: l.Partition, Offset: l.Offset,
		Key: printable(string(l.Key)), Type: l.Type, Subject: l.Subject, MessageID: l.MessageID, CorrelationID: l.CorrelationID,
		FailedAt: l.FailedAt().UTC(), ErrorType: l.ErrorType, Error: l.Error, Fingerprint: l.Fingerprint,
		Deaths: l.Deaths, Hops: l.Hops, FailedIn: l.Batch, EditedFrom: l.EditedFrom, ClaimedBy: l.ClaimedBy, ClaimedUntil: l.ClaimedUntil,
		Redacted: l.Redacted,
	}
}

// printable is s if a terminal can show it, else a quoted form.
func printable(s string) string {
	if q := fmt.Sprintf("%+q", s); q != `"`+s+`"` && !isText([]byte(s)) {
		return q
	}
	return s
}

func (a *app) showLetters(letters []deadletter.Letter) error {
	if a.isJSON() {
		views := make([]view, len(letters))
		for i := range letters {
			views[i] = viewOf(&letters[i])
		}
		return a.writeJSON(views)
	}
	if len(letters) == 0 {
		return nil
	}
	return a.table("ID\tSTATE\tFAILED\tCONSUMER\tTYPE\tKEY\tDEATHS\tERROR", len(letters), func(i int) []string {
		l := &letters[i]
		return []string{
			l.ID, string(l.State), timeText(l.FailedAt()), l.Consumer, l.Type, printable(string(l.Key)), fmt.Sprint(l.Deaths),
			l.ErrorType + ": " + oneLine(l.Error),
		}
	})
}

func (a *app) showGroups(groups []deadletter.Group) error {
	if a.isJSON() {
		type groupView struct {
			Fingerprint string    `json:"fingerprint"`
			Consumer    string    `json:"consumer"`
			Topic       string    `json:"topic"`
			Type        string    `json:"type,omitempty"`
			ErrorType   string    `json:"error_type"`
			Error       string    `json:"error"`
			Count       int64     `json:"count"`
			New         int64     `json:"new"`
			First       time.Time `json:"first,omitzero"`
			Last        time.Time `json:"last,omitzero"`
			Sample      string    `json:"sample"`
		}
		views := make([]groupView, len(groups))
		for i, g := range groups {
			views[i] = groupView{g.Fingerprint, g.Consumer, g.Topic, g.Type, g.ErrorType, g.Error, g.Count, g.New, g.First, g.Last, g.Sample}
		}
		return a.writeJSON(views)
	}
	if len(groups) == 0 {
		return nil
	}
	return a.table("FINGERPRINT\tCOUNT\tNEW\tLAST\tCONSUMER\tTYPE\tERROR", len(groups), func(i int) []string {
		g := &groups[i]
		return []string{
			g.Fingerprint, fmt.Sprint(g.Count), fmt.Sprint(g.New), timeText(g.Last), g.Consumer, g.Type,
			g.ErrorType + ": " + oneLine(g.Error),
		}
	})
}

func (a *app) showLetter(l *deadletter.Letter, trail []deadletter.Entry) error {
	entries := make([]trailEntry, len(trail))
	for i, e := range trail {
		entries[i] = trailEntry{e.At, e.Actor, e.Action, e.Reason, e.Batch, e.Detail}
	}
	if a.isJSON() {
		d := detail{
			view: viewOf(l), Reference: l.Reference, UUID: printable(l.UUID), Incarnation: l.Incarnation, StoredAt: l.Time.UTC(),
			Attempts: l.Attempts, FirstFailure: l.FirstFailure.UTC(), Verdict: l.Verdict.String(), TraceParent: l.TraceParent, Stack: l.Stack,
			Metadata: l.Metadata, Trail: entries,
		}
		switch {
		case l.Payload == nil:
		case isText(l.Payload):
			d.Payload = new(string(l.Payload))
		default:
			d.PayloadBytes = new(base64.StdEncoding.EncodeToString(l.Payload))
		}
		return a.writeJSON(d)
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	line("id", l.ID)
	line("state", string(l.State))
	if l.ClaimedBy != "" {
		line("claimed", l.ClaimedBy+" until "+timeText(l.ClaimedUntil))
	}
	line("consumer", l.Consumer)
	line("read from", fmt.Sprintf("%s, partition %d, offset %d", l.Topic, l.Partition, l.Offset))
	line("stored", timeText(l.Time))
	line("key", printable(string(l.Key)))
	line("type", l.Type)
	line("subject", l.Subject)
	line("message id", l.MessageID)
	line("correlation", l.CorrelationID)
	line("trace", l.TraceParent)
	line("failed", fmt.Sprintf("%s, first at %s, %s, %s", timeText(l.LastFailure), timeText(l.FirstFailure), plural(l.Attempts, "attempt"), plural(l.Deaths, "death")))
	if l.Batch != "" {
		line("failed in", l.Batch)
	}
	line("edited from", l.EditedFrom)
	line("verdict", l.Verdict.String())
	line("error", l.ErrorType+": "+printable(l.Error))
	line("fingerprint", l.Fingerprint)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(l.Metadata) > 0 {
		fmt.Fprintln(a.out, "\nmetadata")
		for _, k := range slices.Sorted(maps.Keys(l.Metadata)) {
			fmt.Fprintf(a.out, "  %s: %s\n", printable(k), printable(l.Metadata[k]))
		}
	}
	a.showPayload(l)
	if l.Stack != "" {
		fmt.Fprintf(a.out, "\nstack\n%s\n", l.Stack)
	}
	if len(entries) > 0 {
		fmt.Fprintln(a.out, "\ntrail")
		for _, e := range entries {
			fmt.Fprintf(a.out, "  %s  %s  %s: %s%s\n", timeText(e.At), e.Actor, e.Action, e.Reason, batchText(e.Batch))
			for detail := range strings.Lines(e.Detail) {
				fmt.Fprintf(a.out, "    %s\n", strings.TrimSuffix(detail, "\n"))
			}
		}
	}
	return nil
}

func batchText(batch string) string {
	if batch == "" {
		return ""
	}
	return " (batch " + batch + ")"
}

func (a *app) showPayload(l *deadletter.Letter) {
	switch {
	case l.Reference:
		fmt.Fprintln(a.out, "\npayload: too large for a dead letter; it is where it was read, as long as the broker keeps it")
	case l.Redacted:
		fmt.Fprintln(a.out, "\npayload: redacted")
	case l.Payload == nil:
		fmt.Fprintln(a.out, "\npayload: none (a tombstone)")
	case !isText(l.Payload):
		fmt.Fprintf(a.out, "\npayload: %d bytes that are no text; write them with --payload\n", len(l.Payload))
	default:
		text := l.Payload
		if json.Valid(text) {
			if laid, err := json.MarshalIndent(json.RawMessage(text), "  ", "  "); err == nil {
				text = laid
			}
		}
		fmt.Fprintf(a.out, "\npayload\n  %s\n", text)
	}
}

// showCounts tells how many letters there are; it returns errNothing if there are none.
func (a *app) showCounts(what string, counts map[deadletter.State]int64) error {
	if a.isJSON() {
		if err := a.writeJSON(map[string]any{"dry_run": true, "selected": total(counts), "states": counts}); err != nil {
			return err
		}
	} else if total(counts) > 0 {
		fmt.Fprintf(a.out, "would %s %s (%s)\n", what, plural(total(counts), "dead letter"), statesText(counts))
	}
	if total(counts) == 0 {
		return errNothing
	}
	return nil
}

func statesText(counts map[deadletter.State]int64) string {
	var parts []string
	for _, s := range deadletter.States {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[s], s))
		}
	}
	return strings.Join(parts, ", ")
}

// table writes n rows under a head.
func (a *app) table(head string, n int, row func(i int) []string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	for i := range n {
		fmt.Fprintln(w, strings.Join(row(i), "\t"))
	}
	return w.Flush()
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// oneLine is the beginning of a text, without what would break a table.
func oneLine(s string) string {
	const limit = 60
	s = strings.Join(strings.Fields(s), " ")
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit-3]) + "..."
	}
	return s
}

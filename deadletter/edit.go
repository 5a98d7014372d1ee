package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
)

// Edit is what an edited copy has instead of the original's.
type Edit struct {
	// Payload replaces the payload. nil leaves it; an empty one makes it empty.
	Payload []byte
	// Metadata sets entries; an empty value removes one.
	Metadata map[string]string
	// Force also edits a letter that was redriven, or claimed by a redrive that died. Its message may have taken effect, or
	// still do so: the copy is another message, and takes effect beside it.
	Force bool
}

// maxDiff bounds the difference that is kept in the trail, in bytes.
const maxDiff = 32 << 10

// Edit makes an edited copy of a letter, which is new and can be redriven, and marks the original as resolved; both
// in one transaction. The copy has a new id, also as a message, since it is another message to the consumer's inbox, and
// its causation is the original. The trails of both have the difference, unless letters are encrypted.
//
// It knows nothing of parked messages: one whose original is parked still runs when its key is released, and the copy after
// it. Take it out first (parking.Ledger.Skip).
//
// It returns the copy. The error wraps [ErrNotFound] or [ErrBusy]; a letter that was redriven is busy, see [Edit.Force].
func (s *Store) Edit(ctx context.Context, id string, edit Edit, by By) (Letter, error) {
	e, err := by.entry(ActionEdit)
	if err != nil {
		return Letter{}, err
	}
	original, err := s.One(ctx, id)
	if err != nil {
		return Letter{}, err
	}
	if original.Reference || original.Redacted {
		return Letter{}, fmt.Errorf("edit dead letter %s: its message is not in the store", id)
	}
	copied, err := edited(original.Record, edit)
	if err != nil {
		return Letter{}, fmt.Errorf("edit dead letter %s: %w", id, err)
	}
	row, err := s.protection.row(copied, original.ID)
	if err != nil {
		return Letter{}, err
	}
	if s.protection.Cipher == nil && s.protection.Redact == nil {
		e.Detail = clean("copy "+row.ID+"\n"+Diff(&original.Record, &copied), maxDiff)
	} else {
		e.Detail = "copy " + row.ID
	}
	from := []State{New}
	switch {
	case edit.Force:
		from = append(from, Redriven)
	case original.State == Redriving: // by the time of the change its claim may have ended, but not what it sent
		return Letter{}, fmt.Errorf("edit dead letter %s, which a redrive of %s claimed and may have sent: %w", id, original.ClaimedBy, ErrBusy)
	}
	ok, err := s.table.Replace(ctx, Change{IDs: []string{rowID(original.ID, nil)}, From: from, To: Resolved, Entry: e}, row)
	if err != nil {
		return Letter{}, fmt.Errorf("edit dead letter %s: %w", id, err)
	}
	if !ok {
		return Letter{}, fmt.Errorf("edit dead letter %s, which is %s: %w", id, original.State, ErrBusy)
	}
	return s.One(ctx, row.ID)
}

// edited is r changed by e, as a message of its own.
func edited(r poison.Record, e Edit) (poison.Record, error) {
	c := clone(r)
	if e.Payload != nil {
		c.Payload = e.Payload
	}
	if c.Metadata == nil {
		c.Metadata = map[string]string{}
	}
	for k, v := range e.Metadata {
		if strings.HasPrefix(k, event.MetaPrefix) {
			return c, fmt.Errorf("metadata %q: keys that begin with %s are not the message's", k, event.MetaPrefix)
		}
		if v == "" {
			delete(c.Metadata, k)
			continue
		}
		c.Metadata[k] = v
	}
	if bytes.Equal(c.Payload, r.Payload) && (c.Payload == nil) == (r.Payload == nil) && maps.Equal(c.Metadata, r.Metadata) {
		return c, errors.New("nothing was changed")
	}
	c.ID, c.UUID = watermill.NewUUID(), watermill.NewUUID()
	c.Headers, c.DecodeError = nil, "" // what could not be read, or held, was edited into what can
	cause := r.UUID
	structured := strings.HasPrefix(strings.ToLower(c.Metadata[event.MetaContentType]), "application/cloudevents")
	switch {
	case structured:
		var err error
		if c.Payload, err = renamed(r.Payload, c.Payload, c.UUID, or(r.UUID, r.MessageID)); err != nil {
			return c, err
		}
	case c.Metadata[event.MetaID] != "":
		cause = or(r.Metadata[event.MetaID], cause)
		if c.Metadata[event.MetaID] == r.Metadata[event.MetaID] {
			c.Metadata[event.MetaID] = c.UUID
		}
		c.Metadata[event.MetaCausationID] = or(cause, r.MessageID)
	default:
		c.Metadata[event.MetaCausationID] = or(cause, r.MessageID)
	}
	// Where the message has no id of its own it is known by its UUID, never by the original's position.
	id, err := event.Identify(c.Original(), c.Topic)
	if err != nil {
		return c, err
	}
	c.MessageID = id
	return c, nil
}

// renamed gives a structured event the new id, unless the edit gave it another than it had, and the causation of the old one, or of
// otherwise where that cannot be read.
func renamed(before, after []byte, id, otherwise string) ([]byte, error) {
	var was struct{ ID string }
	_ = json.Unmarshal(before, &was) // it may be what had to be edited
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(after, &fields); err != nil {
		return nil, fmt.Errorf("the edited payload is not a structured CloudEvent: %w", err)
	}
	var is string
	if err := json.Unmarshal(fields["id"], &is); err != nil || is == was.ID || was.ID == "" {
		fields["id"], _ = json.Marshal(id) //nolint:errchkjson // a string
	}
	if cause := or(was.ID, otherwise); cause != "" {
		fields["causationid"], _ = json.Marshal(cause) //nolint:errchkjson // a string
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// Diff tells what differs between two messages, a line each: "-" is before, "+" is after.
func Diff(before, after *poison.Record) string {
	var b strings.Builder
	keys := slices.Sorted(maps.Keys(before.Metadata))
	for k := range after.Metadata {
		if _, both := before.Metadata[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		was, had := before.Metadata[k]
		is, has := after.Metadata[k]
		if had && (!has || was != is) {
			fmt.Fprintf(&b, "-%s: %s\n", k, was)
		}
		if has && (!had || was != is) {
			fmt.Fprintf(&b, "+%s: %s\n", k, is)
		}
	}
	if !bytes.Equal(before.Payload, after.Payload) {
		diffLines(&b, lines(before.Payload), lines(after.Payload))
	}
	return b.String()
}

// lines are those of a payload; JSON on one line is laid out first.
func lines(payload []byte) []string {
	var laid bytes.Buffer
	if json.Indent(&laid, payload, "", "  ") == nil {
		payload = laid.Bytes()
	}
	return strings.Split(string(payload), "\n")
}

// diffLines leaves out what both begin and end with.
func diffLines(b *strings.Builder, before, after []string) {
	for len(before) > 0 && len(after) > 0 && before[0] == after[0] {
		before, after = before[1:], after[1:]
	}
	for len(before) > 0 && len(after) > 0 && before[len(before)-1] == after[len(after)-1] {
		before, after = before[:len(before)-1], after[:len(after)-1]
	}
	for _, l := range before {
		fmt.Fprintf(b, "-%s\n", l)
	}
	for _, l := range after {
		fmt.Fprintf(b, "+%s\n", l)
	}
}

// Preview returns the difference that an edit would make, and changes nothing.
func (s *Store) Preview(ctx context.Context, id string, edit Edit) (string, error) {
	original, err := s.One(ctx, id)
	if err != nil {
		return "", err
	}
	copied, err := edited(original.Record, edit)
	if err != nil {
		return "", fmt.Errorf("edit dead letter %s: %w", id, err)
	}
	return Diff(&original.Record, &copied), nil
}

package deadletter

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/poison"
)

// Protection says what of a dead letter is stored, and how. Whoever writes and whoever reads a table must have the same.
// The zero Protection stores all of it in clear.
type Protection struct {
	// Redact takes out of a record what is not to be stored. It gets a copy and may change it; it must be pure. Who
	// failed, where, and the message's id are kept whatever it does. If it changes the message itself, the letter is
	// marked redacted: a redrive then needs the original, which some brokers can read again.
	Redact func(*poison.Record)

	// Subject tells whose data the letter is, for [Filter.Subject] and a purge by it. It must be pure. Default: the
	// event's subject.
	Subject func(poison.Record) string

	// Cipher encrypts document and payload. The columns then hold no text of the message: the error's text and what [Filter.Text]
	// searches are left out, and keys, subjects and ids are blinded, which still lets one search for exactly one.
	Cipher Cipher
}

// Cipher encrypts. It is safe for concurrent use. [NewCipher] makes one of keys in memory.
type Cipher interface {
	// Seal encrypts plain, bound to a name that tells which part of which letter it is.
	Seal(name string, plain []byte) ([]byte, error)
	// Open is its inverse. It returns no nil slice.
	Open(name string, sealed []byte) ([]byte, error)
	// Blind returns a text of at most 255 bytes that is the same for equal texts and tells nothing of them.
	Blind(text string) string
}

// maxColumn bounds a text column, maxError and maxSearch the long ones, maxSearched what is searched of a payload.
const (
	maxColumn   = 255
	maxError    = 8 << 10
	maxSearch   = 16 << 10
	maxSearched = 4 << 10
)

// row makes the row of r, which has no state yet.
func (p *Protection) row(r poison.Record, editedFrom string) (Row, error) {
	stored := r
	if p.Redact != nil {
		stored = clone(r)
		p.Redact(&stored)
		keep(&stored, &r)
	}
	document, err := stored.MarshalDocument()
	if err != nil {
		return Row{}, fmt.Errorf("dead letter %s: %w", r.ID, err)
	}
	l := letterOf(stored, p.subjectOf(stored))
	row := Row{
		ID: rowID(r.ID, append(document, stored.Payload...)), Consumer: column(r.Consumer), Topic: column(r.Topic), Type: column(l.Type),
		Subject: p.blind(column(l.Subject)), Key: p.blind(KeyText(stored.Key)), MessageID: p.blind(column(r.MessageID)),
		CorrelationID: p.blind(column(stored.CorrelationID)), ErrorType: column(stored.ErrorType), Fingerprint: column(stored.Fingerprint),
		Batch: column(r.Batch), Partition: r.Partition, Offset: r.Offset, Deaths: r.Deaths, Hops: r.Hops,
		FailedAt: r.LastFailure.UTC().Truncate(microsecond), State: New, Redacted: !sameMessage(&stored, &r), EditedFrom: editedFrom,
		Document: document, Payload: stored.Payload,
	}
	if p.Cipher == nil {
		row.Error, row.Search = clean(stored.Error, maxError), searched(&stored, &row)
		return row, nil
	}
	row.Sealed = true
	if row.Document, err = p.Cipher.Seal("document of "+row.ID, document); err == nil && row.Payload != nil {
		row.Payload, err = p.Cipher.Seal("payload of "+row.ID, row.Payload)
	}
	if err != nil {
		return Row{}, fmt.Errorf("dead letter %s: encrypt: %w", r.ID, err)
	}
	return row, nil
}

// letter is the inverse of row.
func (p *Protection) letter(row *Row) (Letter, error) {
	l := Letter{
		Type: row.Type, Subject: row.Subject, State: row.State, Redacted: row.Redacted, Sealed: row.Sealed, EditedFrom: row.EditedFrom,
		ClaimedBy: row.ClaimedBy, ClaimedUntil: row.ClaimedUntil, IndexedAt: row.IndexedAt, ChangedAt: row.ChangedAt,
	}
	if row.Document == nil { // a listing
		l.Record = poison.Record{
			ID: row.ID, Consumer: row.Consumer, Topic: row.Topic, Partition: row.Partition, Offset: row.Offset, MessageID: row.MessageID,
			Deaths: row.Deaths, Hops: row.Hops, Batch: row.Batch, ErrorType: row.ErrorType, Error: row.Error, LastFailure: row.FailedAt,
			CorrelationID: row.CorrelationID, Fingerprint: row.Fingerprint, Key: []byte(row.Key),
		}
		return l, nil
	}
	document, payload := row.Document, row.Payload
	if row.Sealed {
		if p.Cipher == nil {
			return Letter{}, fmt.Errorf("dead letter %s is encrypted, and there is no cipher to read it with", row.ID)
		}
		var err error
		if document, err = p.Cipher.Open("document of "+row.ID, document); err == nil && payload != nil {
			payload, err = p.Cipher.Open("payload of "+row.ID, payload)
		}
		if err != nil {
			return Letter{}, fmt.Errorf("dead letter %s: decrypt: %w", row.ID, err)
		}
	}
	var err error
	if l.Record, err = poison.ParseDocument(row.ID, document, payload); err != nil {
		return Letter{}, fmt.Errorf("dead letter %s: %w", row.ID, err)
	}
	if row.Sealed {
		l.Subject = p.subjectOf(l.Record)
	}
	return l, nil
}

// filter is f as the table's columns are written.
func (p *Protection) filter(f Filter) (Filter, error) {
	if err := f.Validate(); err != nil {
		return Filter{}, err
	}
	if f.Text != "" && p.Cipher != nil {
		return Filter{}, errors.New("filter: Text: the letters are encrypted, and there is no text to search")
	}
	if f.Key != "" {
		f.Key = p.blind(KeyText([]byte(f.Key)))
	}
	f.Subject, f.MessageID, f.CorrelationID = p.blind(column(f.Subject)), p.blind(column(f.MessageID)), p.blind(column(f.CorrelationID))
	for _, text := range []*string{&f.Consumer, &f.Topic, &f.Type, &f.ErrorType, &f.Fingerprint, &f.Batch} {
		*text = column(*text)
	}
	f.IDs = slices.Clone(f.IDs)
	for i := range f.IDs {
		f.IDs[i] = rowID(f.IDs[i], nil)
	}
	return f, nil
}

func (p *Protection) blind(text string) string {
	if p.Cipher == nil || text == "" {
		return text
	}
	return p.Cipher.Blind(text)
}

func (p *Protection) subjectOf(r poison.Record) string {
	if p.Subject != nil {
		return p.Subject(r)
	}
	if r.Reference {
		return ""
	}
	msg := r.Original()
	if e, err := event.Parse(msg); err == nil {
		return e.Subject
	}
	return msg.Metadata[event.MetaSubject]
}

// clone copies what a redaction may change in place.
func clone(r poison.Record) poison.Record {
	r.Key, r.Payload, r.Metadata = bytes.Clone(r.Key), bytes.Clone(r.Payload), maps.Clone(r.Metadata)
	r.Headers = slices.Clone(r.Headers)
	for i := range r.Headers {
		r.Headers[i].Value = bytes.Clone(r.Headers[i].Value)
	}
	return r
}

// keep takes back what a redaction must not change.
func keep(r, from *poison.Record) {
	r.ID, r.Version, r.Consumer, r.MessageID = from.ID, from.Version, from.Consumer, from.MessageID
	r.Topic, r.Incarnation, r.Partition, r.Offset, r.Time = from.Topic, from.Incarnation, from.Partition, from.Offset, from.Time
	r.Reference, r.Attempts, r.Deliveries, r.Deaths, r.Hops, r.Batch = from.Reference, from.Attempts, from.Deliveries, from.Deaths, from.Hops, from.Batch
	r.Verdict, r.FirstFailure, r.LastFailure = from.Verdict, from.FirstFailure, from.LastFailure
}

func sameMessage(a, b *poison.Record) bool {
	return a.UUID == b.UUID && bytes.Equal(a.Payload, b.Payload) && bytes.Equal(a.Key, b.Key) &&
		maps.Equal(a.Metadata, b.Metadata) && reflect.DeepEqual(a.Headers, b.Headers)
}

// searched is the text that Filter.Text looks into, in small letters.
func searched(r *poison.Record, row *Row) string {
	payload := r.Payload[:min(len(r.Payload), maxSearched)]
	parts := []string{r.Error, row.Key, row.Type, row.MessageID, row.CorrelationID, row.Subject, row.ID}
	if utf8.Valid(trimRune(payload)) {
		parts = append(parts, string(payload))
	}
	return clean(Fold(strings.Join(parts, "\n")), maxSearch)
}

// trimRune drops a character that was cut at the end of b.
func trimRune(b []byte) []byte {
	for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.Valid(b); i++ {
		b = b[:len(b)-1]
	}
	return b
}

// KeyText is a broker's key as the table has it: the key itself if it is text of at most 255 bytes, else a hash of it.
func KeyText(key []byte) string { return column(string(key)) }

// column is a value as a text column can hold it: itself, or a hash of it.
func column(s string) string {
	if len(s) <= maxColumn && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// rowID is the letter's own id, or what stands for one where it has none.
func rowID(id string, body []byte) string {
	if id == "" {
		sum := sha256.Sum256(body)
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return column(id)
}

// clean is text that every database takes, of at most limit bytes.
func clean(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", " "), "\uFFFD")
	if len(s) <= limit {
		return s
	}
	return string(trimRune([]byte(s[:limit])))
}

// Key is a key of [NewCipher].
type Key struct {
	// ID is stored beside what it sealed: 1 to 64 letters, digits or '-'.
	ID string
	// Secret has 32 bytes.
	Secret []byte
}

// NewCipher returns AES-256-GCM over keys: the first one seals, all of them open. blind, of 32 bytes, is the key of
// [Cipher.Blind]; it cannot be changed without losing what was blinded with it.
func NewCipher(blind []byte, keys ...Key) (Cipher, error) {
	if len(blind) != 32 {
		return nil, fmt.Errorf("deadletter: the key for blinding has %d bytes, want 32", len(blind))
	}
	if len(keys) == 0 {
		return nil, errors.New("deadletter: no key to encrypt with")
	}
	c := &aead{blind: bytes.Clone(blind), first: keys[0].ID, keys: make(map[string]cipher.AEAD, len(keys))}
	for _, k := range keys {
		if k.ID == "" || len(k.ID) > 64 || strings.Trim(k.ID, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" {
			return nil, fmt.Errorf("deadletter: key id %q: want 1 to 64 letters, digits or '-'", k.ID)
		}
		if _, twice := c.keys[k.ID]; twice {
			return nil, fmt.Errorf("deadletter: two keys have the id %q", k.ID)
		}
		if len(k.Secret) != 32 {
			return nil, fmt.Errorf("deadletter: key %q has %d bytes, want 32", k.ID, len(k.Secret))
		}
		block, err := aes.NewCipher(k.Secret)
		if err != nil {
			return nil, fmt.Errorf("deadletter: key %q: %w", k.ID, err)
		}
		if c.keys[k.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, fmt.Errorf("deadletter: key %q: %w", k.ID, err)
		}
	}
	return c, nil
}

// aead seals as: version 1, length of the key's id, the id, nonce, text, tag.
type aead struct {
	blind []byte
	first string
	keys  map[string]cipher.AEAD
}

func (c *aead) Seal(name string, plain []byte) ([]byte, error) {
	head := append([]byte{1, byte(len(c.first))}, c.first...)
	return c.keys[c.first].Seal(head, nil, plain, []byte(name)), nil
}

func (c *aead) Open(name string, sealed []byte) ([]byte, error) {
	if len(sealed) < 2 || sealed[0] != 1 || len(sealed) < 2+int(sealed[1]) {
		return nil, errors.New("it is not a sealed body of version 1")
	}
	id := string(sealed[2 : 2+int(sealed[1])])
	key := c.keys[id]
	if key == nil {
		return nil, fmt.Errorf("it was sealed with the key %q, which is not here", id)
	}
	return key.Open([]byte{}, nil, sealed[2+len(id):], []byte(name))
}

func (c *aead) Blind(text string) string {
	mac := hmac.New(sha256.New, c.blind)
	mac.Write([]byte(text))
	return "blind:" + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// NewSecret returns 32 random bytes, for a [Key] or for blinding.
func NewSecret() []byte {
	b := make([]byte, 32)
	rand.Read(b) // it never fails
	return b
}

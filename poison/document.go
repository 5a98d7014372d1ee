package poison

import (
	"context"
	"encoding/json"
	"fmt"
)

// MarshalDocument returns the record without its ID and its Payload as a JSON document, for those who keep
// records in a table: both belong into columns of their own, the payload as bytes. The form is that of the
// envelope, versioned and frozen as it.
func (r *Record) MarshalDocument() ([]byte, error) {
	e := r.envelope()
	e.Payload = nil
	document, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode the record of message %q: %w", r.UUID, err)
	}
	return document, nil
}

// ParseDocument is the inverse of [Record.MarshalDocument]. It refuses a document of a later version. The record
// shares memory with payload.
func ParseDocument(id string, document, payload []byte) (Record, error) {
	var e envelope
	if err := json.Unmarshal(document, &e); err != nil {
		return Record{}, fmt.Errorf("parse record %s: %w", id, err)
	}
	if e.Version < 1 || e.Version > Version {
		return Record{}, fmt.Errorf("parse record %s: version is %d: this program reads versions 1 to %d", id, e.Version, Version)
	}
	r, err := e.record(id)
	if err != nil {
		return Record{}, fmt.Errorf("parse record %s: %w", id, err)
	}
	r.Payload = payload
	return r, nil
}

// WithRedrive returns ctx with what [RedriveOf] returns: for a message that comes from where dead letters are
// kept, and not from a redrive topic. Its id, its deaths and where it was first read are those of r.Record.
func WithRedrive(ctx context.Context, r *Redrive) context.Context {
	return context.WithValue(ctx, redriveKey{}, r)
}

package flight

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// snapshot is what a message was before anybody could change it. Snapshots are pooled: a message whose
// first attempt succeeds pays no allocation for its copy.
type snapshot struct {
	uuid     string
	payload  message.Payload
	metadata []string // key, value, key, value
	absent   bool     // the metadata was nil, which is not the same as empty
}

var snapshots = sync.Pool{New: func() any { return new(snapshot) }}

// maxPooled is the most metadata strings whose room is kept for the next message.
const maxPooled = 128

// Keep remembers msg's id, metadata and payload slice, for Restore, unless a stage further out did so
// before. It reports whether this call did; its caller then calls Forget when the message left it in the
// ordinary way. The bytes of the payload are not copied.
func (f *Flight) Keep(msg *message.Message) bool {
	if f.kept != nil {
		return false
	}
	s := snapshots.Get().(*snapshot)
	s.uuid, s.payload, s.absent = msg.UUID, msg.Payload, msg.Metadata == nil
	for k, v := range msg.Metadata {
		s.metadata = append(s.metadata, k, v)
	}
	f.kept = s
	return true
}

// Restore makes msg what it was at Keep. The metadata is a new map: a goroutine that a handler left behind
// may still hold the old one. Without a Keep it does nothing.
func (f *Flight) Restore(msg *message.Message) {
	s := f.kept
	if s == nil {
		return
	}
	msg.UUID, msg.Payload, msg.Metadata = s.uuid, s.payload, nil
	if s.absent {
		return
	}
	msg.Metadata = make(message.Metadata, len(s.metadata)/2)
	for i := 0; i < len(s.metadata); i += 2 {
		msg.Metadata[s.metadata[i]] = s.metadata[i+1]
	}
}

// Arrived returns the message as it was at Keep, or the broker's own where nothing was kept. Callers must not
// change what they get.
func (f *Flight) Arrived() (uuid string, payload message.Payload, metadata message.Metadata) {
	s := f.kept
	if s == nil {
		return f.Original.UUID, f.Original.Payload, f.Original.Metadata
	}
	if !s.absent {
		metadata = make(message.Metadata, len(s.metadata)/2)
		for i := 0; i < len(s.metadata); i += 2 {
			metadata[s.metadata[i]] = s.metadata[i+1]
		}
	}
	return s.uuid, s.payload, metadata
}

// Forget ends what Keep began.
func (f *Flight) Forget() {
	s := f.kept
	f.kept = nil
	if s == nil || cap(s.metadata) > maxPooled {
		return
	}
	clear(s.metadata)
	*s = snapshot{metadata: s.metadata[:0]}
	snapshots.Put(s)
}

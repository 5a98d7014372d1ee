package adapter

import "github.com/ThreeDotsLabs/watermill/message"

// The keys of event.MetaPartitionKey and event.MetaSubject, written here so that an adapter depends on the contract alone.
const (
	metaPartitionKey = "ce_partitionkey"
	metaSubject      = "ce_subject"
)

// KeyText is the key of m where the application gives none: its partition key, else its subject, else "".
func KeyText(m *message.Message) string {
	if key := m.Metadata[metaPartitionKey]; key != "" {
		return key
	}
	return m.Metadata[metaSubject]
}

// Key is KeyText as bytes; nil: none.
func Key(m *message.Message) []byte {
	if key := KeyText(m); key != "" {
		return []byte(key)
	}
	return nil
}

package outbox

import (
	"encoding/json"
	"fmt"
)

// EncodeMetadata returns metadata as the JSON object that the stores keep. Nil and empty are "{}".
// The strings must be valid UTF-8, which [Add] checks.
func EncodeMetadata(metadata map[string]string) (string, error) {
	if len(metadata) == 0 {
		return "{}", nil
	}
	text, err := json.Marshal(metadata)
	if err != nil {
		return "", fmt.Errorf("outbox: encode metadata: %w", err)
	}
	return string(text), nil
}

// DecodeMetadata is the inverse of [EncodeMetadata]. The result is never nil.
func DecodeMetadata(text []byte) (map[string]string, error) {
	metadata := map[string]string{}
	if err := json.Unmarshal(text, &metadata); err != nil {
		return nil, fmt.Errorf("outbox: decode metadata %.80q: %w", text, err)
	}
	return metadata, nil
}

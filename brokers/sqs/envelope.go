package sqs

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// notification is what SNS puts into a queue whose subscription has no raw delivery.
type notification struct {
	Type              string
	MessageID         string `json:"MessageId"`
	TopicARN          string `json:"TopicArn"`
	Message           *string
	MessageAttributes map[string]struct{ Type, Value string }
}

// unwrap returns the notification that body is, if it is one.
func unwrap(body string) (n notification, ok bool) {
	// Most bodies are none: they are not parsed.
	if !strings.HasPrefix(strings.TrimLeft(body, " \t\r\n"), "{") || !strings.Contains(body, `"Notification"`) {
		return n, false
	}
	if json.Unmarshal([]byte(body), &n) != nil {
		return n, false
	}
	return n, n.Type == "Notification" && n.MessageID != "" && n.TopicARN != "" && n.Message != nil
}

// attributes returns the notification's message attributes as they were published.
func (n *notification) attributes() ([]attribute, error) {
	all := make([]attribute, 0, len(n.MessageAttributes))
	for name, a := range n.MessageAttributes {
		if strings.HasPrefix(a.Type, "Binary") {
			raw, err := base64.StdEncoding.DecodeString(a.Value)
			if err != nil {
				return nil, fmt.Errorf("sqs: attribute %q of the SNS notification is not base64: %w", name, err)
			}
			a.Value = string(raw)
		}
		all = append(all, attribute{name, a.Value})
	}
	return all, nil
}

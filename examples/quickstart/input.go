package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/event"
)

const (
	webhooksTopic = "github.webhooks"
	githubSource  = "https://github.com/webhooks"
)

// firstDelivery begins the clock of the input, which must be the same in every process: GitHub does not tell
// when it sent a webhook.
var firstDelivery = time.Date(2019, time.May, 15, 16, 0, 0, 0, time.UTC)

//go:embed testdata/github-webhooks.jsonl
var webhookLines []byte

// webhook is one message of the input. What it says besides the message is read here, apart from the services, so
// that the books do not check the services by their own words.
type webhook struct {
	message *message.Message // each publish sends a copy of it
	id      string           // its CloudEvents id
	key     string
	item    *item // the issue or pull request that it changes; nil for other events

	injected injection // why it is in the input, if GitHub did not send it
}

// item is an issue or a pull request at one version.
type item struct {
	Repository, Kind string
	Number           int
	State, Title     string
	UpdatedAt        time.Time
}

func (i *item) key() string { return fmt.Sprintf("%s/%s/%d", i.Repository, i.Kind, i.Number) }

func (i *item) version() int64 { return i.UpdatedAt.UnixMilli() }

// readWebhooks makes a CloudEvent of each line: real deliveries of GitHub.
func readWebhooks() ([]webhook, error) {
	var all []webhook
	lines := bufio.NewScanner(bytes.NewReader(webhookLines))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		w, err := readWebhook(len(all)+1, lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("testdata/github-webhooks.jsonl: line %d: %w", len(all)+1, err)
		}
		all = append(all, w)
	}
	return all, lines.Err()
}

func readWebhook(number int, line []byte) (webhook, error) {
	id := fmt.Sprintf("delivery-%04d", number)
	var delivery struct {
		Event   string          `json:"event"`
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(line, &delivery); err != nil {
		return webhook{}, err
	}
	eventType := "github." + delivery.Event
	about, err := readItem(delivery.Payload)
	if err != nil {
		return webhook{}, err
	}
	w := webhook{id: id, key: eventType}
	switch {
	case about.Kind != "":
		w.key = about.key()
	case about.Repository != "":
		w.key = about.Repository
	}
	if delivery.Event == "issues" || delivery.Event == "pull_request" {
		w.item = about
	}
	w.message, err = event.New(context.Background(), eventType, delivery.Payload,
		event.WithSource(githubSource), event.WithID(id), event.WithSubject(w.key), event.WithKey(w.key),
		event.WithTime(firstDelivery.Add(time.Duration(number)*time.Second)))
	return w, err
}

// readItem finds what a delivery is about: without a Kind it is about a repository, without that about neither.
func readItem(payload []byte) (*item, error) {
	type entity struct {
		Number    int       `json:"number"`
		State     string    `json:"state"`
		Title     string    `json:"title"`
		UpdatedAt time.Time `json:"updated_at"`
	}
	var p struct {
		Repository *struct {
			FullName string `json:"full_name"`
		} `json:"repository"`
		Issue       *entity `json:"issue"`
		PullRequest *entity `json:"pull_request"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return nil, err
	}
	about := &item{}
	if p.Repository != nil {
		about.Repository = p.Repository.FullName
	}
	for kind, e := range map[string]*entity{"issue": p.Issue, "pull_request": p.PullRequest} {
		if e != nil {
			about.Kind, about.Number, about.State, about.Title, about.UpdatedAt = kind, e.Number, e.State, e.Title, e.UpdatedAt
		}
	}
	return about, nil
}

package jetstream

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// The pull request. The server answers it with messages, and with idle heartbeats while there are none; a
// request that is silent for pullSilence is taken for lost.
const (
	pullExpires   = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	pullSilence   = 2*pullHeartbeat + time.Second

	gatherFor  = 5 * time.Millisecond // how long a small room in the window waits to become larger
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
)

// pull is the one pull request that a subscription has open, if any.
type pull struct {
	subject    string // of the server's API
	maxBatch   int    // the durable's own limits; 0: none
	maxExpires time.Duration

	number  uint64 // of the request
	open    int    // how many messages it may still bring; 0: there is no request
	due     time.Time
	backoff time.Duration
}

// heard notes a sign of life.
func (p *pull) heard() {
	if p.open > 0 {
		p.due = time.Now().Add(pullSilence)
	}
}

// got counts a message.
func (p *pull) got() {
	p.backoff = 0
	if p.open > 0 {
		p.open--
		if p.open == 0 {
			p.due = time.Time{}
		}
	}
}

// forget ends the request, whatever the server thinks of it.
func (p *pull) forget() {
	p.number++
	p.open = 0
	p.due = time.Time{}
}

// fail ends the request and puts off the next.
func (p *pull) fail() {
	p.forget()
	p.backoff = min(max(2*p.backoff, backoffMin), backoffMax)
	p.due = time.Now().Add(p.backoff)
}

// aboutPull takes what the server says about request token.
func (s *subscription) aboutPull(token string, m *nats.Msg) {
	if !s.pull.is(token) {
		return // about one that we have given up
	}
	status, description := m.Header.Get("Status"), m.Header.Get("Description")
	switch status {
	case "100": // idle heartbeat
	case "404", "408":
		s.pull.forget() // it has expired
	default:
		// 409: the durable was deleted, changed its leader, or has limits. 503: there is no such durable, or JetStream is
		// not up yet. Only the server's own word ends the subscription.
		s.pull.fail()
		s.log.Debug("jetstream: pull request refused", "status", status, "description", description)
		if !strings.Contains(description, "Leadership") {
			s.look()
		}
	}
}

// requestMore opens a pull request for the room in the window, if there is none and it is time. All that it can
// bring fits into the window, so that what is prefetched is bounded by it.
func (s *subscription) requestMore() {
	p := &s.pull
	now := time.Now
	if p.open > 0 {
		if now().Before(p.due) {
			return
		}
		s.log.Debug("jetstream: pull request is silent", "number", p.number)
		p.fail()
		return
	}
	waited := !p.due.IsZero()
	if waited && now().Before(p.due) {
		return
	}
	p.due = time.Time{}
	room := s.window - len(s.held) - len(s.queue) - len(s.unconfirmed)
	if room <= 0 || !s.conn.IsConnected() {
		return // a settlement, or the connection's status, comes here again
	}
	if !waited && room < s.window/4 {
		// One request for each ack would be a waste. Wait a little for more.
		p.due = now().Add(gatherFor)
		return
	}
	request := p.limit(pullRequest{Batch: room, Expires: pullExpires})
	request.Heartbeat = min(pullHeartbeat, request.Expires/2)
	if err := s.request(request); err != nil {
		s.log.Warn("jetstream: could not send a pull request", "error", err)
		p.fail()
		return
	}
	p.open = request.Batch
	p.due = now().Add(pullSilence)
}

// pullRequest is what the server is asked.
type pullRequest struct {
	Expires   time.Duration `json:"expires"`
	Batch     int           `json:"batch"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
	NoWait    bool          `json:"no_wait,omitempty"` // it ends when there are no more
}

// limit keeps r within the durable's own limits.
func (p *pull) limit(r pullRequest) pullRequest {
	if p.maxBatch > 0 {
		r.Batch = min(r.Batch, p.maxBatch)
	}
	if p.maxExpires > 0 {
		r.Expires = min(r.Expires, p.maxExpires)
	}
	return r
}

// is tells whether token is that of the last request.
func (p *pull) is(token string) bool { return token == strconv.FormatUint(p.number, 10) }

// request sends r under the next number.
func (s *subscription) request(r pullRequest) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	s.pull.number++
	return s.conn.PublishRequest(s.pull.subject, s.inbox+"."+strconv.FormatUint(s.pull.number, 10), body)
}

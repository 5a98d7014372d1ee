package jetstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A pull request. The server answers it with messages, and with idle heartbeats while there are none; when all is
// silent for pullSilence, all requests are taken for lost.
const (
	pullExpires   = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	pullSilence   = 2*pullHeartbeat + time.Second
	pullRenew     = pullExpires + pullSilence // for so long requests follow each other before all have to end

	// manyWaiting is the least MaxWaiting with which several requests are open. A server drops one that is too many without
	// a word, and other members have theirs.
	manyWaiting = 64

	gatherFor  = 5 * time.Millisecond // how long a small room in the window waits to become larger
	backoffMin = 100 * time.Millisecond
	backoffMax = 5 * time.Second
)

// pull is the pull requests that a subscription has open. The server serves them in turn.
type pull struct {
	subject    string // of the server's API
	maxBatch   int    // the durable's own limits; 0: none
	maxExpires time.Duration
	single     bool // the durable allows few requests

	number    uint64    // of the last request
	forgotten uint64    // those up to this are of no interest
	open      int       // how many messages they may still bring, all together; 0: there is none
	since     time.Time // when the first of them was sent
	due       time.Time // when something is to be done: they are silent, a room has grown for long enough, a failure is over
	backoff   time.Duration
}

// obey takes over the durable's limits.
func (p *pull) obey(c jetstream.ConsumerConfig) {
	p.maxBatch, p.maxExpires = c.MaxRequestBatch, c.MaxRequestExpires
	p.single = c.MaxWaiting > 0 && c.MaxWaiting < manyWaiting // an old server does not tell
}

// heard notes a sign of life of a request.
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

// forget ends all requests, whatever the server thinks of them.
func (p *pull) forget() {
	p.forgotten = p.number
	p.open = 0
	p.due = time.Time{}
}

// expired ends one request, which still had so many messages to bring.
func (p *pull) expired(pending string) {
	n, err := strconv.Atoi(pending)
	if err != nil || n < 0 {
		p.forget() // an old server does not tell
		return
	}
	if p.open = max(p.open-n, 0); p.open == 0 {
		p.due = time.Time{}
	}
}

// fail ends all requests and puts off the next.
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
	s.pull.heard()
	status, description := m.Header.Get("Status"), m.Header.Get("Description")
	switch status {
	case "100": // idle heartbeat
	case "404", "408":
		s.pull.expired(m.Header.Get("Nats-Pending-Messages"))
	default:
		// 409: the durable was deleted, changed its leader, or has limits. 503: there is no such durable, or JetStream is
		// not up yet. Only the server's own word ends the subscription.
		s.pull.fail()
		level := slog.LevelDebug
		if status == "400" || status == "423" || strings.HasPrefix(description, "Exceeded") {
			level = slog.LevelWarn // it will not pass by itself
		}
		s.log.Log(context.Background(), level, "jetstream: pull request refused", "status", status, "description", description)
		switch {
		case strings.Contains(description, "Leadership"):
		case strings.Contains(description, "Deleted"):
			s.suspect() // there may be a new one of that name already
		default:
			s.look()
		}
	}
}

// requestMore opens a pull request for the room in the window, if there is enough of it or it is time. All that the open ones
// can bring fits into the window, so that what is prefetched is bounded by it. (Not right after a reconnect, a refusal or a
// silence: the server may still serve what was open then, which is another window at most.) The next one is on its way
// while the last one still brings messages: the server never waits for us.
//
// A message does not tell its request. So one that was lost alone would never be noticed while others bring messages, and the
// window be smaller by what it should have brought. Hence requests follow each other for pullRenew only, then all have to end:
// that costs a round trip, or, if one was lost, the silence that tells.
func (s *subscription) requestMore() {
	p := &s.pull
	now := time.Now()
	late := !p.due.IsZero() && !now.Before(p.due)
	if p.open > 0 && late {
		s.log.Debug("jetstream: the pull requests are silent", "last", p.number)
		p.fail()
		return
	}
	if p.backoff > 0 && !p.due.IsZero() && !late {
		return
	}
	if late {
		p.due = time.Time{}
	}
	room := s.window - len(s.held) - len(s.queue) - len(s.unconfirmed) - p.open
	switch {
	case room <= 0 || !s.conn.IsConnected():
		return // a settlement, or the connection's status, comes here again
	case p.open > 0 && (p.single || room < s.window/4 || now.Sub(p.since) > pullRenew):
		return // what is open brings more, and comes here again
	case p.open == 0 && room < s.window/4 && !late:
		// One request for each ack would be a waste. Wait a little for more.
		if p.due.IsZero() {
			p.due = now.Add(gatherFor)
		}
		return
	}
	request := p.limit(pullRequest{Batch: room, Expires: pullExpires})
	request.Heartbeat = min(pullHeartbeat, request.Expires/2)
	if err := s.request(request); err != nil {
		s.log.Warn("jetstream: could not send a pull request", "error", err)
		p.fail()
		return
	}
	if p.open == 0 {
		p.since = now
	}
	p.open += request.Batch
	p.due = now.Add(pullSilence)
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

// is tells whether token is that of a request which may be open.
func (p *pull) is(token string) bool {
	n, err := strconv.ParseUint(token, 10, 64)
	return err == nil && n > p.forgotten && n <= p.number
}

// request sends r under the next number.
func (s *subscription) request(r pullRequest) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	s.pull.number++
	return s.conn.PublishRequest(s.pull.subject, s.inbox+"."+strconv.FormatUint(s.pull.number, 10), body)
}

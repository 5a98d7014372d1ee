package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Members of a consumer know of each other by messages on one subject, outside of JetStream:
//
//   - a request asks who is there. Each member answers: empty, or stateStarting while it may take over. If there is
//     none, the server says so at once.
//   - a message without a reply subject tells that a member has come. A running one has the empty id, a starting one a random
//     one, and the lowest leads. Who hears an id that is greater than its own tells its own again.
//
// Members that start at the same moment find nobody. But each announces itself after it has begun to listen, so
// that of any two at least one hears the other, and in the end the greater one hears the lower one.
const (
	presencePrefix = "_HEADRACE.alive."
	presenceWait   = 500 * time.Millisecond // for an answer, beside the way to the server
	roundTripWait  = 10 * time.Second       // for the server
	stateStarting  = "starting"
)

// company is what a member finds when it asks who is there.
type company int

const (
	companyNone     company = iota
	companyStarting         // somebody who may take over
	companyRunning          // somebody who runs, or nobody can tell
)

// ask finds out which other members there are. A network that is slow, or lets nothing pass for a while, must not be taken for a member that does
// not answer: then what a dead one held would come after newer messages. So the server's own answer is waited for first, and
// with the time that it took the members'. If there is none the network may have failed in between, and it asks once more.
func ask(ctx context.Context, conn *nats.Conn, subject string) (company, error) {
	for range 2 {
		began := time.Now()
		if err := roundTrip(ctx, conn); err != nil {
			return 0, err
		}
		wait, cancel := context.WithTimeout(ctx, presenceWait+4*time.Since(began))
		answer, err := conn.RequestWithContext(wait, subject, nil)
		cancel()
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			return companyNone, nil
		case err == nil && string(answer.Data) == stateStarting:
			return companyStarting, nil
		case err == nil:
			return companyRunning, nil
		}
	}
	return companyRunning, nil
}

// roundTrip waits until the server has taken all that was sent.
func roundTrip(ctx context.Context, conn *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, roundTripWait)
	defer cancel()
	return conn.FlushWithContext(ctx)
}

// presence makes a member known.
type presence struct {
	conn    *nats.Conn
	subject string
	sub     *nats.Subscription
	lost    chan struct{} // closed when a starting member has heard one that goes first

	mu sync.Mutex
	id string // empty: it runs
}

// join makes a member known under id.
func join(conn *nats.Conn, subject, id string) (_ *presence, err error) {
	p := &presence{conn: conn, subject: subject, id: id, lost: make(chan struct{})}
	if p.sub, err = conn.Subscribe(subject, p.hear); err == nil {
		err = conn.Publish(subject, []byte(id))
	}
	if err != nil {
		return nil, fmt.Errorf("jetstream: subscribe to %q: %w", subject, err)
	}
	return p, nil
}

// hear is nats.go's callback. What cannot be sent is asked for again, or was on a connection that is gone.
func (p *presence) hear(m *nats.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Reply != "" {
		state := ""
		if p.id != "" {
			state = stateStarting
		}
		_ = m.Respond([]byte(state))
		return
	}
	switch other := string(m.Data); {
	case other > p.id:
		_ = p.conn.Publish(p.subject, []byte(p.id))
	case other < p.id && !p.hasLost():
		close(p.lost)
	}
}

func (p *presence) hasLost() bool {
	select {
	case <-p.lost:
		return true
	default:
		return false
	}
}

// run makes a starting member a running one, unless it has lost.
func (p *presence) run() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasLost() {
		return false
	}
	p.id = ""
	return true
}

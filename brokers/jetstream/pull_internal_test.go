package jetstream

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/brokers/internal/adaptertest"
)

// connected returns a connection to a server that nobody else talks to.
func connected(t *testing.T) *nats.Conn {
	t.Helper()
	srv, err := server.NewServer(&server.Options{DontListen: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// delivered is what the server sends of a stream.
func delivered(streamSeq, consumerSeq int, stored time.Time) *nats.Msg {
	return &nats.Msg{
		Subject: "orders",
		Reply:   fmt.Sprintf("$JS.ACK.orders.c.1.%d.%d.%d.0", streamSeq, consumerSeq, stored.UnixNano()),
		Sub:     &nats.Subscription{},
	}
}

// A durable that allows one request at a time may refuse a second one, and each refusal puts off the next.
func TestWhenARequestIsSent(t *testing.T) {
	conn := connected(t)
	now := time.Now()
	soon, long := now.Add(time.Hour), now.Add(-time.Hour)
	for name, tt := range map[string]struct {
		pull pull
		held int
		want int // of the batch; 0: no request
	}{
		"nothing is open":                         {pull{}, 3, 5},
		"a little room":                           {pull{}, 7, 0},
		"a little room for long enough":           {pull{due: long}, 7, 1},
		"room has grown before the time":          {pull{due: soon}, 5, 3},
		"no room":                                 {pull{due: long}, 8, 0},
		"one is open, and there is room":          {pull{open: 4, since: now, due: soon}, 2, 2},
		"one is open, and there is little room":   {pull{open: 4, since: now, due: soon}, 3, 0},
		"one is open, of a durable that has one":  {pull{open: 4, since: now, due: soon, single: true}, 2, 0},
		"some have been open for long":            {pull{open: 4, since: long, due: soon}, 2, 0},
		"a durable that has one has none":         {pull{single: true}, 2, 6},
		"a failure is not over":                   {pull{due: soon, backoff: time.Second}, 0, 0},
		"a failure is over":                       {pull{due: long, backoff: time.Second}, 0, 8},
		"the durable has limits":                  {pull{maxBatch: 3}, 0, 3},
		"the durable has limits, and one is open": {pull{maxBatch: 3, open: 3, since: now, due: soon}, 0, 3},
	} {
		s := &subscription{conn: conn, window: 8, held: make([]*hold, tt.held), pull: tt.pull}
		s.pull.subject = "next"
		s.requestMore()
		if got := s.pull.open - tt.pull.open; got != tt.want || (s.pull.number > 0) != (tt.want > 0) {
			t.Errorf("%s: request of %d (number %d); want %d", name, got, s.pull.number, tt.want)
		}
		if late := !s.pull.due.IsZero() && !time.Now().Before(s.pull.due); late {
			t.Errorf("%s: due %v, in the past: the timer would ring for ever", name, s.pull.due)
		}
	}
}

// A request that ends leaves the others open.
func TestEndOfOneRequestIsNotThatOfAll(t *testing.T) {
	p := pull{number: 3, forgotten: 1, open: 10, due: time.Now()}
	for token, want := range map[string]bool{"1": false, "2": true, "3": true, "4": false, "": false, "x": false} {
		if got := p.is(token); got != want {
			t.Errorf("is(%q) of requests 2 and 3: %t, want %t", token, got, want)
		}
	}
	if p.expired("4"); p.open != 6 || p.due.IsZero() {
		t.Errorf("after the end of one with 4 to bring: open %d, due %v; want 6 and some", p.open, p.due)
	}
	if p.expired("7"); p.open != 0 || !p.due.IsZero() {
		t.Errorf("after the end of the last: open %d, due %v; want nothing", p.open, p.due)
	}
	p.open = 5
	if p.expired(""); p.open != 0 || p.is("3") {
		t.Errorf("after an end of which nothing is told: open %d, of interest %t; want all forgotten", p.open, p.is("3"))
	}
}

// One request of several was lost: the server drops one without a word where MaxWaiting is reached. What came of the others put
// off the silence, so that for ever the window was smaller by what the lost one should have brought.
func TestLostRequestIsNoticedWhileOthersBringMessages(t *testing.T) {
	conn := connected(t)
	for _, every := range []time.Duration{10 * time.Millisecond, 500 * time.Millisecond, 4 * time.Second} { // the messages
		synctest.Test(t, func(t *testing.T) {
			s := &subscription{conn: conn, log: slog.New(slog.DiscardHandler), window: 8}
			s.pull.subject = "next"
			type request struct {
				left    int
				expires time.Time
			}
			var known []request // to the server
			for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(every) {
				for len(known) > 0 && !time.Now().Before(known[0].expires) {
					s.pull.heard()
					s.pull.expired(strconv.Itoa(known[0].left))
					known = known[1:]
				}
				if len(known) > 0 { // a message comes, and is settled at once
					s.pull.heard()
					s.pull.got()
					if known[0].left--; known[0].left == 0 {
						known = known[1:]
					}
				}
				number, before := s.pull.number, s.pull.open
				s.requestMore()
				if s.pull.number > number && s.pull.number != 2 {
					known = append(known, request{s.pull.open - before, time.Now().Add(pullExpires)})
				}
			}
			left := 0
			for _, r := range known {
				left += r.left
			}
			if s.pull.number < 3 || s.pull.open != left {
				t.Errorf("a message every %v: after %d requests, the second of which was lost, %d messages are waited for; want the %d that the server knows of",
					every, s.pull.number, s.pull.open, left)
			}
		})
	}
}

// A durable with few places for requests, which its members share, dropped those that were too many.
func TestFewWaitingRequestsAllowOneOpen(t *testing.T) {
	for waiting, want := range map[int]bool{0: false, 1: true, 63: true, 64: false, 512: false} {
		var p pull
		p.obey(jetstream.ConsumerConfig{MaxWaiting: waiting, MaxRequestBatch: 3, MaxRequestExpires: time.Second})
		if p.single != want || p.maxBatch != 3 || p.maxExpires != time.Second {
			t.Errorf("MaxWaiting %d: single is %t, limits are %d and %v; want %t, 3 and 1s", waiting, p.single, p.maxBatch, p.maxExpires, want)
		}
	}
}

// Confirmations of acks, and words about requests that were given up, put off the silence in which the lost request is noticed.
func TestSignsOfLifeAreThoseOfOpenRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		in   *nats.Msg
		want bool
	}{
		"confirmation of an ack":           {&nats.Msg{Subject: "in.a1"}, false},
		"heartbeat of a forgotten request": {&nats.Msg{Subject: "in.1", Header: nats.Header{"Status": {"100"}}}, false},
		"heartbeat of an open one":         {&nats.Msg{Subject: "in.2", Header: nats.Header{"Status": {"100"}}}, true},
		"message":                          {delivered(1, 1, time.Now()), true},
	} {
		due := time.Now()
		s := &subscription{
			inbox: "in", kick: make(chan struct{}, 1), incoming: []*nats.Msg{tt.in}, bySeq: map[uint64]*hold{},
			unconfirmed: map[string]*hold{}, pull: pull{number: 2, forgotten: 1, open: 3, due: due},
		}
		s.takeIncoming(t.Context())
		if got := !s.pull.due.Equal(due); got != tt.want {
			t.Errorf("%s: it is a sign of life: %t, want %t", name, got, tt.want)
		}
	}
}

// The end of one fetch was taken for that of the next, which then left behind what the server was about to send; and what was
// said of a fetch too late lowered the count of what run had asked for.
func TestLateWordAboutAFetchIsIgnored(t *testing.T) {
	s := &subscription{
		conn: connected(t), log: slog.New(slog.DiscardHandler), inbox: "in", kick: make(chan struct{}, 1), fetched: map[uint64]*nats.Msg{},
	}
	s.pull.subject, s.pull.number = "next", 1
	s.receive(&nats.Msg{Subject: "in.1", Header: nats.Header{"Status": {"408"}}})
	fetched := make(chan error, 1)
	go func() { fetched <- s.fetch(t.Context(), 1) }()
	adaptertest.Eventually(t, func() (bool, string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.incoming) == 0, "the word about the first fetch was not taken"
	})
	s.receive(delivered(7, 1, time.Now()))
	if err := <-fetched; err != nil || len(s.fetched) != 1 {
		t.Errorf("fetch: %d messages, %v; want 1", len(s.fetched), err)
	}
	if s.pull.number != 2 || s.pull.is("1") || s.pull.is("2") {
		t.Errorf("words about fetches 1 and 2 of %d are of interest afterwards: %t, %t; want neither", s.pull.number, s.pull.is("1"), s.pull.is("2"))
	}
}

// A stream was restored from a backup: another message came with the number of a held one. It was taken for a redelivery, and the
// ack of the old one lost it.
func TestOtherMessageWithAHeldNumberIsNoRedelivery(t *testing.T) {
	looks := 0
	s := &subscription{
		config: &Config{}, log: slog.New(slog.DiscardHandler), window: 8, kick: make(chan struct{}, 1), seen: make(chan found, 1), bySeq: map[uint64]*hold{},
		lookup: func(context.Context) found {
			looks++
			return found{durable: &jetstream.ConsumerInfo{}}
		},
	}
	stored := time.Now()
	handOver := func() *hold {
		h := s.queue[0]
		s.held, s.queue = append(s.held, h), s.queue[1:]
		return h
	}
	s.add(t.Context(), delivered(5, 1, stored))
	s.add(t.Context(), delivered(6, 2, stored))
	old := handOver()
	s.add(t.Context(), delivered(5, 3, stored)) // again: it is the same
	if old.msg.Context().Err() != nil || old.reply != delivered(5, 3, stored).Reply || len(s.queue) != 1 || s.doubt {
		t.Fatalf("redelivery: context %v, reply %q, queue of %d, doubt %t; want it alive, the new reply, 1, none", old.msg.Context().Err(), old.reply, len(s.queue), s.doubt)
	}
	s.add(t.Context(), delivered(5, 4, stored.Add(time.Second)))
	if old.msg.Context().Err() == nil || len(s.held) != 0 || len(s.queue) != 2 {
		t.Fatalf("another message: context %v, %d held, %d in the queue; want it ended, 0, 2", old.msg.Context().Err(), len(s.held), len(s.queue))
	}
	// Until the server has told what has happened, nothing else is settled.
	six := handOver()
	six.msg.Ack()
	if !s.doubt || s.settle(six) {
		t.Fatalf("doubt %t; want it, and nothing settled", s.doubt)
	}
	s.held = nil
	if err := s.looked(<-s.seen); err != nil || s.doubt || looks != 1 {
		t.Errorf("after the look: %v, doubt %t, %d looks; want none, no doubt, 1", err, s.doubt, looks)
	}
	if got := brokers.DeliveryOf(s.queue[0].msg.Context()); !got.Time.Equal(stored.Add(time.Second)) {
		t.Errorf("the queue has the message of %v, want that of %v", got.Time, stored.Add(time.Second))
	}
}

// A stream was made again, and what came of the new one had numbers that were free: it was given the identity of other messages, and dropped as
// their duplicates. That the durable counts from the beginning tells.
func TestDeliveriesThatAreCountedAnewAreNotHandedOverBeforeALook(t *testing.T) {
	for last, want := range map[int]bool{0: false, 1: true, 2: true} {
		s := &subscription{
			config: &Config{}, kick: make(chan struct{}, 1), seen: make(chan found, 1), bySeq: map[uint64]*hold{},
			lookup: func(context.Context) found { return found{err: errOtherStream} }, lastSeq: uint64(last),
		}
		s.add(t.Context(), delivered(1, 1, time.Now()))
		if s.doubt != want || s.looking != want {
			t.Fatalf("delivery 1 after %d: doubt %t, looking %t; want %t", last, s.doubt, s.looking, want)
		}
		if !want {
			continue
		}
		if err := s.looked(<-s.seen); err == nil || !s.doubt || !s.remade {
			t.Errorf("after a look that has found another stream: %v, doubt %t, remade %t; want an error, and nothing settled", err, s.doubt, s.remade)
		}
	}
}

// That each request was refused, for what does not pass by itself, was told at level Debug only.
func TestRefusalsThatDoNotPassAreWarnings(t *testing.T) {
	for _, tt := range []struct {
		status, description string
		warns, looks        bool
	}{
		{"409", "Exceeded MaxRequestBatch of 2", true, true},
		{"400", "Bad Request - Priority Group missing", true, true},
		{"423", "Nats-Pin-Id mismatch", true, true},
		{"409", "Leadership Change", false, false},
		{"503", "", false, true},
	} {
		var logged bytes.Buffer
		s := &subscription{
			config: &Config{}, log: slog.New(slog.NewTextHandler(&logged, nil)), seen: make(chan found, 1),
			lookup: func(context.Context) found { return found{} }, pull: pull{number: 1},
		}
		s.aboutPull("1", &nats.Msg{Header: nats.Header{"Status": {tt.status}, "Description": {tt.description}}})
		if got := strings.Contains(logged.String(), "level=WARN"); got != tt.warns || s.looking != tt.looks {
			t.Errorf("%s %s: logged %q, looks: %t; want a warning: %t, a look: %t", tt.status, tt.description, logged.String(), s.looking, tt.warns, tt.looks)
		}
	}
}

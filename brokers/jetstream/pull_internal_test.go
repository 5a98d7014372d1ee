package jetstream

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A durable that allows one request at a time may refuse a second one, and each refusal puts off the next.
func TestWhenARequestIsSent(t *testing.T) {
	srv, err := server.NewServer(&server.Options{DontListen: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	conn, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	soon, long := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
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
		"one is open, and there is room":          {pull{open: 4, due: soon}, 2, 2},
		"one is open, and there is little room":   {pull{open: 4, due: soon}, 3, 0},
		"one is open, of a durable that has one":  {pull{open: 4, due: soon, single: true}, 2, 0},
		"a durable that has one has none":         {pull{single: true}, 2, 6},
		"a failure is not over":                   {pull{due: soon, backoff: time.Second}, 0, 0},
		"a failure is over":                       {pull{due: long, backoff: time.Second}, 0, 8},
		"the durable has limits":                  {pull{maxBatch: 3}, 0, 3},
		"the durable has limits, and one is open": {pull{maxBatch: 3, open: 3, due: soon}, 0, 3},
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

package jetstream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// Members that start at the same moment have all found nobody. Whatever comes of it, two must not lead.
func TestOneOfThoseThatStartTogetherLeads(t *testing.T) {
	server, err := natsserver.NewServer(&natsserver.Options{DontListen: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	server.Start()
	t.Cleanup(func() { server.Shutdown(); server.WaitForShutdown() })
	if !server.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server is not ready")
	}
	for _, tt := range []struct {
		ids  []string // in the order in which they come; empty: it runs
		lead string
	}{
		{[]string{"a"}, "a"},
		{[]string{"a", "b", "c"}, "a"},
		{[]string{"c", "b", "a"}, "a"},
		{[]string{"b", "c", "a"}, "a"},
		{[]string{"b", "", "a"}, ""},
		{[]string{"", "a"}, ""},
	} {
		var members []*presence
		for _, id := range tt.ids {
			conn, err := nats.Connect("", nats.InProcessServer(server))
			if err != nil {
				t.Fatal(err)
			}
			p, err := join(conn, "alive", id)
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, p)
		}
		for i, p := range members {
			if tt.ids[i] == tt.lead {
				continue
			}
			select {
			case <-p.lost:
			case <-time.After(10 * time.Second):
				t.Errorf("of %q, %q has not lost", tt.ids, tt.ids[i])
			}
		}
		for i, p := range members {
			if got, want := p.run(), tt.ids[i] == tt.lead; got != want {
				t.Errorf("of %q, %q may run: %v, want %v", tt.ids, tt.ids[i], got, want)
			}
			if err := p.conn.FlushTimeout(10 * time.Second); err != nil {
				t.Fatal(err)
			}
			p.conn.Close()
		}
	}
}

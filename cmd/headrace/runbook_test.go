package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/internal/testconsumer"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

var shBlock = regexp.MustCompile("(?s)\n```sh\n(.*?)```")

// Every command of the runbook is run as it is written, by a shell, one after the other, beside a service that runs.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	s := onJetStream(t)
	s.disaster()
	s.die(14, `{"order_id":"14","cents":4990}`, classify.VerdictPoison, "test", "order 14: a test order")
	s.parked("order-20", 2)
	s.parked("order-21", 2)
	s.delayed("order-22")
	s.deadRow()
	c := testconsumer.Start(t, s.broker, s.store, "billing.orders", "orders", "effects")
	await(t, "the live messages", func() bool { return len(c.Effects(t)) == 14 })
	// The disaster was one: they had failed, and nothing remembers them.
	s.forget()

	dir := t.TempDir()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(binary, filepath.Join(dir, "headrace")); err != nil {
		t.Fatal(err)
	}
	blocks := shBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 15 {
		t.Fatalf("the runbook has %d blocks of commands", len(blocks))
	}
	commands := 0
	for _, block := range blocks {
		cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", block[1])
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), commandEnv+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
		for k, v := range s.env {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s\n%v\n%s", block[1], err, out)
		}
		t.Logf("%s\n%s", block[1], out)
		commands += strings.Count(block[1], "headrace ")
	}
	// And it has helped: every order took effect once, order 5 twice, since it was forgotten.
	await(t, "the effects", func() bool {
		effects := c.Effects(t)
		return len(effects) == 15 && effects["e-5"] == 2 // the edited copy of order 13 is one of its own
	})
	for id, n := range c.Effects(t) {
		if want := map[bool]int{true: 2, false: 1}[id == "e-5"]; n != want {
			t.Errorf("%s took effect %d times, want %d", id, n, want)
		}
	}
	if commands < 25 {
		t.Errorf("%d commands were run", commands)
	}
}

// forget makes the service what it was before anything had succeeded.
func (s *site) forget() {
	s.t.Helper()
	for _, statement := range []string{"DELETE FROM effects", "DELETE FROM headrace_inbox WHERE id LIKE 'ce:/shop e-%'"} {
		if _, err := s.store.DB().ExecContext(s.t.Context(), statement); err != nil {
			s.t.Fatal(err)
		}
	}
}

// parked parks n messages of a key, the first of which failed.
func (s *site) parked(key string, n int) {
	s.t.Helper()
	store, err := parking.Wrap[*sql.Tx](s.store, "billing.orders", parking.Policy{})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range n {
		id := key + "-" + string(rune('a'+i))
		m, f := arrival(key, id, int64(100+i))
		if i == 0 {
			if err := store.Park(m.Context(), poison.Record{
				ID: "dead-" + id, Version: 1, Consumer: "billing.orders", Topic: "orders", Key: []byte(key), UUID: id, Payload: m.Payload, Metadata: m.Metadata,
				MessageID: f.ID, Deaths: 1, Verdict: classify.VerdictPoison, ErrorType: "validation", Error: "not yet shipped",
				FirstFailure: failedAt, LastFailure: failedAt,
			}); err != nil {
				s.t.Fatal(err)
			}
			continue
		}
		if err := inbox.Run(m.Context(), store, m, func(context.Context, *sql.Tx) error { s.t.Error("a parked message ran"); return nil }); err != nil {
			s.t.Fatal(err)
		}
	}
}

// delayed parks a key whose message asked to be handled in an hour.
func (s *site) delayed(key string) {
	s.t.Helper()
	store, err := parking.Wrap[*sql.Tx](s.store, "billing.orders", parking.Policy{})
	if err != nil {
		s.t.Fatal(err)
	}
	m, _ := arrival(key, key+"-a", 110)
	asked := &middleware.DelayedError{
		After: time.Hour, ErrorType: "http.503", Attempts: 1, FirstFailure: failedAt, LastFailure: failedAt, Err: errors.New("the carrier is away"),
	}
	record, _ := poison.Delayed(m.Context(), asked)
	if kept, err := store.Delay(m.Context(), record, asked.After); err != nil || !kept {
		s.t.Fatalf("Delay: %t, %v; want true", kept, err)
	}
}

// arrival is a message as it comes to the consumer.
func arrival(key, id string, offset int64) (*message.Message, *flight.Flight) {
	m := message.NewMessage(id, []byte("{}"))
	m.Metadata = message.Metadata{"ce_specversion": "1.0", "ce_id": id, "ce_source": "/shop", "ce_type": "order.placed", "ce_partitionkey": key}
	m.SetContext(brokers.WithDelivery(context.Background(), &brokers.Delivery{Topic: "orders", Partition: 0, Offset: offset, Key: []byte(key)}))
	f := flight.Ensure(m)
	f.Consumer, f.Topic, f.Key, f.ID = "billing.orders", "orders", key, "ce:/shop "+id
	return m, f
}

// deadRow leaves a row in the outbox that was given up.
func (s *site) deadRow() {
	s.t.Helper()
	ctx := s.t.Context()
	m := message.NewMessage("u", []byte("{}"))
	if _, err := s.store.Once(ctx, inbox.Claim{Consumer: "shop", ID: "1"}, func(ctx context.Context, tx *sql.Tx) error {
		return outbox.Add(ctx, s.store, tx, "refunds", m)
	}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.store.DB().ExecContext(ctx, `INSERT INTO headrace_outbox_dead (id, topic, bucket, msg_key, uuid, metadata, payload, created_at, died_at, error_type, error, blocks)
		SELECT id, topic, bucket, msg_key, uuid, metadata, payload, created_at, created_at, 'too_large', 'message is too large', 0 FROM headrace_outbox`); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.store.DB().ExecContext(ctx, "DELETE FROM headrace_outbox"); err != nil {
		s.t.Fatal(err)
	}
}

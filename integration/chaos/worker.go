package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// childVariable holds a process's spec as JSON.
const childVariable = "HEADRACE_CHAOS_CHILD"

type role string

const (
	producer role = "producer"
	relay    role = "relay"
	consumer role = "consumer"
)

const (
	eventType = "chaos.made"

	// keys of each pipeline.
	keys = 50

	// lease is how long a process that is not heard of keeps what it has: outbox leases, sessions, patience.
	lease = 3 * time.Second

	// drainLimit is the runtime's; a process that is stopped in order has that and exitGrace until it is gone.
	drainLimit = 15 * time.Second
	exitGrace  = 10 * time.Second
)

// Exit codes of a process, besides 0.
const (
	exitFailed   = 1 // it ran, and ended with an error
	exitNotBegun = 2 // it could not begin: a server is away, say
	exitOrphan   = 3
)

// sabotage is a way of breaking a consumer on purpose.
type sabotage string

const (
	ackFirst  sabotage = "ack-first" // the broker's message is acked before it is handled
	twice     sabotage = "dup"       // some effects are made twice
	skip      sabotage = "skip"      // some effects are not made
	unordered sabotage = "unordered" // lanes do not go by keys, and some events are slow
	condemn   sabotage = "condemn"   // some events are dead letters that could be handled
)

var sabotages = []sabotage{ackFirst, twice, skip, unordered, condemn}

// one of so many events is sabotaged.
const rarely = 7

// spec is what a process is told at its start.
type spec struct {
	Role     role   `json:"role"`
	Name     string `json:"name"`
	Place    string `json:"place"` // the same for those that follow one another
	Pipeline string `json:"pipeline"`
	Broker   string `json:"broker"` // the kind of its broker
	// Postgres and URL are the servers; Dial says where to connect instead of a server's own address.
	Postgres string            `json:"postgres"`
	URL      string            `json:"url"`
	Dial     map[string]string `json:"dial,omitempty"`
	// History is the file of a consumer's records. While the file Outage is there, handlers fail.
	History  string   `json:"history"`
	Outage   string   `json:"outage"`
	Sabotage sabotage `json:"sabotage,omitempty"`
	// Rate is how many events a producer makes each second; it waits while Backlog of them have no outcome.
	Rate    int    `json:"rate"`
	Backlog int64  `json:"backlog"`
	Seed    uint64 `json:"seed"`
}

func (s spec) schema() string { return "chaos_" + strings.ReplaceAll(s.Pipeline, "-", "_") }
func (s spec) topic() string  { return "chaos." + s.Pipeline }

// effects is the consumer that is judged, deadLetters that of its dead letters. Pipelines can share a server.
func (s spec) effects() string     { return s.topic() + ".effects" }
func (s spec) deadLetters() string { return s.topic() + ".dead-letters" }

// made is the event: the seq-th change of a key.
type made struct {
	Key    string `json:"key"`
	Seq    int64  `json:"seq"`
	Poison bool   `json:"poison,omitempty"` // it cannot be handled
}

func (m made) id() string { return m.Key + "/" + strconv.FormatInt(m.Seq, 10) }

// parseID is the inverse of id.
func parseID(id string) (m made, err error) {
	key, seq, _ := strings.Cut(id, "/")
	m.Key = key
	if m.Seq, err = strconv.ParseInt(seq, 10, 64); err != nil {
		return m, fmt.Errorf("event id is %q: %w", id, err)
	}
	return m, nil
}

// child runs the part of a process and exits, if the program is one.
func child() {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	w := &worker{}
	err := w.run(text)
	switch {
	case err == nil:
		os.Exit(0)
	case w.began:
		slog.Error("the process ends", "error", err)
		os.Exit(exitFailed)
	default:
		slog.Error("the process cannot begin", "error", err)
		os.Exit(exitNotBegun)
	}
}

// worker is a process of a pipeline, seen from inside.
type worker struct {
	spec
	pool  *pgxpool.Pool
	began bool // what was needed at the start was there
}

func (w *worker) run(text string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := json.Unmarshal([]byte(text), &w.spec); err != nil {
		return fmt.Errorf("%s is %q: %w", childVariable, text, err)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", w.Name))
	slog.Info("the process begins")
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // it ends with the controller, and so do we
		os.Exit(exitOrphan)
	}()
	config, err := pgxpool.ParseConfig(w.Postgres)
	if err != nil {
		return err
	}
	config.MaxConns = map[role]int32{producer: 2, relay: 4, consumer: 6}[w.Role]
	config.ConnConfig.RuntimeParams["application_name"] = w.Name
	config.ConnConfig.RuntimeParams["search_path"] = searchPath
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer w.pool.Close()
	switch w.Role {
	case producer:
		err = w.produce(ctx)
	case relay:
		err = w.relay(ctx)
	case consumer:
		err = w.consume(ctx)
	default:
		err = fmt.Errorf("role is %q", w.Role)
	}
	slog.Info("the process ends in order", "error", err)
	return err
}

package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// childVariable holds a process's spec as JSON.
const childVariable = "HEADRACE_CRASH_CHILD"

type role string

const (
	producer role = "producer"
	relay    role = "relay"
	consumer role = "consumer"
)

// point is a moment of a process's work at which it can be made to die by SIGKILL, which a kill from outside hits
// rarely.
type point string

const (
	added     point = "added"     // a producer, before COMMIT
	produced  point = "produced"  // a producer, after it
	publish   point = "publish"   // a relay, before the broker is called
	published point = "published" // a relay, between the confirmation and the delete
	effect    point = "effect"    // a consumer, between the effect and COMMIT
	committed point = "committed" // a consumer, between COMMIT and the ack
)

var points = []point{added, produced, publish, published, effect, committed}

// handling is how a consumer handles.
type handling string

const (
	plain   handling = "HandleTx"
	grouped handling = "HandleTx in groups"
	batched handling = "HandleBatch"
)

// handlings are those of the first consumer, the second and so on.
var handlings = []handling{plain, grouped, batched}

// spec is what a process is told at its start.
type spec struct {
	Role    role          `json:"role"`
	Name    string        `json:"name"`
	URL     string        `json:"url"`
	History string        `json:"history"` // the file of its records
	Keys    int           `json:"keys"`
	Seed    uint64        `json:"seed"`
	Lease   time.Duration `json:"lease"`
	Handles handling      `json:"handles"` // a consumer
	Paused  bool          `json:"paused"`  // a producer that waits for "go"
}

// child is a process of the system, seen from inside.
type child struct {
	spec
	pool *pgxpool.Pool
	// armed is the point at which the process dies.
	armed  atomic.Pointer[point]
	paused atomic.Bool
}

// Child runs the part of a process of the system and exits, if the program is one. Programs that call [Run] call
// it first.
func Child() {
	text, ok := os.LookupEnv(childVariable)
	if !ok {
		return
	}
	if err := runChild(text); err != nil {
		slog.Error("the process ends", "error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runChild(text string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := &child{}
	if err := json.Unmarshal([]byte(text), &c.spec); err != nil {
		return fmt.Errorf("%s is %q: %w", childVariable, text, err)
	}
	c.paused.Store(c.Paused)
	go c.obey()
	config, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return err
	}
	config.MaxConns = 12
	config.ConnConfig.RuntimeParams["application_name"] = application
	c.pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer c.pool.Close()
	switch c.Role {
	case producer:
		return c.produce(ctx)
	case relay:
		return c.relay(ctx)
	case consumer:
		return c.consume(ctx)
	}
	return fmt.Errorf("role is %q", c.Role)
}

// obey reads the runner's commands: pause, go, or a point to die at. Their end is the runner's, and ours.
func (c *child) obey() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch word := strings.TrimSpace(in.Text()); word {
		case "pause":
			c.paused.Store(true)
		case "go":
			c.paused.Store(false)
		default:
			at := point(word)
			c.armed.Store(&at)
		}
	}
	os.Exit(3)
}

// pass dies at p if the runner wants it.
func (c *child) pass(p point) {
	if at := c.armed.Load(); at != nil && *at == p {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // it does not return
		select {}
	}
}

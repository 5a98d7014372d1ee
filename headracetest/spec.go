package headracetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/headracetest/internal/lab"
	"github.com/headrace-go/headrace/outbox"
	"github.com/headrace-go/headrace/runtime"
)

// Spec describes a service and one kind of event that it handles. Service and Topic are required, by [Consumer] also Event and one
// of State and Publishes. A guarantee whose field is not set is not checked, which the test's log says by name.
//
// The functions are called from the test's goroutine but for State, which may also be called from a handler's, between its
// attempts.
type Spec struct {
	// Service wires the service as its main does, on the broker that it is given, and does not run it. It is called for each
	// process: several times in one test, and twice for two processes at once. All of them have the same database.
	Service func(brokers.Broker) (*runtime.Runtime, error)

	// Topic is where the events are published.
	Topic string

	// Event makes the n-th event about key, n from 1 up, with an id of its own as event.New gives it. key is a new UUID in each
	// check, so that checks do not see each other's effects. ctx has a source for event.New. Events of the same n differ in the
	// key alone.
	Event func(ctx context.Context, key string, n int) (*message.Message, error)

	// State tells what the events about key have led to, as text: the balance, the row, a count. After the same events it is the
	// same for every key, but for the key itself: leave out generated ids and times. nil: effects are seen by Publishes alone.
	State func(ctx context.Context, key string) (string, error)

	// Publishes are the types of what one event leads to; of a message that is no CloudEvent, its topic.
	Publishes []string

	// Outbox is the store's outbox where Service does not relay it (runtime.Runtime.Relay), as when main does. The kit relays
	// it then, all of it: no other service may use the same tables.
	Outbox outbox.Source

	// Versioned says that n is the version of what key names: an older one that comes after a newer one changes nothing.
	Versioned bool

	// Old makes the event about key as producers of before send it, one message for each older schema version, in the same
	// order each time.
	Old func(ctx context.Context, key string) ([]*message.Message, error)

	// Poison makes an event about key that is well formed and that the handler refuses for good.
	Poison func(ctx context.Context, key string) (*message.Message, error)

	// Schemas are JSON Schemas (draft 2020-12, or what their $schema says), by event type: of Event, and of what is published.
	// They refer to each other by $id; nothing is loaded from elsewhere.
	Schemas map[string][]byte

	// Waive names guarantees that the service does not give, each with the reason.
	Waive map[Guarantee]string

	// Strict makes a failure of what is not checked and not waived.
	Strict bool

	// Limit bounds each wait: for a start, a stop, and for messages to be settled. Default 10 s.
	Limit time.Duration
}

const defaultLimit = 10 * time.Second

// Guarantee is one promise that [Consumer] checks, in words. "One effect" is that after the same event was delivered once.
type Guarantee string

// The guarantees.
const (
	GuaranteeEffect     Guarantee = "an event takes effect"
	GuaranteeOnce       Guarantee = "the same event delivered twice has one effect"
	GuaranteeTogether   Guarantee = "the same event handled by two processes at once has one effect"
	GuaranteeVersion    Guarantee = "an older version after a newer does not overwrite"
	GuaranteeKillBefore Guarantee = "a kill between effect and commit loses nothing and doubles nothing"
	GuaranteeKillAfter  Guarantee = "a kill between commit and ack reprocesses safely"
	GuaranteeRetry      Guarantee = "a failed attempt leaves nothing that its retry doubles"
	GuaranteeGarbage    Guarantee = "an undecodable message dead-letters and the next one is processed"
	GuaranteePoison     Guarantee = "a refused event dead-letters and the next one is processed"
	GuaranteeOldSchema  Guarantee = "an event of an older schema is handled"
	GuaranteeOutbox     Guarantee = "the outgoing events are published after the commit"
	GuaranteeRollback   Guarantee = "the outgoing events are absent after a rollback"
	GuaranteeSchema     Guarantee = "the payloads validate against their JSON Schemas"
)

// check returns everything that is wrong with what Run needs, and with what Consumer needs.
func (s *Spec) check(forConsumer bool) error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("headracetest.Spec.%s is %v: want %s", field, value, want))
	}
	if s.Service == nil {
		bad("Service", "nil", "the function that wires the service")
	}
	if s.Topic == "" {
		bad("Topic", `""`, "the topic that the events are published to")
	}
	if s.Limit < 0 {
		bad("Limit", s.Limit, "a duration above zero, or 0 for the default")
	}
	if !forConsumer {
		return errors.Join(errs...)
	}
	if s.Event == nil {
		bad("Event", "nil", "the function that makes an event")
	}
	if s.State == nil && len(s.Publishes) == 0 {
		errs = append(errs, errors.New("headracetest.Spec.State and Spec.Publishes are not set: nothing tells an effect"))
	}
	for g, reason := range s.Waive {
		if g == GuaranteeEffect {
			errs = append(errs, fmt.Errorf("headracetest.Spec.Waive has %q: nothing else can be checked without it", g))
		}
		if !slices.ContainsFunc(checks, func(c check) bool { return c.guarantee == g }) {
			bad("Waive", fmt.Sprintf("%q", g), "one of the guarantees")
		}
		if strings.TrimSpace(reason) == "" {
			errs = append(errs, fmt.Errorf("headracetest.Spec.Waive[%q] is empty: give the reason", g))
		}
	}
	return errors.Join(errs...)
}

func (s *Spec) lab() lab.Config {
	limit := s.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	return lab.Config{Service: s.Service, Topic: s.Topic, Outbox: s.Outbox, Limit: limit}
}

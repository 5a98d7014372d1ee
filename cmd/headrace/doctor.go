package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/inbox"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
)

// checkup is what doctor is told of a service: the settings of runtime.Config and its consumers that can be wrong together. It is
// read from JSON; times are written as Go writes them ("30s", "720h").
type checkup struct {
	Broker              string       `json:"broker"`
	Database            string       `json:"database"`
	Adapter             string       `json:"adapter"` // a stock Watermill adapter, by its name; "": Headrace's own
	DeadLetterTopic     string       `json:"dead_letter_topic"`
	BrokerRetention     duration     `json:"broker_retention"` // where the broker cannot be asked
	InboxRetention      duration     `json:"inbox_retention"`
	DeadLetterRetention duration     `json:"dead_letter_retention"`
	MaxOpenConns        int          `json:"max_open_conns"` // of the service's pool
	Consumers           []consumerOf `json:"consumers"`
}

type consumerOf struct {
	Name            string   `json:"name"`
	Topic           string   `json:"topic"`
	Inbox           *bool    `json:"inbox"` // default: true if there is a database
	Timeout         duration `json:"timeout"`
	RetryMaxElapsed duration `json:"retry_max_elapsed"`
	RetryMaxDelay   duration `json:"retry_max_delay"`
	RetryAttempts   int      `json:"retry_attempts"`
	Concurrency     int      `json:"concurrency"`
}

// duration is a time in JSON.
type duration time.Duration

func (d *duration) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf(`%s: want a time in quotes, such as "30s"`, b)
	}
	v, err := parseAgo(text)
	if err != nil {
		return fmt.Errorf("%q: want a time, such as 30s, 720h or 30d", text)
	}
	*d = duration(v)
	return nil
}

// The outcomes of a check.
const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
)

// finding is the outcome of one check, as JSON.
type finding struct {
	Status  string `json:"status"`
	Check   string `json:"check"`
	Subject string `json:"subject"`
	Message string `json:"message"`
}

// doctor collects findings.
type doctor struct {
	findings []finding
	checkup  checkup
	broker   *broker
	db       *database
}

func (d *doctor) found(status, check, subject, format string, args ...any) {
	d.findings = append(d.findings, finding{status, check, subject, fmt.Sprintf(format, args...)})
}

func (a *app) doctorCommand() *cobra.Command {
	var file, adapter string
	var consumers []string
	var inboxRetention, deadLetterRetention time.Duration
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check a service's configuration, its topics and its tables",
		Long: `Check a service's configuration, its topics and its tables. It changes nothing.

--config names a JSON file:

  {"broker": "kafka://localhost:9092", "database": "postgres://localhost/billing",
   "inbox_retention": "30d", "dead_letter_retention": "7d", "max_open_conns": 20,
   "consumers": [{"name": "billing.orders", "topic": "orders", "timeout": "30s", "retry_max_elapsed": "2s", "concurrency": 16}]}

"adapter" names a stock Watermill adapter (watermill-kafka, watermill-nats, watermill-amqp, watermill-sql,
watermill-redisstream, gochannel) that the service uses instead of Headrace's own.`,
		Args: args(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&file, "config", "", "JSON file; - is the standard input. Flags come first")
	flags.StringSliceVar(&consumers, "consumer", nil, "NAME=TOPIC")
	flags.StringVar(&adapter, "adapter", "", "a stock Watermill adapter that is used")
	flags.DurationVar(&inboxRetention, "inbox-retention", 0, "how long the inbox remembers (default 720h)")
	flags.DurationVar(&deadLetterRetention, "dead-letter-retention", 0, "how long after its failure a dead letter may be redriven (default 168h)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		d := &doctor{}
		if file != "" {
			if d.checkup, err = a.readCheckup(file); err != nil {
				return err
			}
		}
		c := &d.checkup
		for _, text := range consumers {
			name, topic, ok := strings.Cut(text, "=")
			if !ok {
				return usage("--consumer is %q: want NAME=TOPIC", text)
			}
			c.Consumers = append(c.Consumers, consumerOf{Name: name, Topic: topic})
		}
		a.brokerURL, a.databaseURL, c.Adapter = first(a.brokerURL, c.Broker), first(a.databaseURL, c.Database), first(adapter, c.Adapter)
		if inboxRetention != 0 {
			c.InboxRetention = duration(inboxRetention)
		}
		if deadLetterRetention != 0 {
			c.DeadLetterRetention = duration(deadLetterRetention)
		}
		if c.InboxRetention == 0 {
			c.InboxRetention = duration(inbox.DefaultRetention)
		}
		if c.DeadLetterRetention == 0 {
			c.DeadLetterRetention = duration(7 * 24 * time.Hour)
		}
		if a.brokerURL == "" && a.databaseURL == "" && c.Adapter == "" && len(c.Consumers) == 0 {
			return usage("doctor: nothing to check: give --config, or --broker, --database and --consumer, or --adapter")
		}
		d.examine(cmd.Context(), a)
		if d.broker != nil {
			defer closing(d.broker, &err)
		}
		defer closing(d.db, &err)
		if err := a.showFindings(d.findings); err != nil {
			return err
		}
		if n := count(d.findings, statusFail); n > 0 {
			return exit(exitUnwell, "%s failed", plural(n, "check"))
		}
		return cmd.Context().Err()
	}
	return cmd
}

func (a *app) readCheckup(file string) (c checkup, err error) {
	var text []byte
	if file == "-" {
		text, err = io.ReadAll(a.in)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return c, usage("--config: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, usage("--config %s: %w", file, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return c, usage("--config %s: there is more than one JSON document in it", file)
	}
	return c, nil
}

func (d *doctor) examine(ctx context.Context, a *app) {
	d.examineBroker(ctx, a)
	d.examineDatabase(ctx, a)
	d.examineAdapter()
	for i := range d.checkup.Consumers {
		d.examineConsumer(ctx, &d.checkup.Consumers[i])
	}
	d.examineFanOut()
	d.examineDeadLetters(ctx)
	d.examineOutbox(ctx)
}

func (d *doctor) examineBroker(ctx context.Context, a *app) {
	if a.brokerURL == "" {
		d.found(statusWarn, "broker", "-", "none was named: topics, retention and patience are not checked")
		return
	}
	name := redacted(a.brokerURL)
	b, err := a.openBroker(ctx)
	if err != nil {
		d.found(statusFail, "broker", name, "%v", err)
		return
	}
	d.broker = b
	d.found(statusOK, "broker", name, "it answers: %s", b.Capabilities().System)
}

func (d *doctor) examineDatabase(ctx context.Context, a *app) {
	if a.databaseURL == "" {
		d.found(statusWarn, "database", "-", "none was named: tables, dead letters and the outbox are not checked")
		return
	}
	name := redacted(a.databaseURL)
	db, err := a.connect()
	if err == nil {
		d.db = db
		err = db.db.PingContext(ctx)
	}
	if err != nil {
		d.found(statusFail, "database", name, "%v", err)
		return
	}
	if err := db.Check(ctx); err != nil {
		d.found(statusFail, "tables", name, "%v", err)
		return
	}
	d.found(statusOK, "tables", name, "they are those of this program")
}

var consumerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

func (d *doctor) examineConsumer(ctx context.Context, c *consumerOf) {
	if !consumerName.MatchString(c.Name) {
		d.found(statusFail, "name", c.Name, "want 1 to 128 letters, digits, '.', '_' or '-'")
	}
	if c.Topic == "" {
		d.found(statusFail, "topic", c.Name, "it reads no topic")
		return
	}
	if slices.ContainsFunc(d.checkup.Consumers, func(o consumerOf) bool { return o.Name == c.Name && o.Topic != c.Topic }) {
		d.found(statusFail, "name", c.Name, "two consumers have this name: they would share an inbox and a group")
	}
	retry := middleware.RetryConfig{
		MaxElapsed: time.Duration(c.RetryMaxElapsed), MaxDelay: time.Duration(c.RetryMaxDelay), MaxAttempts: c.RetryAttempts,
	}
	if err := retry.Validate(); err != nil {
		d.found(statusFail, "retry", c.Name, "%v", err)
		return
	}
	d.examineTopics(ctx, c)
	d.examinePatience(c, retry.Budget())
	d.examineDeliveries(c, retry.Attempts())
	d.examineRetention(ctx, c, retry.Budget())
	if n := d.checkup.MaxOpenConns; n > 0 && c.Concurrency >= n {
		d.found(statusFail, "pool", c.Name, "concurrency is %d and the pool has %d connections: handlers would wait for each other's; want at most %d", c.Concurrency, n, max(n-1, 1))
	}
}

// examineTopics looks whether there are the topics that c reads and writes.
func (d *doctor) examineTopics(ctx context.Context, c *consumerOf) {
	if d.broker == nil || d.broker.reader == nil && d.broker.exists == nil {
		return
	}
	deadTopic := first(strings.ReplaceAll(d.checkup.DeadLetterTopic, "{topic}", c.Topic), c.Topic+poison.Suffix)
	for _, t := range []struct{ topic, missing, status string }{
		{c.Topic, "there is no such topic", statusFail},
		{deadTopic, "there is no such topic yet; the first dead letter makes it, if the service may", statusWarn},
		{poison.RedriveTopic(c.Name), "there is no such topic yet; the service makes it when it starts, if it may, and nothing can be redriven before", statusWarn},
	} {
		size, err := d.broker.look(ctx, t.topic)
		switch {
		case errors.Is(err, brokers.ErrNoTopic):
			d.found(t.status, "topic", t.topic, "%s", t.missing)
		case err != nil:
			d.found(statusFail, "topic", t.topic, "%v", err)
		default:
			d.found(statusOK, "topic", t.topic, "it is there%s", size)
		}
	}
}

// look tells what is known of a topic's size. Its error wraps brokers.ErrNoTopic if there is none.
func (b *broker) look(ctx context.Context, topic string) (size string, err error) {
	if b.reader == nil {
		there, err := b.exists(ctx, topic)
		if err == nil && !there {
			err = brokers.ErrNoTopic
		}
		return "", err
	}
	ends, err := b.reader.Ends(ctx, topic)
	return ", with " + plural(len(ends), "partition"), err
}

// examinePatience compares what a message can take with how long the broker waits for it, as the runtime does at its start.
func (d *doctor) examinePatience(c *consumerOf, budget time.Duration) {
	if d.broker == nil {
		return
	}
	caps := d.broker.Capabilities()
	patience := caps.Patience
	if caps.ExtendsPatience {
		patience = caps.PatienceLimit * 8 / 10
	}
	timeout := time.Duration(c.Timeout)
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	switch {
	case patience == 0:
		d.found(statusOK, "patience", c.Name, "the broker waits, or is kept waiting, for as long as a message takes")
	case budget >= patience:
		d.found(statusFail, "patience", c.Name, "retries can hold a message for %v, but the broker delivers it again after %v", budget, patience)
	case timeout >= patience:
		d.found(statusFail, "patience", c.Name, "the timeout is %v, but the broker delivers a message again after %v", timeout, patience)
	default:
		d.found(statusOK, "patience", c.Name, "retries take %v at most, and the broker waits for %v", budget, patience)
	}
}

// examineDeliveries compares the attempts of a message with the deliveries after which the broker may take it away.
func (d *doctor) examineDeliveries(c *consumerOf, attempts int) {
	if d.broker == nil {
		return
	}
	switch limit := d.broker.Capabilities().DeliveryLimit; {
	case limit == 0:
		d.found(statusOK, "deliveries", c.Name, "the broker takes no message away by itself")
	case attempts > limit:
		d.found(statusWarn, "deliveries", c.Name, "a message has %d attempts, but the broker may take it away after %d deliveries", attempts, limit)
	default:
		d.found(statusOK, "deliveries", c.Name, "a message has %d attempts, and the broker takes none away before %d deliveries", attempts, limit)
	}
}

// examineRetention compares the inbox's memory with the oldest redelivery.
func (d *doctor) examineRetention(ctx context.Context, c *consumerOf, budget time.Duration) {
	if c.Inbox != nil && !*c.Inbox || c.Inbox == nil && d.db == nil {
		return
	}
	kept := time.Duration(d.checkup.BrokerRetention)
	forEver := false
	if kept == 0 && d.broker != nil {
		var err error
		var known bool
		if kept, known, err = d.broker.retention(ctx, c.Topic); err != nil {
			d.found(statusWarn, "retention", c.Name, "how long the broker keeps %s is not known: %v", c.Topic, err)
		}
		if forEver = known && kept == 0; !known {
			kept = d.broker.Capabilities().Retention
		}
	}
	horizon := inbox.Horizon{Broker: kept, Retry: budget, DeadLetters: time.Duration(d.checkup.DeadLetterRetention)}
	remembers := time.Duration(d.checkup.InboxRetention)
	if err := horizon.Check(remembers); err != nil {
		d.found(statusFail, "retention", c.Name, "%v", err)
		return
	}
	if kept == 0 {
		keeps := "the broker does not tell how long it keeps " + c.Topic
		if forEver {
			keeps = "the broker keeps " + c.Topic + " for ever"
		}
		d.found(statusWarn, "retention", c.Name, "%s: a replay of what is older than the inbox's %v takes effect again", keeps, remembers)
		return
	}
	d.found(statusOK, "retention", c.Name, "the inbox remembers for %v, the oldest redelivery is %v old", remembers, horizon.Total())
}

func (d *doctor) examineFanOut() {
	if d.broker == nil || d.broker.Capabilities().FanOut {
		return
	}
	readers := map[string]string{}
	for _, c := range d.checkup.Consumers {
		if other := readers[c.Topic]; other != "" {
			d.found(statusFail, "fan-out", c.Name, "it reads %s as %s does, but the broker does not give each of them every message", c.Topic, other)
		}
		readers[c.Topic] = c.Name
	}
}

// examineDeadLetters tells of dead letters that nobody works.
func (d *doctor) examineDeadLetters(ctx context.Context) {
	if d.db == nil || count(d.findings, statusOK, "tables") == 0 {
		return
	}
	store, err := deadletter.NewStore(d.db.DeadLetters(), deadletter.Protection{})
	if err != nil {
		d.found(statusFail, "dead letters", "-", "%v", err)
		return
	}
	f := deadletter.Filter{States: []deadletter.State{deadletter.New}}
	counts, err := store.Count(ctx, f)
	if err != nil {
		d.found(statusFail, "dead letters", "-", "%v", err)
		return
	}
	oldest, _, err := store.List(ctx, f, false, deadletter.Cursor{}, 1)
	if err != nil {
		d.found(statusFail, "dead letters", "-", "%v", err)
		return
	}
	if len(oldest) == 0 {
		d.found(statusOK, "dead letters", "-", "none waits for somebody")
		return
	}
	limit := time.Duration(d.checkup.DeadLetterRetention)
	age := time.Since(oldest[0].FailedAt()).Truncate(time.Second)
	status, hint := statusWarn, "see headrace dlt groups"
	if age > limit {
		status = statusFail
		hint = fmt.Sprintf("the oldest failed %v ago, more than the %v within which the inbox would recognise a copy", age, limit)
	}
	d.found(status, "dead letters", "-", "%s wait for somebody: %s", plural(total(counts), "dead letter"), hint)
}

func (d *doctor) examineOutbox(ctx context.Context) {
	if d.db == nil || count(d.findings, statusOK, "tables") == 0 {
		return
	}
	backlog, err := d.db.Outbox().Backlog(ctx, 100_000)
	switch {
	case err != nil:
		d.found(statusFail, "outbox", "-", "%v", err)
	case backlog.Dead > 0:
		d.found(statusWarn, "outbox", "-", "%s given up: see headrace outbox ls", plural(int64(backlog.Dead), "row"))
	default:
		d.found(statusOK, "outbox", "-", "%s wait, none was given up", plural(int64(backlog.Rows), "row"))
	}
}

// count tells how many findings have a status, and one of the checks if any are named.
func count(findings []finding, status string, checks ...string) int {
	n := 0
	for _, f := range findings {
		if f.Status == status && (len(checks) == 0 || slices.Contains(checks, f.Check)) {
			n++
		}
	}
	return n
}

func (a *app) showFindings(findings []finding) error {
	if a.isJSON() {
		return a.writeJSON(map[string]any{"ok": count(findings, statusFail) == 0, "findings": findings})
	}
	if err := a.table("STATUS\tCHECK\tSUBJECT\tFINDING", len(findings), func(i int) []string {
		f := &findings[i]
		return []string{f.Status, f.Check, f.Subject, f.Message}
	}); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "%d ok, %s, %d failed\n", count(findings, statusOK), plural(count(findings, statusWarn), "warning"), count(findings, statusFail))
	return nil
}

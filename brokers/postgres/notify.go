package postgres

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// debounce is the least time between two NOTIFY of one process.
	debounce = 10 * time.Millisecond

	// hints is how often subscriptions are woken for a message in a transaction whose commit we do not see: after
	// 10, 40, 160 and 640 ms.
	hints = 4

	// maxNotices bounds the topics that wait for their NOTIFY. What is beyond is found by polling.
	maxNotices = 1_000
)

// The first byte of a notification; the topic follows.
const (
	noticeWake  = "w"
	noticeShare = "s"
)

// notice is one topic that others are to be told of.
type notice struct {
	at   time.Time
	wait time.Duration // until the next hint after this one
	left int
}

// notifier sends NOTIFY, in transactions of its own, since one in a business transaction would serialise the commits
// of all; and it listens. Both begin when they are needed.
type notifier struct {
	broker  *Broker
	channel string

	mu        sync.Mutex
	notices   map[string]notice // by first byte and topic
	sending   bool
	listening bool
	kick      chan struct{}
}

func newNotifier(b *Broker) *notifier {
	channel := b.names.Prefix + "broker"
	if b.names.Schema != "" {
		h := fnv.New64a()
		_, _ = h.Write([]byte(b.names.Schema)) // gives no error
		channel = fmt.Sprintf("%s_%016x", channel, h.Sum64())
	}
	return &notifier{broker: b, channel: channel, notices: make(map[string]notice), kick: make(chan struct{}, 1)}
}

func (n *notifier) send(topic string, times int) {
	n.add(noticeWake+topic, times)
}

func (n *notifier) sendShare(topic string) {
	if !n.broker.config.NoNotify {
		n.add(noticeShare+topic, 1)
	}
}

func (n *notifier) add(what string, times int) {
	if n.broker.config.NoNotify && times == 1 {
		return // the caller has told this process
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	before, there := n.notices[what]
	if !there && len(n.notices) >= maxNotices {
		return
	}
	next := notice{at: time.Now().Add(debounce), wait: 3 * debounce, left: max(times, before.left)}
	if there && before.at.Before(next.at) {
		next.at = before.at
	}
	n.notices[what] = next
	if !n.sending {
		n.sending = n.broker.start(n.run)
		return
	}
	if !there {
		select {
		case n.kick <- struct{}{}:
		default:
		}
	}
}

// close sends at once what waits, as far as it is worth it: that the subscriptions of this process have ended.
func (n *notifier) close() {
	n.mu.Lock()
	due := make([]string, 0, len(n.notices))
	for what := range n.notices {
		due = append(due, what)
	}
	clear(n.notices)
	n.mu.Unlock()
	if len(due) > 0 && !n.broker.config.NoNotify {
		n.notify(due)
	}
}

// idle is how long the sender waits for more before it ends.
const idle = time.Second

func (n *notifier) run() {
	timer := time.NewTimer(debounce)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-n.kick:
		case <-n.broker.live.Done():
			return
		}
		due, next := n.due(time.Now())
		if len(due) > 0 {
			for _, what := range due {
				if topic, ok := strings.CutPrefix(what, noticeWake); ok {
					n.broker.wakeLocal(topic)
				}
			}
			if !n.broker.config.NoNotify {
				n.notify(due)
			}
			timer.Reset(debounce)
			continue
		}
		if next.IsZero() {
			timer.Reset(idle)
			continue
		}
		timer.Reset(time.Until(next))
	}
}

// due takes what is to be sent now and tells when the next is.
func (n *notifier) due(now time.Time) (due []string, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for what, e := range n.notices {
		if now.Before(e.at) {
			if next.IsZero() || e.at.Before(next) {
				next = e.at
			}
			continue
		}
		due = append(due, what)
		if e.left--; e.left <= 0 {
			delete(n.notices, what)
			continue
		}
		e.at, e.wait = now.Add(e.wait), 4*e.wait
		n.notices[what] = e
	}
	return due, next
}

// notify sends what is due. A failure is nobody's: polling finds all.
func (n *notifier) notify(due []string) {
	ctx, cancel := context.WithTimeout(n.broker.ctx, statementTimeout)
	defer cancel()
	// Nothing is lost if this commit is, so it waits for no disk.
	_, err := n.broker.pool.Exec(ctx,
		"SELECT set_config('synchronous_commit', 'off', true), (SELECT count(pg_notify($1, w)) FROM unnest($2::text[]) w)", n.channel, due)
	if err != nil && ctx.Err() == nil {
		n.broker.log.DebugContext(ctx, "postgres: notify", "error", err)
	}
}

// listen makes sure that the broker listens.
func (n *notifier) listen() {
	if n.broker.config.NoNotify {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.listening {
		n.listening = n.broker.start(n.listenLoop)
	}
}

func (n *notifier) listenLoop() {
	ctx := n.broker.live
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		began := time.Now()
		err := n.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		n.broker.log.DebugContext(ctx, "postgres: listen", "error", err)
		if time.Since(began) > time.Minute {
			wait = 100 * time.Millisecond
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// receive listens on a connection of its own until that fails.
func (n *notifier) receive(ctx context.Context) error {
	poolConfig := n.broker.pool.Config()
	config := poolConfig.ConnConfig
	if poolConfig.BeforeConnect != nil {
		if err := poolConfig.BeforeConnect(ctx, config); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.broker.config.CloseTimeout)
		defer cancel()
		_ = conn.Close(ctx) // the connection is given up
		select {
		case <-conn.PgConn().CleanupDone(): // a wait that was cancelled is ended by a goroutine of pgx's
		case <-ctx.Done():
		}
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{n.channel}.Sanitize()); err != nil {
		return err
	}
	n.wakeAll() // for what came before
	for {
		got, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if topic, ok := strings.CutPrefix(got.Payload, noticeWake); ok {
			n.broker.wakeLocal(topic)
		} else if topic, ok := strings.CutPrefix(got.Payload, noticeShare); ok {
			n.broker.shareLocal(topic)
		}
	}
}

func (n *notifier) wakeAll() {
	n.broker.mu.Lock()
	defer n.broker.mu.Unlock()
	for _, subs := range n.broker.active {
		for s := range subs {
			s.wake()
		}
	}
}

package redisstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// memberPrefix begins the names of our members in a group: others' are never taken for dead.
	memberPrefix = "headrace."
	// releasedName is the member that has what was given back. It is nobody, so anybody may claim from it.
	releasedName = "headrace:released"
	// maxInherit bounds what one call of inheritScript moves.
	maxInherit = 1000
)

// membership is a member of a group: its name, and the key that says that it lives.
type membership struct {
	config *Config
	client redis.UniversalClient
	topic  string
	group  string
	name   string
}

func newMembership(config *Config, topic, group, name string) *membership {
	return &membership{config: config, client: config.Client, topic: topic, group: group, name: name}
}

// aliveKey is the key of a member's life. In a cluster it has the stream's slot.
func (m *membership) aliveKey(name string) string {
	tag := m.topic
	if _, rest, ok := strings.Cut(m.topic, "{"); ok {
		if inner, _, ok := strings.Cut(rest, "}"); ok && inner != "" {
			tag = inner
		}
	}
	return fmt.Sprintf("headrace:alive:{%s}:%s:%s:%s", tag, m.topic, m.group, name)
}

// join makes the stream, the group and the member's key, and gives back what an earlier member of this name had.
func (m *membership) join(ctx context.Context) error {
	if err := m.makeGroup(ctx); err != nil {
		return err
	}
	if err := m.client.Set(ctx, m.aliveKey(m.name), 1, m.config.Patience).Err(); err != nil {
		return fmt.Errorf("join the group: %w", err)
	}
	for {
		n, err := inheritScript.Run(ctx, m.client, []string{m.topic}, m.group, m.name, releasedName, maxInherit).Int()
		if err != nil {
			return fmt.Errorf("give back what an earlier member %q had: %w", m.name, err)
		}
		if n < maxInherit {
			return nil
		}
	}
}

func (m *membership) makeGroup(ctx context.Context) error {
	err := m.client.XGroupCreateMkStream(ctx, m.topic, m.group, "0").Err()
	if err != nil && !strings.HasPrefix(err.Error(), "BUSYGROUP") {
		return fmt.Errorf("create the group: %w", err)
	}
	return nil
}

// beat prolongs the member's life. It reports whether it had ended.
func (m *membership) beat(ctx context.Context) (lapsed bool, err error) {
	err = m.client.SetArgs(ctx, m.aliveKey(m.name), 1, redis.SetArgs{Mode: "XX", TTL: m.config.Patience}).Err()
	if !errors.Is(err, redis.Nil) {
		return false, err
	}
	return true, m.client.Set(ctx, m.aliveKey(m.name), 1, m.config.Patience).Err()
}

// leave ends the member's life, and forgets it if it has nothing.
func (m *membership) leave(ctx context.Context) error {
	if err := m.client.Del(ctx, m.aliveKey(m.name)).Err(); err != nil {
		return err
	}
	return m.forget(ctx, m.name)
}

func (m *membership) forget(ctx context.Context, name string) error {
	return forgetScript.Run(ctx, m.client, []string{m.topic, m.aliveKey(name)}, m.group, name).Err()
}

// claim takes at most n entries that nobody has: given back ones, and those of dead members, in the order of their ids.
// Members that are dead for long and have nothing are forgotten.
func (m *membership) claim(ctx context.Context, n int) ([]*entry, error) {
	members, err := m.client.XInfoConsumers(ctx, m.topic, m.group).Result()
	if err != nil {
		return nil, fmt.Errorf("list the members of the group: %w", err)
	}
	var entries []*entry
	for _, other := range members {
		released := other.Name == releasedName
		switch {
		case !released && (other.Name == m.name || !strings.HasPrefix(other.Name, memberPrefix)):
			continue
		case other.Pending == 0:
			if !released && other.Idle > m.config.ForgetAfter {
				if err := m.forget(ctx, other.Name); err != nil {
					return entries, fmt.Errorf("forget the member %q: %w", other.Name, err)
				}
			}
			continue
		case len(entries) == n:
			continue
		}
		keys := []string{m.topic}
		if !released {
			keys = append(keys, m.aliveKey(other.Name))
		}
		reply, err := claimScript.Run(ctx, m.client, keys, m.group, m.name, other.Name, n-len(entries)).Slice()
		if err != nil {
			return entries, fmt.Errorf("claim from %q: %w", other.Name, err)
		}
		claimed, err := parseEntries(reply)
		if err != nil {
			return entries, err
		}
		entries = append(entries, claimed...)
	}
	slices.SortFunc(entries, func(a, b *entry) int { return compareIDs(a.id, b.id) })
	return entries, nil
}

// giveBack makes entries nobody's, those of the group that this member still has.
func (m *membership) giveBack(ctx context.Context, entries []*entry) error {
	_, err := m.move(ctx, releasedName, entries)
	return err
}

// keep notes the deliveries of entries that this member hands over again, and returns those that it still has.
func (m *membership) keep(ctx context.Context, entries []*entry) ([]*entry, error) {
	ids, err := m.move(ctx, m.name, entries)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(entries, func(e *entry) bool { return !slices.Contains(ids, e.id) }), nil
}

func (m *membership) move(ctx context.Context, to string, entries []*entry) ([]string, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	args := make([]any, 0, 3+2*len(entries))
	args = append(args, m.group, m.name, to)
	for _, e := range entries {
		args = append(args, e.id, e.count)
	}
	return moveScript.Run(ctx, m.client, []string{m.topic}, args...).StringSlice()
}

// has returns which of the given ids are pending with this member.
func (m *membership) has(ctx context.Context, ids []string) (map[string]bool, error) {
	found := make(map[string]bool, len(ids))
	if len(ids) == 0 {
		return found, nil
	}
	first, last := slices.MinFunc(ids, compareIDs), slices.MaxFunc(ids, compareIDs)
	for {
		page, err := m.client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: m.topic, Group: m.group, Consumer: m.name, Start: first, End: last, Count: maxInherit,
		}).Result()
		if err != nil {
			return nil, fmt.Errorf("list what %q has: %w", m.name, err)
		}
		for _, p := range page {
			found[p.ID] = true
		}
		if len(page) < maxInherit {
			return found, nil
		}
		first = "(" + page[len(page)-1].ID
	}
}

// read reads at most n new entries, and waits for them for at most block.
func (m *membership) read(ctx context.Context, n int, block time.Duration) ([]*entry, error) {
	cmd := once{redis.NewCmd(ctx, "XREADGROUP", "GROUP", m.group, m.name, "COUNT", n, "BLOCK", max(block.Milliseconds(), 1),
		"STREAMS", m.topic, ">")}
	_ = m.client.Process(ctx, cmd) // cmd has the error
	reply, err := cmd.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRead(reply)
}

// once is a command that the client does not repeat by itself. A read whose answer was lost has been done: repeated, it gives newer entries.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// orphans returns, in order, the entries that the server has given to this member in an answer that was lost: those that are
// pending with it and were not known before. What is settled meanwhile was known.
func (m *membership) orphans(ctx context.Context, known map[string]bool) ([]*entry, error) {
	counts := map[string]int{}
	for first := "-"; ; {
		page, err := m.client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: m.topic, Group: m.group, Consumer: m.name, Start: first, End: "+", Count: maxInherit,
		}).Result()
		if err != nil {
			return nil, fmt.Errorf("list what %q has: %w", m.name, err)
		}
		for _, p := range page {
			counts[p.ID] = int(p.RetryCount)
		}
		if len(page) < maxInherit {
			break
		}
		first = "(" + page[len(page)-1].ID
	}
	for id := range known {
		delete(counts, id)
	}
	if len(counts) == 0 {
		return nil, nil
	}
	args := []any{"XCLAIM", m.topic, m.group, m.name, 0}
	for id := range counts {
		args = append(args, id)
	}
	reply, err := m.client.Do(ctx, args...).Slice()
	if err != nil {
		return nil, fmt.Errorf("claim what was lost on the way to %q: %w", m.name, err)
	}
	entries, err := parseEntries(reply)
	for _, e := range entries {
		e.count = counts[e.id] + 1
	}
	slices.SortFunc(entries, func(a, b *entry) int { return compareIDs(a.id, b.id) })
	return entries, err
}

// trim trims what is older than the retention and was acked by all.
func (m *membership) trim(ctx context.Context, now time.Time) error {
	before := now.Add(-m.config.Retention).UnixMilli()
	return trimScript.Run(ctx, m.client, []string{m.topic}, fmt.Sprintf("%d-0", max(before, 0))).Err()
}

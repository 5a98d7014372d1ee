package outboxsuite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/headrace-go/headrace/outbox"
)

// Memory is an outbox in memory, for tests: it keeps nothing when the process ends. Its clock is the
// process's, so it works in a synctest bubble. It is safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	nextID  int64
	rows    map[int64]outbox.Row
	delayed map[int64]outbox.Row
	dead    map[int64]outbox.DeadRow
	relays  map[string]time.Time
	leases  [outbox.Buckets]memoryLease
	fail    func(op string) error
}

type memoryLease struct {
	owner string
	epoch int64
	until time.Time
}

var (
	_ outbox.Delayer           = (*Memory)(nil)
	_ outbox.Graveyard         = (*Memory)(nil)
	_ outbox.Writer[*MemoryTx] = (*Memory)(nil)
)

// NewMemory returns an empty outbox.
func NewMemory() *Memory {
	return &Memory{rows: map[int64]outbox.Row{}, delayed: map[int64]outbox.Row{}, dead: map[int64]outbox.DeadRow{}, relays: map[string]time.Time{}}
}

// Fail makes each method of outbox.Source ask f first, with the method's name, and return its error.
// nil: none fails.
func (m *Memory) Fail(f func(op string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// MemoryTx is a transaction of a [Memory]. Ids are given at insertion and rows seen at commit, as in a
// real database: a lower id can be seen later than a higher one. It belongs to one goroutine.
type MemoryTx struct {
	m    *Memory
	rows []outbox.Row
	done bool
}

// Begin starts a transaction.
func (m *Memory) Begin() *MemoryTx { return &MemoryTx{m: m} }

// InsertOutbox implements outbox.Writer.
func (m *Memory) InsertOutbox(ctx context.Context, tx *MemoryTx, rows []outbox.Row) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if tx.done {
		return errors.New("outboxsuite: the transaction has ended")
	}
	for _, r := range rows {
		m.nextID++
		r.ID, r.CreatedAt = m.nextID, time.Now()
		r.Metadata, r.Payload = maps.Clone(r.Metadata), slices.Clone(r.Payload)
		tx.rows = append(tx.rows, r)
	}
	return ctx.Err()
}

// InsertDelayed implements outbox.Delayer.
func (m *Memory) InsertDelayed(ctx context.Context, r outbox.Row, d time.Duration) error {
	if err := m.begin(ctx, "InsertDelayed"); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.nextID++
	r.ID, r.CreatedAt, r.AvailableAt = m.nextID, time.Now(), time.Now().Add(d)
	r.Metadata, r.Payload = maps.Clone(r.Metadata), slices.Clone(r.Payload)
	m.delayed[r.ID] = r
	return nil
}

// Commit makes the rows visible.
func (tx *MemoryTx) Commit() error {
	tx.m.mu.Lock()
	defer tx.m.mu.Unlock()
	if tx.done {
		return errors.New("outboxsuite: the transaction has ended")
	}
	tx.done = true
	for _, r := range tx.rows {
		if r.AvailableAt.IsZero() {
			tx.m.rows[r.ID] = r
		} else {
			tx.m.delayed[r.ID] = r
		}
	}
	return nil
}

// Rollback forgets the rows.
func (tx *MemoryTx) Rollback() error {
	tx.done = true
	return nil
}

// begin locks m for one operation, which may be made to fail.
func (m *Memory) begin(ctx context.Context, op string) error {
	m.mu.Lock()
	err := ctx.Err()
	if err == nil && m.fail != nil {
		err = m.fail(op)
	}
	if err != nil {
		m.mu.Unlock()
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// Lease implements outbox.Source.
func (m *Memory) Lease(ctx context.Context, owner string, ttl time.Duration) (outbox.Tenure, error) {
	if err := m.begin(ctx, "Lease"); err != nil {
		return outbox.Tenure{}, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	m.relays[owner] = now.Add(ttl)
	maps.DeleteFunc(m.relays, func(_ string, until time.Time) bool { return !now.Before(until) })
	held := 0
	for b := range m.leases {
		if l := &m.leases[b]; l.owner == owner && now.Before(l.until) {
			l.until = now.Add(ttl)
			held++
		}
	}
	for b := range m.leases {
		if l := &m.leases[b]; held < outbox.Share(len(m.relays)) && !now.Before(l.until) {
			l.owner, l.until = owner, now.Add(ttl)
			l.epoch++
			held++
		}
	}
	t := outbox.Tenure{Relays: len(m.relays), Now: now}
	for b, l := range m.leases {
		if l.owner == owner && now.Before(l.until) {
			t.Leases = append(t.Leases, outbox.Lease{Bucket: b, Epoch: l.epoch})
		}
	}
	return t, nil
}

func (m *Memory) holds(owner string, l outbox.Lease) bool {
	return m.leases[l.Bucket].owner == owner && m.leases[l.Bucket].epoch == l.Epoch
}

// Release implements outbox.Source.
func (m *Memory) Release(ctx context.Context, owner string, leases []outbox.Lease) error {
	if err := m.begin(ctx, "Release"); err != nil {
		return err
	}
	defer m.mu.Unlock()
	for _, l := range leases {
		if m.holds(owner, l) {
			m.leases[l.Bucket].owner, m.leases[l.Bucket].until = "", time.Time{}
		}
	}
	return nil
}

// Leave implements outbox.Source.
func (m *Memory) Leave(ctx context.Context, owner string) error {
	if err := m.begin(ctx, "Leave"); err != nil {
		return err
	}
	defer m.mu.Unlock()
	for b := range m.leases {
		if l := &m.leases[b]; l.owner == owner {
			l.owner, l.until = "", time.Time{}
		}
	}
	delete(m.relays, owner)
	return nil
}

// Topics implements outbox.Source.
func (m *Memory) Topics(ctx context.Context, after string, limit int) ([]outbox.Topic, error) {
	if err := m.begin(ctx, "Topics"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	first := map[string]outbox.Row{}
	for id, r := range m.rows {
		if f, ok := first[r.Topic]; r.Topic > after && (!ok || id < f.ID) {
			first[r.Topic] = r
		}
	}
	var list []outbox.Topic
	for _, name := range slices.Sorted(maps.Keys(first)) {
		if len(list) < limit {
			list = append(list, outbox.Topic{Name: name, Age: time.Since(first[name].CreatedAt)})
		}
	}
	return list, nil
}

// Fetch implements outbox.Source.
func (m *Memory) Fetch(ctx context.Context, q outbox.Query) (outbox.Page, error) {
	if err := m.begin(ctx, "Fetch"); err != nil {
		return outbox.Page{}, err
	}
	defer m.mu.Unlock()
	var page outbox.Page
	bytes := 0
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		r := m.rows[id]
		if r.Topic != q.Topic || !slices.Contains(q.Buckets, r.Bucket) || slices.Contains(q.NotIDs, id) ||
			slices.Contains(q.NotKeys, r.Key) || m.blocked(r.Topic, r.Key) {
			continue
		}
		if len(page.Rows) >= q.Rows || bytes >= q.Bytes {
			page.More = true
			break
		}
		text, err := outbox.EncodeMetadata(r.Metadata)
		if err != nil {
			return outbox.Page{}, err
		}
		bytes += len(text) + len(r.Payload)
		r.Metadata, r.Payload = maps.Clone(r.Metadata), slices.Clone(r.Payload)
		page.Rows = append(page.Rows, r)
	}
	return page, nil
}

func (m *Memory) blocked(topic, key string) bool {
	for _, d := range m.dead {
		if d.Blocks && d.Topic == topic && d.Key == key {
			return true
		}
	}
	return false
}

// Delete implements outbox.Source.
func (m *Memory) Delete(ctx context.Context, owner, topic string, leases []outbox.Lease, ids []int64) (lost []outbox.Lease, err error) {
	if err := m.begin(ctx, "Delete"); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	held := map[int]bool{}
	for _, l := range leases {
		if m.holds(owner, l) {
			held[l.Bucket] = true
		} else {
			lost = append(lost, l)
		}
	}
	for _, id := range ids {
		if r, ok := m.rows[id]; ok && r.Topic == topic && held[r.Bucket] {
			delete(m.rows, id)
		}
	}
	return lost, nil
}

// Bury implements outbox.Source.
func (m *Memory) Bury(ctx context.Context, owner string, lease outbox.Lease, b outbox.Burial) (bool, error) {
	if err := m.begin(ctx, "Bury"); err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if !m.holds(owner, lease) {
		return false, nil
	}
	if r, ok := m.rows[b.ID]; ok && r.Topic == b.Topic {
		delete(m.rows, b.ID)
		m.dead[b.ID] = outbox.DeadRow{Row: r, DiedAt: time.Now(), ErrorType: b.ErrorType, Error: b.Error, Blocks: b.Block}
	}
	return true, nil
}

// Promote implements outbox.Source.
func (m *Memory) Promote(ctx context.Context, limit int) (int, error) {
	if err := m.begin(ctx, "Promote"); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	due := slices.DeleteFunc(slices.Collect(maps.Values(m.delayed)), func(r outbox.Row) bool { return r.AvailableAt.After(time.Now()) })
	slices.SortFunc(due, func(a, b outbox.Row) int {
		return cmp.Or(a.AvailableAt.Compare(b.AvailableAt), cmp.Compare(a.ID, b.ID))
	})
	due = due[:min(len(due), limit)]
	for _, r := range due {
		delete(m.delayed, r.ID)
		m.nextID++
		if r.AvailableAt.After(r.CreatedAt) {
			r.CreatedAt = r.AvailableAt // from now on it waits for the relay
		}
		r.ID, r.AvailableAt = m.nextID, time.Time{}
		m.rows[r.ID] = r
	}
	return len(due), nil
}

// Backlog implements outbox.Source.
func (m *Memory) Backlog(ctx context.Context, limit int) (outbox.Backlog, error) {
	if err := m.begin(ctx, "Backlog"); err != nil {
		return outbox.Backlog{}, err
	}
	defer m.mu.Unlock()
	return outbox.Backlog{Rows: min(len(m.rows), limit), Delayed: min(len(m.delayed), limit), Dead: min(len(m.dead), limit)}, nil
}

// Dead implements outbox.Graveyard.
func (m *Memory) Dead(ctx context.Context, after int64, limit int) ([]outbox.DeadRow, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []outbox.DeadRow
	for _, id := range slices.Sorted(maps.Keys(m.dead)) {
		if id > after && len(list) < limit {
			list = append(list, m.dead[id])
		}
	}
	return list, ctx.Err()
}

// DeadTopics implements outbox.Graveyard.
func (m *Memory) DeadTopics(ctx context.Context, limit int) ([]outbox.DeadTopic, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]outbox.DeadTopic{}
	for _, d := range m.dead {
		c := counts[d.Topic]
		c.Name = d.Topic
		c.Rows++
		if d.Blocks {
			c.Blocking++
		}
		counts[d.Topic] = c
	}
	list := slices.SortedFunc(maps.Values(counts), func(a, b outbox.DeadTopic) int { return cmp.Compare(a.Name, b.Name) })
	return list[:min(len(list), limit)], ctx.Err()
}

// Revive implements outbox.Graveyard.
func (m *Memory) Revive(ctx context.Context, id int64) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.dead[id]
	if ok {
		delete(m.dead, id)
		if !d.Blocks {
			m.nextID++
			d.ID = m.nextID
		}
		m.rows[d.ID] = d.Row
	}
	return ok, ctx.Err()
}

// Discard implements outbox.Graveyard.
func (m *Memory) Discard(ctx context.Context, id int64) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.dead[id]
	delete(m.dead, id)
	return ok, ctx.Err()
}

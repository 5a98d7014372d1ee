package adapter_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/headrace-go/headrace/brokers/internal/adapter"
)

// member is closed when its gate opens.
type member struct {
	all  *adapter.Members[*member]
	gate chan struct{}
	err  error
	done bool
}

func (m *member) Close() error {
	<-m.gate
	m.done = true
	m.all.Remove(m)
	return m.err
}

func TestMembersAreClosedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all adapter.Members[*member]
		bad := errors.New("bad")
		members := []*member{{gate: make(chan struct{})}, {gate: make(chan struct{}), err: bad}, {gate: make(chan struct{})}}
		for _, m := range members {
			m.all = &all
			if err := all.Add(m); err != nil {
				t.Fatalf("Add: %v", err)
			}
		}
		gone := members[2]
		all.Remove(gone)
		closed := make(chan error, 1)
		go func() { closed <- all.Close() }()
		synctest.Wait()
		if !all.Closed() {
			t.Error("not closed while its members close")
		}
		if err := all.Add(gone); !errors.Is(err, adapter.ErrClosed) {
			t.Errorf("Add after Close: %v, want %v", err, adapter.ErrClosed)
		}
		close(members[1].gate) // each waits for nobody
		synctest.Wait()
		if !members[1].done || members[0].done {
			t.Errorf("closed: %v and %v, want the second alone", members[0].done, members[1].done)
		}
		close(members[0].gate)
		if err := <-closed; !errors.Is(err, bad) {
			t.Errorf("Close: %v, want %v", err, bad)
		}
		if left := all.All(); len(left) > 0 || gone.done {
			t.Errorf("%d are open, and the one that was removed is closed: %v", len(left), gone.done)
		}
		if err := all.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

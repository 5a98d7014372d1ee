package ledgerbook

import (
	"time"

	"github.com/headrace-go/headrace/ledger"
)

// Snapshot is a book in a form that encoding/json keeps. Its field names are a wire contract of ledger/file.
type Snapshot struct {
	Services []ServiceSnapshot `json:"services"`
}

// ServiceSnapshot is one service's part.
type ServiceSnapshot struct {
	Name    string          `json:"name"`
	Alarms  int64           `json:"alarms"`
	Alarmed time.Time       `json:"alarmed"`
	Misses  int             `json:"misses"`
	Runs    []RunSnapshot   `json:"runs"`
	Starts  []StartSnapshot `json:"starts"`
}

// RunSnapshot is a run that lives.
type RunSnapshot struct {
	ID       string    `json:"id"`
	Instance string    `json:"instance"`
	Expires  time.Time `json:"expires"`
	Stopping bool      `json:"stopping"`
}

// StartSnapshot is a start.
type StartSnapshot struct {
	Key      ledger.Key `json:"key"`
	Run      string     `json:"run"`
	Instance string     `json:"instance"`
	At       time.Time  `json:"at"`
	Alone    bool       `json:"alone"`
	Died     bool       `json:"died"`
}

// Snapshot returns what the book holds.
func (b *Book) Snapshot() Snapshot {
	var snap Snapshot
	for name, s := range b.services {
		one := ServiceSnapshot{Name: name, Alarms: s.alarms, Alarmed: s.alarmed, Misses: s.misses}
		for id, r := range s.runs {
			one.Runs = append(one.Runs, RunSnapshot{ID: id, Instance: r.instance, Expires: r.expires, Stopping: r.stopping})
		}
		s.each(func(k ledger.Key, id string, st start) {
			one.Starts = append(one.Starts, StartSnapshot{Key: k, Run: id, Instance: st.instance, At: st.at, Alone: st.alone, Died: st.died})
		})
		snap.Services = append(snap.Services, one)
	}
	return snap
}

// Restore returns the book that snap was taken of.
func Restore(snap Snapshot) *Book {
	b := New()
	for _, one := range snap.Services {
		s, _ := b.service(one.Name)
		s.alarms, s.alarmed, s.misses = one.Alarms, one.Alarmed, one.Misses
		for _, r := range one.Runs {
			s.runs[r.ID] = &run{instance: r.Instance, expires: r.Expires, stopping: r.Stopping}
		}
		for _, st := range one.Starts {
			s.put(st.Key, st.Run, start{instance: st.Instance, at: st.At, alone: st.Alone, died: st.Died})
		}
	}
	return b
}

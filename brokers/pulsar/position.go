package pulsar

import (
	"cmp"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
)

// position is where a message is stored. A ledger belongs to one partition of one topic.
type position struct {
	ledger, entry int64
	index         int32 // in the entry's batch
}

func positionOf(id pulsarclient.MessageID) position {
	return position{id.LedgerID(), id.EntryID(), max(id.BatchIdx(), 0)}
}

// An offset has the number of the ledger, that of the entry in it, and the index in the entry's batch. Ledgers of a cluster are numbered
// one after the other, and a broker begins a new one after 50,000 entries or ten minutes, whichever is later.
const (
	entryBits, indexBits = 24, 10
	ledgerBits           = 63 - entryBits - indexBits
)

// offset is p as one number that grows along a partition, or -1 for one of those that do not fit.
func (p position) offset() int64 {
	if p.ledger < 0 || p.ledger >= 1<<ledgerBits || p.entry < 0 || p.entry >= 1<<entryBits || p.index < 0 || p.index >= 1<<indexBits {
		return -1
	}
	return p.ledger<<(entryBits+indexBits) | p.entry<<indexBits | int64(p.index)
}

// compare orders positions as a topic has them.
func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.ledger, q.ledger), cmp.Compare(p.entry, q.entry), cmp.Compare(p.index, q.index))
}

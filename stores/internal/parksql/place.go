package parksql

import (
	"cmp"
	"context"
	"time"

	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/stores/schema"
)

// Open implements parking.Ledger.
func (l *Ledger) Open(ctx context.Context, tx any, k parking.Key) error {
	db, err := l.in(tx)
	if err != nil {
		return err
	}
	unlessThere := " ON CONFLICT (consumer, msg_key) DO NOTHING"
	if l.dialect == schema.MySQL {
		unlessThere = " ON DUPLICATE KEY UPDATE consumer = VALUES(consumer)"
	}
	_, err = l.exec(ctx, db, "INSERT INTO "+l.keys+
		" (consumer, msg_key, state, next_seq, messages, failures, parked_at, failed_at, released_at,"+
		" first_type, first_error, last_type, last_error, owner, lease_until)"+
		" VALUES (?, ?, 'parked', 1, 0, 1, "+l.now+", ?, 0, ?, ?, ?, ?, '', 0)"+unlessThere,
		k.Consumer, k.Name, microsOf(k.FailedAt), text(k.FirstErrorType), text(k.FirstError), text(k.LastErrorType), text(k.LastError))
	return inTx(ctx, "open", k.Consumer, k.Name, err)
}

// Reserve implements parking.Ledger. For a key that has no row, which is nearly every message, it is one round
// trip.
func (l *Ledger) Reserve(ctx context.Context, tx any, consumer, key string, limits parking.Limits) (int64, parking.Outcome, error) {
	db, err := l.in(tx)
	if err != nil {
		return 0, parking.NotParked, err
	}
	seq, out, err := l.reserve(ctx, db, consumer, key, limits)
	return seq, out, inTx(ctx, "reserve a place in", consumer, key, err)
}

func (l *Ledger) reserve(ctx context.Context, db DB, consumer, key string, limits parking.Limits) (int64, parking.Outcome, error) {
	lock := l.lock
	if l.dialect == schema.MySQL {
		lock = l.lockMySQL
	}
	seq, messages, out, err := lock(ctx, db, consumer, key)
	if err != nil || out != parking.Reserved {
		return 0, out, err
	}
	if messages > limits.PerKey {
		return 0, parking.Full, nil
	}
	var total int64
	if _, err := l.one(ctx, db, "SELECT CAST(coalesce(sum(messages), 0) AS "+l.integer()+") FROM "+l.keys+" WHERE consumer = ?",
		[]any{consumer}, []any{&total}); err != nil {
		return 0, parking.NotParked, err
	}
	if total > int64(limits.PerConsumer) {
		return 0, parking.Full, nil
	}
	return seq, parking.Reserved, nil
}

func (l *Ledger) integer() string {
	if l.dialect == schema.MySQL {
		return "SIGNED"
	}
	return "bigint"
}

const addOne = " SET next_seq = next_seq + 1, messages = messages + 1"

func (l *Ledger) lock(ctx context.Context, db DB, consumer, key string) (seq int64, messages int, out parking.Outcome, err error) {
	found, err := first(ctx, db, l.look, []any{consumer, key}, []any{&seq, &messages})
	if found {
		out = parking.Reserved
	}
	return seq, messages, out, err
}

// lockMySQL looks first without a lock. An UPDATE that finds no row would lock the gap where it could be, for the
// rest of the handler's transaction, and hold up whoever parks any key near it: under load for ever.
//
// The look begins the transaction's view of the database, under repeatable read. If the row is gone by the
// time that it is locked, then the drain committed effects that this view does not show, and a handler must not
// run on it.
func (l *Ledger) lockMySQL(ctx context.Context, db DB, consumer, key string) (seq int64, messages int, out parking.Outcome, err error) {
	var one int
	found, err := first(ctx, db, l.look, []any{consumer, key}, []any{&one})
	if err != nil || !found {
		return 0, 0, parking.NotParked, err
	}
	if _, err = l.exec(ctx, db, "UPDATE "+l.keys+addOne+ofKey, consumer, key); err != nil {
		return 0, 0, parking.NotParked, err
	}
	found, err = l.one(ctx, db, "SELECT next_seq - 1, messages FROM "+l.keys+ofKey+l.forUpdate,
		[]any{consumer, key}, []any{&seq, &messages})
	if !found {
		return 0, 0, parking.Moved, err
	}
	return seq, messages, parking.Reserved, err
}

// Put implements parking.Ledger.
func (l *Ledger) Put(ctx context.Context, tx any, m parking.Message) (bool, error) {
	db, err := l.in(tx)
	if err != nil {
		return false, err
	}
	document, err := m.Record.MarshalDocument()
	if err != nil {
		return false, inTx(ctx, "store a message of", m.Consumer, m.Key, err)
	}
	// A duplicate changes the time on MySQL and counts as 2, or as whatever clientFoundRows says: not as 1. It is
	// rolled back.
	unlessThere := " ON CONFLICT (consumer, id) DO NOTHING"
	if l.dialect == schema.MySQL {
		unlessThere = " ON DUPLICATE KEY UPDATE parked_at = parked_at + 1"
	}
	n, err := l.exec(ctx, db, "INSERT INTO "+l.msgs+" (consumer, msg_key, seq, id, parked_at, dead_letter, record, payload)"+
		" VALUES (?, ?, ?, ?, "+l.now+", ?, ?, ?)"+unlessThere,
		m.Consumer, m.Key, m.Seq, m.ID, text(m.Record.ID), document, payloadOf(m.Record.Payload))
	return n == 1, inTx(ctx, "store a message of", m.Consumer, m.Key, err)
}

// Take implements parking.Ledger. m was its key's first when the source read it. Places are given under the lock
// of the row that Take locks, in rising order, so a message that was the first is so for as long as it is there.
func (l *Ledger) Take(ctx context.Context, tx any, m parking.Message) (bool, error) {
	db, err := l.in(tx)
	if err != nil {
		return false, err
	}
	taken, err := l.take(ctx, db, m)
	return taken, inTx(ctx, "take a message of", m.Consumer, m.Key, err)
}

func (l *Ledger) take(ctx context.Context, db DB, m parking.Message) (bool, error) {
	if err := l.renew(ctx, db, m.Consumer, m.ID); err != nil {
		return false, err
	}
	state, messages, found, err := l.lockKey(ctx, db, m.Consumer, m.Key)
	if err != nil || !found || state != parking.Released {
		return false, err
	}
	if removed, err := l.remove(ctx, db, m); err != nil || !removed {
		return false, err
	}
	if err := l.shrink(ctx, db, m.Consumer, m.Key, messages); err != nil {
		return false, err
	}
	return true, l.resolve(ctx, db, m)
}

// renew makes the claim of a message anew. The one that was made when it was parked may be pruned by now, or will be soon.
func (l *Ledger) renew(ctx context.Context, db DB, consumer, id string) error {
	_, err := db.Exec(ctx, l.renewal, consumer, id)
	return err
}

// resolve marks the dead letter of a message that takes effect, if it has one and that is in this database: a redrive of it
// would take effect again when the inbox has forgotten the message. One that was delayed since is no dead letter, but was one.
func (l *Ledger) resolve(ctx context.Context, db DB, m parking.Message) error {
	letter := cmp.Or(m.Record.ID, m.Record.Letter)
	if letter == "" {
		return nil
	}
	return l.letters.ResolveIn(ctx, db, text(letter), "its message was parked, and took effect")
}

// lockKey locks a key's row and tells what is in it.
func (l *Ledger) lockKey(ctx context.Context, db DB, consumer, key string) (state parking.State, messages int, found bool, err error) {
	query := "SELECT state, messages FROM " + l.keys + ofKey + l.forUpdate
	if l.dialect == schema.SQLite { // a transaction that reads first may not be able to write
		query = "UPDATE " + l.keys + " SET messages = messages" + ofKey + " RETURNING state, messages"
	}
	var s string
	found, err = l.one(ctx, db, query, []any{consumer, key}, []any{&s, &messages})
	return parking.State(s), messages, found, err
}

const ofMessage = ofKey + " AND seq = ? AND id = ?"

// remove is a statement of its own, begun under the lock of the key's row.
func (l *Ledger) remove(ctx context.Context, db DB, m parking.Message) (bool, error) {
	n, err := l.exec(ctx, db, "DELETE FROM "+l.msgs+ofMessage, m.Consumer, m.Key, m.Seq, m.ID)
	return n == 1, err
}

// shrink counts one message less in a row that is locked and had so many, and deletes it with the last.
func (l *Ledger) shrink(ctx context.Context, db DB, consumer, key string, messages int) error {
	statement := "UPDATE " + l.keys + " SET messages = messages - 1"
	if messages <= 1 {
		statement = "DELETE FROM " + l.keys
	}
	_, err := l.exec(ctx, db, statement+ofKey, consumer, key)
	return err
}

// Fail implements parking.Ledger.
func (l *Ledger) Fail(ctx context.Context, m parking.Message) (bool, error) {
	document, err := m.Record.MarshalDocument()
	if err != nil {
		return false, l.failed(ctx, "park again", m.Consumer, m.Key, err)
	}
	there, err := l.replace(ctx, m, document, func(db DB) error {
		_, err := l.exec(ctx, db, "UPDATE "+l.keys+" SET state = 'parked', owner = '', lease_until = 0, failures = failures + 1,"+
			" failed_at = ?, last_type = ?, last_error = ?"+ofKey,
			microsOf(m.Record.LastFailure), text(m.Record.ErrorType), text(m.Record.Error), m.Consumer, m.Key)
		return err
	})
	return there, l.failed(ctx, "park again", m.Consumer, m.Key, err)
}

// replace puts m.Record, as document, in the place of m's, and changes m's key, under the lock of its row. It reports false if m is
// gone.
func (l *Ledger) replace(ctx context.Context, m parking.Message, document []byte, change func(DB) error) (there bool, err error) {
	err = l.Tx(ctx, func(db DB) error {
		there = false
		_, _, found, err := l.lockKey(ctx, db, m.Consumer, m.Key)
		if err != nil || !found {
			return err
		}
		var one int
		there, err = l.one(ctx, db, "SELECT 1 FROM "+l.msgs+ofMessage+l.forUpdate, []any{m.Consumer, m.Key, m.Seq, m.ID}, []any{&one})
		if err != nil || !there {
			return err
		}
		if _, err := l.exec(ctx, db, "UPDATE "+l.msgs+" SET dead_letter = ?, record = ?"+ofMessage,
			text(m.Record.ID), document, m.Consumer, m.Key, m.Seq, m.ID); err != nil {
			return err
		}
		return change(db)
	})
	return there && err == nil, err
}

// A key is delayed by a lease that nobody holds: it is released, and Lease passes it over until that has ended.
const delayed = " SET owner = '', lease_until = "

// Delay implements parking.Ledger.
func (l *Ledger) Delay(ctx context.Context, tx any, consumer, key string, d time.Duration) error {
	db, err := l.in(tx)
	if err != nil {
		return err
	}
	_, err = l.exec(ctx, db, "UPDATE "+l.keys+delayed+l.now+" + ?, state = 'released', released_at = "+l.now+ofKey, d.Microseconds(), consumer, key)
	return inTx(ctx, "delay", consumer, key, err)
}

// DelayAgain implements parking.Ledger.
func (l *Ledger) DelayAgain(ctx context.Context, m parking.Message, d time.Duration) (bool, error) {
	document, err := m.Record.MarshalDocument()
	if err != nil {
		return false, l.failed(ctx, "delay again", m.Consumer, m.Key, err)
	}
	there, err := l.replace(ctx, m, document, func(db DB) error {
		_, err := l.exec(ctx, db, "UPDATE "+l.keys+delayed+l.now+" + ?"+ofKey+" AND state = 'released'", d.Microseconds(), m.Consumer, m.Key)
		return err
	})
	return there, l.failed(ctx, "delay again", m.Consumer, m.Key, err)
}

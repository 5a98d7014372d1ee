package parkingsuite

import (
	"context"
	"time"

	"github.com/headrace-go/headrace/deadletter"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/parking"
	"github.com/headrace-go/headrace/poison"
)

// short is a delay that a test waits for, long is one that ends with no test.
const short, long = 300 * time.Millisecond, time.Hour

// delayed is what the runtime makes of a delivery whose error asked for d.
func (l *line[Tx]) delayed(key, name string, d time.Duration) {
	l.Helper()
	l.delay(l.ctx, key, name, d)
}

func (l *line[Tx]) delay(ctx context.Context, key, name string, d time.Duration) {
	l.Helper()
	msg := arrival(ctx, key, name)
	f := flight.Ensure(msg)
	f.Topic, f.Consumer, f.ID = "orders", l.consumer, "uuid:orders "+name
	l.delayIt(f, d, 1)
}

// delayIt delays the delivery after so many attempts.
func (l *line[Tx]) delayIt(f *flight.Flight, d time.Duration, attempts int) {
	l.Helper()
	now := time.Now()
	record, _ := poison.Delayed(f, &middleware.DelayedError{After: d, ErrorType: "busy", Attempts: attempts, FirstFailure: now, LastFailure: now, Err: errBroken})
	if kept, err := l.store.Delay(f, record, d); err != nil || !kept {
		l.Fatalf("Delay: %t, %v; want true", kept, err)
	}
}

func (b *bench[Tx]) delays() {
	l := b.line(nil)
	began := time.Now()
	l.delayed("a", "a1", short)
	l.delayed("a", "a1", short) // the copy of a redelivery
	l.want(flight.Parked, "a", "a2")
	l.want(flight.Committed, "b", "b1")
	b.wantParked("a", "a1", "a2")
	if c := b.count(b.consumer); c.Keys != 1 || c.Released != 1 || c.Delayed != 1 || c.Messages != 2 {
		b.Errorf("count %+v, want 1 key that is delayed, with 2 messages", c)
	}
	if k := b.keys(b.consumer)[0]; k.State != parking.Released || k.DelayedUntil.Sub(began) < short-50*time.Millisecond || k.DelayedUntil.Sub(began) > short+limit {
		b.Errorf("key %+v, want one that is delayed for %v", k, short)
	}
	l.drain()
	if took := time.Since(began); took < short-50*time.Millisecond { // the database's clock may differ from ours
		b.Errorf("drained after %v, want not before %v", took, short)
	}
	l.want(flight.Committed, "a", "a3")
	b.wantHistory("b1", "a1", "a2", "a3")
	if got := len(b.deadLetters()); got != 0 {
		b.Errorf("%d dead letters, want none", got)
	}
}

// A zombie that delays a message of a key that is parked for good would have let it go.
func (b *bench[Tx]) delaysBehind() {
	l := b.line(nil)
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	l.delayed("a", "a2", time.Microsecond)
	if k := b.keys(b.consumer)[0]; k.State != parking.Parked || k.Messages != 2 || !k.DelayedUntil.IsZero() {
		b.Errorf("key %+v, want it parked, with 2 messages", k)
	}
	b.fix()
	b.release("a")
	l.drain()
	b.wantHistory("a1", "a2")
}

func (b *bench[Tx]) delaysAgain() {
	l := b.line(nil)
	l.delayed("a", "a1", time.Microsecond)
	l.want(flight.Parked, "a", "a2")
	ctx, cancel := context.WithCancel(b.ctx)
	in := l.source(ctx)
	msg := receive(ctx, b.T, "a message that is due", in)
	f := flight.Ensure(msg)
	redrive := poison.RedriveOf(f)
	if redrive == nil || redrive.Kind != poison.KindDelay || redrive.Record.Attempts != 1 {
		b.Fatalf("came as %+v, want a delayed one with 1 attempt", redrive)
	}
	f.Consumer, f.ID = l.consumer, redrive.Identify()
	l.delayIt(f, long, 2)
	msg.Ack()
	b.until("its key waits", func() bool { return b.count(b.consumer).Delayed == 1 })
	cancel()
	b.wantParked("a", "a1", "a2")
	list, err := b.ledger.Messages(b.ctx, b.consumer, "a", 0, 1)
	if err != nil || len(list) != 1 || list[0].Record.Attempts != 2 || list[0].Record.ID != "" || list[0].Record.Topic != "orders" {
		b.Errorf("the first message is %+v, %v; want it with 2 attempts, of the topic orders", list, err)
	}
	if gone, err := b.ledger.DelayAgain(b.ctx, parking.Message{Consumer: b.consumer, Key: "a", Seq: 9, ID: "x"}, long); err != nil || gone {
		b.Errorf("DelayAgain of what is not there: %t, %v; want false", gone, err)
	}
	if ok, err := b.ledger.Withhold(b.ctx, b.consumer, "a", operator); err != nil || !ok {
		b.Errorf("Withhold: %t, %v; want true", ok, err)
	}
	// Withheld while its first message was handled: it stays parked.
	if there, err := b.ledger.DelayAgain(b.ctx, list[0], time.Microsecond); err != nil || !there {
		b.Errorf("DelayAgain: %t, %v; want true", there, err)
	}
	if k := b.keys(b.consumer)[0]; k.State != parking.Parked {
		b.Errorf("key %+v, want it parked as the operator said", k)
	}
	b.release("a")
	l.drain()
	b.wantHistory("a1", "a2")
}

// A parked message asked for a delay in the drain. Its record was put in the place of the one with the dead letter's id: that stayed
// new for ever, and its redrive made the effect a second time when the inbox had forgotten the message.
func (b *bench[Tx]) delaysLetter() {
	l := b.line(nil)
	letters, err := deadletter.NewStore(b.Letters, deadletter.Protection{})
	if err != nil {
		b.Fatal(err)
	}
	b.breaks("a1")
	l.want(flight.DeadLettered, "a", "a1")
	list, err := b.ledger.Messages(b.ctx, b.consumer, "a", 0, 1)
	if err != nil || len(list) != 1 {
		b.Fatalf("%d messages, %v; want 1", len(list), err)
	}
	if n, err := letters.Add(b.ctx, list[0].Record); err != nil || n != 1 {
		b.Fatalf("Add: %d, %v; want 1", n, err)
	}
	want := func(state deadletter.State) {
		b.Helper()
		if letter, err := letters.One(b.ctx, list[0].Record.ID); err != nil || letter.State != state {
			b.Errorf("the dead letter is %q, %v; want %q", letter.State, err, state)
		}
	}
	ctx, cancel := context.WithCancel(b.ctx)
	in := l.source(ctx)
	for attempts, kind := range []poison.RedriveKind{poison.KindRedrive, poison.KindDelay} { // it asks twice
		b.release("a")
		msg := receive(ctx, b.T, "the message", in)
		f := flight.Ensure(msg)
		redrive := poison.RedriveOf(f)
		if redrive == nil || redrive.Kind != kind {
			b.Fatalf("came as %+v, want kind %q", redrive, kind)
		}
		f.Topic, f.Consumer, f.ID = "orders", l.consumer, redrive.Identify()
		l.delayIt(f, long, attempts+1)
		msg.Ack()
		b.until("its key waits", func() bool { return b.count(b.consumer).Delayed == 1 })
	}
	cancel()
	want(deadletter.New)
	b.fix()
	b.release("a")
	l.drain()
	b.wantHistory("a1")
	want(deadletter.Resolved)
}

func (b *bench[Tx]) hurries() {
	l := b.line(nil)
	l.delayed("a", "a1", long)
	l.want(flight.Parked, "a", "a2")
	b.release("a")
	if c := b.count(b.consumer); c.Delayed != 0 || c.Released != 1 {
		b.Errorf("count %+v, want it released and not delayed", c)
	}
	l.drain()
	b.wantHistory("a1", "a2")
	audit, err := b.ledger.Audit(b.ctx, b.consumer, 0, 10)
	if err != nil || len(audit) != 1 || audit[0].Action != parking.ActionRelease {
		b.Errorf("audit %+v, %v; want the release", audit, err)
	}
}

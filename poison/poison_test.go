package poison_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/brokers"
	"github.com/headrace-go/headrace/classify"
	"github.com/headrace-go/headrace/event"
	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/poison"
)

func TestWhatIsDeadLettered(t *testing.T) {
	tests := []struct {
		name string
		err  error
		dead bool
	}{
		{"no error", nil, false},
		{"judged here: poison", fmt.Errorf("decode: %w", classify.Permanent(errDown)), true},
		{"judged here: a panic", &classify.PanicError{Value: "bug"}, true},
		{"judged here: retry", errDown, false},
		{"judged here: retry after", classify.RetryAfter(errDown, time.Second), false},
		{"judged here: drop", classify.Drop(errDown), false},
		{"judged here: stop", classify.Stop(errDown), false},
		{"given up: poison", gaveUp(classify.VerdictPoison, errDown), true},
		{"given up: attempts exhausted", gaveUp(classify.VerdictRetry, errDown), true},
		{"given up: asked delay too long", gaveUp(classify.VerdictRetryAfter, errDown), true},
		{"given up: drop", gaveUp(classify.VerdictDrop, errDown), false},
		{"given up, and wrapped", fmt.Errorf("stage: %w", gaveUp(classify.VerdictRetry, errDown)), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dlt := &dltPublisher{}
			msg := newMessage(t.Context())
			out, err := newPoison(t, dlt).Middleware(fails(test.err))(msg)
			if !test.dead {
				dlt.none(t)
				if err != test.err || receipt(msg) != flight.NoReceipt {
					t.Errorf("error %v, receipt %v: want the handler's error and no receipt", err, receipt(msg))
				}
				return
			}
			dlt.only(t)
			if out != nil || err != nil || receipt(msg) != flight.DeadLettered {
				t.Errorf("got outputs %v, error %v, receipt %v: want none, none, dead_lettered", out, err, receipt(msg))
			}
		})
	}
}

// Undecodable bytes went to the DLT through a serializer that rejected them as well: an endless loop.
func TestD1UndecodableBytesAreStoredAsTheyCame(t *testing.T) {
	for _, payload := range [][]byte{nil, {}, []byte("\xff\xfe\x00{"), []byte(strings.Repeat("\x80", 1<<20))} {
		dlt := &dltPublisher{}
		msg := newMessage(t.Context())
		msg.Payload = payload
		if _, err := newPoison(t, dlt).Middleware(fails(classify.Permanent(errors.New("bad envelope"))))(msg); err != nil {
			t.Fatal(err)
		}
		dead, _ := dlt.only(t)
		if string(dead.Payload) != string(payload) || (dead.Payload == nil) != (payload == nil) {
			t.Errorf("payload of %d bytes (nil %v) became %d bytes (nil %v)", len(payload), payload == nil, len(dead.Payload), dead.Payload == nil)
		}
	}
}

// The delivery was marked done before the dead letter was written; that failed, and was only logged.
func TestD2NoReceiptBeforeTheDeadLetterIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const down = 10 * time.Minute
		start := time.Now()
		msg := newMessage(t.Context())
		dlt := &dltPublisher{refuse: func(*message.Message) error {
			if receipt(msg) != flight.NoReceipt {
				t.Errorf("receipt %v before the dead letter is stored", receipt(msg))
			}
			if time.Since(start) < down {
				return errRefuse
			}
			return nil
		}}
		refused := 0
		p := newPoison(t, dlt, func(c *poison.Config) {
			c.OnWriteError = func(_ context.Context, err error) {
				refused++
				if !errors.Is(err, errRefuse) || !strings.Contains(err.Error(), "orders.DLT") || !strings.Contains(err.Error(), "u-1") {
					t.Errorf("write error %q, want one that names the topic and the message", err)
				}
			}
		})
		go func() {
			_, err := p.Middleware(fails(gaveUp(classify.VerdictRetry, errDown)))(msg)
			if err != nil {
				t.Errorf("error %v, want none", err)
			}
		}()
		time.Sleep(down / 2)
		stats := p.Stats()
		if p.Blocked() != 1 || stats.Held != 1 || !stats.Since.Equal(start) || !errors.Is(stats.LastError, errRefuse) || stats.Stored != 0 {
			t.Errorf("while held: %+v, want 1 held since %v", stats, start)
		}
		time.Sleep(down)
		if p.Blocked() != 0 {
			t.Errorf("%d held after the broker came back", p.Blocked())
		}
		if stats := p.Stats(); stats.Stored != 1 || stats.LastError != nil || !stats.Since.IsZero() || stats.WriteErrors != uint64(refused) {
			t.Errorf("after: %+v, want 1 stored and nothing held", stats)
		}
		if receipt(msg) != flight.DeadLettered {
			t.Errorf("receipt %v, want dead_lettered", receipt(msg))
		}
		// The backoff is bounded by MaxWriteDelay: about 10 min / 30 s, and not thousands.
		if refused < 20 || refused > 60 {
			t.Errorf("%d tries failed in %v", refused, down)
		}
	})
}

func TestD2ShutdownWhileHeldLeavesTheDeliveryUnacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute+time.Millisecond, cancel)
		dlt := &dltPublisher{refuse: func(*message.Message) error { return errRefuse }}
		p := newPoison(t, dlt)
		start := time.Now()
		msg := newMessage(ctx)
		_, err := p.Middleware(fails(gaveUp(classify.VerdictPoison, errDown)))(msg)
		if took := time.Since(start); took != time.Minute+time.Millisecond {
			t.Errorf("returned after %v, want when the context ended", took)
		}
		if !isStop(err) || !errors.Is(err, errRefuse) || !errors.Is(err, errDown) {
			t.Errorf("error %v, want a stop with the failures of both", err)
		}
		if receipt(msg) != flight.NoReceipt || p.Blocked() != 0 {
			t.Errorf("receipt %v, %d held: want none", receipt(msg), p.Blocked())
		}
	})
}

// A write that was under way when the drain limit passed was cut off: whether the dead letter was stored, nobody
// knew.
func TestTheWriteOutlivesTheMessagesContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		msg := newMessage(ctx)
		dlt := &dltPublisher{refuse: func(dead *message.Message) error {
			cancel()
			if err := dead.Context().Err(); err != nil {
				t.Errorf("the write's context ended with the message's: %v", err)
			}
			if until, ok := dead.Context().Deadline(); !ok || time.Until(until) != 10*time.Second {
				t.Errorf("deadline of the write %v, want 10s ahead", until)
			}
			if flight.From(dead.Context()) != flight.From(msg.Context()) {
				t.Error("the write's context has not the values of the message's")
			}
			return nil
		}}
		_, err := newPoison(t, dlt).Middleware(fails(gaveUp(classify.VerdictPoison, errDown)))(msg)
		if err != nil || receipt(msg) != flight.DeadLettered {
			t.Errorf("error %v, receipt %v: want it dead-lettered", err, receipt(msg))
		}
	})
}

// routerRun runs handler on a stock Watermill router behind the middlewares. It publishes msg to orders and
// returns what arrives on the other topics, until wait messages have.
func routerRun(t *testing.T, msg *message.Message, wait int, handler message.HandlerFunc, stages func(*gochannel.GoChannel) []message.HandlerMiddleware) map[string][]*message.Message {
	t.Helper()
	pubsub := gochannel.NewGoChannel(gochannel.Config{OutputChannelBuffer: 10}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(stages(pubsub)...)
	router.AddHandler("billing", "orders", pubsub, "invoices", pubsub, handler)

	arrived := make(chan [2]any, 10)
	for _, topic := range []string{"invoices", "orders.DLT", "orders.DLT.DLT"} {
		in, err := pubsub.Subscribe(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for m := range in {
				m.Ack()
				arrived <- [2]any{topic, m}
			}
		}()
	}
	ended := make(chan error)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	if err := pubsub.Publish("orders", msg); err != nil {
		t.Fatal(err)
	}
	got := map[string][]*message.Message{}
	for range wait {
		select {
		case a := <-arrived:
			got[a[0].(string)] = append(got[a[0].(string)], a[1].(*message.Message))
		case <-time.After(10 * time.Second):
			t.Fatalf("waited 10s; arrived so far: %v", got)
		}
	}
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := pubsub.Close(); err != nil {
		t.Fatal(err)
	}
	for len(arrived) > 0 {
		a := <-arrived
		got[a[0].(string)] = append(got[a[0].(string)], a[1].(*message.Message))
	}
	return got
}

// The outputs of the failed handler were published together with the dead letter.
func TestD3PartialOutputsAreDropped(t *testing.T) {
	got := routerRun(t, message.NewMessage("u-1", []byte("x")), 1, fails(classify.Permanent(errDown)),
		func(pubsub *gochannel.GoChannel) []message.HandlerMiddleware {
			return []message.HandlerMiddleware{newPoison(t, pubsub).Middleware}
		})
	if len(got["orders.DLT"]) != 1 || len(got["invoices"]) != 0 {
		t.Errorf("arrived: %v, want one dead letter and no invoice", got)
	}
}

// A handler that called runtime.Goexit left its message unsettled for ever.
func TestGoexitIsDeadLetteredOnAPlainRouter(t *testing.T) {
	runs := 0
	got := routerRun(t, message.NewMessage("u-1", []byte("x")), 1,
		func(*message.Message) ([]*message.Message, error) {
			runs++
			runtime.Goexit()
			return nil, nil
		},
		func(pubsub *gochannel.GoChannel) []message.HandlerMiddleware {
			retry, err := middleware.Retry(middleware.RetryConfig{})
			if err != nil {
				t.Fatal(err)
			}
			return []message.HandlerMiddleware{middleware.Recover(), newPoison(t, pubsub).Middleware, retry, middleware.Recover()}
		})
	if len(got["orders.DLT"]) != 1 || runs != 1 {
		t.Fatalf("%d runs, arrived: %v; want one run and one dead letter", runs, got)
	}
	r, err := poison.Parse(got["orders.DLT"][0])
	if err != nil || r.ErrorType != "panic" || r.Attempts != 1 || !strings.Contains(r.Stack, "Goexit") {
		t.Errorf("record %+v, error %v: want a panic after 1 attempt, with its stack", r, err)
	}
}

// The consumer of the dead-letter topic had the same DLT: its failures went round and round.
func TestD4DeadLettersAreNotDeadLettered(t *testing.T) {
	one := func(string) string { return "graveyard" }
	tests := []struct {
		name    string
		topic   func(string) string
		reads   string
		earlier string // the topic it was dead-lettered from before
		refused bool   // at wiring
		dead    bool
	}{
		{"a topic", nil, "orders", "", false, true},
		{"its DLT", nil, "orders.DLT", "orders", true, false},
		{"its DLT, whatever is in it", nil, "orders.DLT", "", true, false},
		{"a redriven message", nil, "orders", "orders", false, true},
		{"one DLT for all", one, "orders", "", false, true},
		{"that DLT itself", one, "graveyard", "", true, false},
		{"a DLT by another name", func(t string) string { return "dead-" + t }, "dead-orders", "orders", false, false},
		{"a consumer of a DLT with a DLT of its own", one, "orders.DLT", "orders", false, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dlt := &dltPublisher{}
			p := newPoison(t, dlt, func(c *poison.Config) { c.Topic = test.topic })
			if err := p.Check(test.reads); errors.Is(err, poison.ErrDeadLetterTopic) != test.refused || (err != nil) != test.refused {
				t.Errorf("Check(%q) = %v, want refused: %v", test.reads, err, test.refused)
			} else if test.refused && (!strings.Contains(err.Error(), test.reads) || !strings.Contains(err.Error(), "billing.orders")) {
				t.Errorf("error %q names not the consumer and the topic", err)
			}
			msg := newMessage(t.Context())
			f := flight.From(msg.Context())
			d := *f.Delivery
			d.Topic = test.reads
			f.Topic, f.Delivery = test.reads, &d
			if test.earlier != "" {
				msg.Metadata[poison.MetaTopic] = test.earlier
			}
			_, err := p.Middleware(fails(classify.Permanent(errDown)))(msg)
			if test.dead {
				dlt.only(t)
				return
			}
			dlt.none(t)
			if !errors.Is(err, poison.ErrDeadLetterTopic) || !errors.Is(err, errDown) || receipt(msg) != flight.NoReceipt {
				t.Errorf("error %v, receipt %v: want ErrDeadLetterTopic, the handler's error, no receipt", err, receipt(msg))
			}
		})
	}
}

func TestATopicWithoutANameIsAnErrorNotALoss(t *testing.T) {
	dlt := &dltPublisher{}
	for _, test := range []struct {
		topic string
		fn    func(string) string
	}{{"", nil}, {"orders", func(string) string { return "" }}} {
		msg := newMessage(t.Context())
		flight.From(msg.Context()).Topic = test.topic
		_, err := newPoison(t, dlt, func(c *poison.Config) { c.Topic = test.fn }).Middleware(fails(classify.Permanent(errDown)))(msg)
		if !errors.Is(err, errDown) || receipt(msg) != flight.NoReceipt {
			t.Errorf("topic %q: error %v, receipt %v", test.topic, err, receipt(msg))
		}
	}
	dlt.none(t)
}

// On shutdown messages were dead-lettered with "context canceled".
func TestD5ShutdownDeadLettersNothing(t *testing.T) {
	for _, err := range []error{
		context.Canceled, classify.Permanent(errDown), gaveUp(classify.VerdictPoison, errDown), gaveUp(classify.VerdictRetry, context.Canceled),
	} {
		dlt := &dltPublisher{}
		ctx, cancel := context.WithCancel(t.Context())
		msg := newMessage(ctx)
		_, got := newPoison(t, dlt).Middleware(func(*message.Message) ([]*message.Message, error) {
			cancel()
			return nil, err
		})(msg)
		dlt.none(t)
		if !isStop(got) || !errors.Is(got, err) || receipt(msg) != flight.NoReceipt {
			t.Errorf("%v: got %v, receipt %v: want it marked as a stop, and no receipt", err, got, receipt(msg))
		}
	}
}

// Two messages of one partition always failed, at the same moment: one was neither retried nor dead-lettered,
// yet committed.
func TestR1AllThatFailAreDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 100
		dlt := &dltPublisher{}
		retry, err := middleware.Retry(middleware.RetryConfig{MaxAttempts: 3})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		runs := map[string]int{}
		stored := map[string]bool{}
		p := newPoison(t, dlt, func(c *poison.Config) {
			c.OnStored = func(_ context.Context, r poison.Record) {
				mu.Lock()
				defer mu.Unlock()
				stored[r.UUID] = true
			}
		})
		h := p.Middleware(retry(func(msg *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			runs[msg.UUID]++
			return nil, errDown
		}))
		var wait sync.WaitGroup
		for i := range messages {
			wait.Go(func() {
				msg := newMessage(t.Context())
				msg.UUID, msg.Metadata["ce_id"] = fmt.Sprint(i), fmt.Sprint(i)
				if _, err := h(msg); err != nil || receipt(msg) != flight.DeadLettered {
					t.Errorf("message %d: error %v, receipt %v", i, err, receipt(msg))
				}
			})
		}
		wait.Wait()
		ids := map[string]bool{}
		for _, dead := range dlt.messages {
			ids[dead.UUID] = true
		}
		if len(dlt.messages) != messages || len(ids) != messages || len(stored) != messages || p.Stats().Stored != messages {
			t.Errorf("%d dead letters with %d ids, %d reported, stats %+v: want %d of each", len(dlt.messages), len(ids), len(stored), p.Stats(), messages)
		}
		for id, n := range runs {
			if n != 3 {
				t.Errorf("message %s ran %d times, want 3", id, n)
			}
		}
	})
}

func TestADeadLetterHasTheMessageAsItCame(t *testing.T) {
	dlt := &dltPublisher{}
	msg := newMessage(t.Context())
	want, payload := maps.Clone(msg.Metadata), string(msg.Payload)
	_, err := newPoison(t, dlt).Middleware(func(msg *message.Message) ([]*message.Message, error) {
		msg.Metadata["ce_type"], msg.Metadata["junk"] = "other", "x"
		msg.UUID, msg.Payload = "other", []byte("other")
		msg.SetContext(context.Background())
		return nil, classify.Permanent(errDown)
	})(msg)
	if err != nil {
		t.Fatal(err)
	}
	dead, r := dlt.only(t)
	if !maps.Equal(r.Metadata, want) || string(dead.Payload) != payload || r.UUID != "u-1" {
		t.Errorf("dead letter of %q has metadata %v and payload %q, want %v and %q", r.UUID, r.Metadata, dead.Payload, want, payload)
	}
}

// A stage of the user's own stands between Poison and Retry and writes into the message: what Retry keeps for
// its attempts is then not what arrived.
func TestAStageOutsideRetryDoesNotChangeTheDeadLetter(t *testing.T) {
	dlt := &dltPublisher{}
	retry, err := middleware.Retry(middleware.RetryConfig{MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	stage := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata["junk"] = "x"
			return h(msg)
		}
	}
	msg := newMessage(t.Context())
	want := maps.Clone(msg.Metadata)
	if _, err := newPoison(t, dlt).Middleware(stage(retry(fails(errDown))))(msg); err != nil {
		t.Fatal(err)
	}
	if _, r := dlt.only(t); !maps.Equal(r.Metadata, want) {
		t.Errorf("metadata of the dead letter %v, want %v", r.Metadata, want)
	}
}

func TestStatsTellSinceWhenNothingCanBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dlt := &dltPublisher{refuse: func(*message.Message) error { return errRefuse }}
		p := newPoison(t, dlt)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		for range 3 {
			wait.Go(func() { _, _ = p.Middleware(fails(classify.Permanent(errDown)))(newMessage(ctx)) })
			time.Sleep(time.Minute)
		}
		if stats := p.Stats(); stats.Held != 3 || !stats.Since.Equal(start) {
			t.Errorf("%d held since %v, want 3 since %v", stats.Held, stats.Since, start)
		}
		cancel()
		wait.Wait()
		if stats := p.Stats(); stats.Held != 0 || !stats.Since.IsZero() {
			t.Errorf("%d held since %v, want none", stats.Held, stats.Since)
		}
	})
}

func TestSecondCopyHasTheSameID(t *testing.T) {
	id := func(consumer string, change func(*message.Message)) string {
		dlt := &dltPublisher{}
		p := newPoison(t, dlt, func(c *poison.Config) { c.Consumer = consumer })
		msg := newMessage(t.Context())
		if change != nil {
			change(msg)
		}
		if _, err := p.Middleware(fails(classify.Permanent(errDown)))(msg); err != nil {
			t.Fatal(err)
		}
		dead, r := dlt.only(t)
		if dead.UUID != r.ID {
			t.Errorf("UUID %q, record's id %q", dead.UUID, r.ID)
		}
		return dead.UUID
	}
	const want = "413ab7f0-f585-8fb0-ae32-899518ff2720" // frozen: copies of before an upgrade must be recognised
	first := id("billing.orders", nil)
	if second := id("billing.orders", nil); second != first {
		t.Errorf("a second copy has id %s, the first %s", second, first)
	}
	if first != want {
		t.Errorf("id %s, want %s", first, want)
	}
	anonymous := func(msg *message.Message) {
		msg.UUID, msg.Metadata = "", message.Metadata{}
		flight.From(msg.Context()).Delivery.Incarnation = ""
		flight.From(msg.Context()).Delivery.Time = time.Time{}
	}
	for name, other := range map[string]string{
		"another consumer":     id("mailing.orders", nil),
		"another message":      id("billing.orders", func(m *message.Message) { m.Metadata["ce_id"] = "e-2" }),
		"its second death":     id("billing.orders", func(m *message.Message) { m.Metadata[poison.MetaDeaths] = "1" }),
		"a message with no id": id("billing.orders", anonymous),
		"the runtime's own id": id("billing.orders", func(m *message.Message) { flight.From(m.Context()).ID = "key:42" }),
		"its sixth death":      id("billing.orders", func(m *message.Message) { m.Metadata[poison.MetaDeaths] = "5" }),
	} {
		if other == first || len(other) != 36 {
			t.Errorf("%s: id %q, want another than %q", name, other, first)
		}
	}
	if a, b := id("billing.orders", anonymous), id("billing.orders", anonymous); a == b {
		t.Errorf("two messages with no id have the same dead letter's id %q", a)
	}
}

func TestHeadersAreReplacedNotAccumulated(t *testing.T) {
	var size int
	dlt := &dltPublisher{}
	msg := newMessage(t.Context())
	msg.Metadata["headrace_dlt_of_the_future"] = "x"
	msg.Metadata[event.MetaFrozenID] = "forged"
	for death := 1; death <= 5; death++ {
		dlt.messages = nil
		err := gaveUp(classify.VerdictPoison, &classify.PanicError{Value: "bug", Stack: []byte("a stack")})
		if _, err := newPoison(t, dlt).Middleware(fails(err))(msg); err != nil {
			t.Fatal(err)
		}
		dead, r := dlt.only(t)
		if r.Deaths != death || r.MessageID != "ce:/shop e-1" {
			t.Errorf("death %d is counted as %d, message id %q", death, r.Deaths, r.MessageID)
		}
		if size == 0 {
			size = len(dead.Metadata)
		} else if len(dead.Metadata) != size {
			t.Errorf("death %d: %d keys, want %d", death, len(dead.Metadata), size)
		}
		msg = newMessage(t.Context())
		msg.Metadata = dead.Metadata // redriven
	}
}

func TestTraceParentIsThatOfTheFailure(t *testing.T) {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: 1})
	for _, test := range []struct {
		ctx  context.Context
		want string
	}{
		{trace.ContextWithSpanContext(t.Context(), span), "00-01000000000000000000000000000000-0200000000000000-01"},
		{t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	} {
		dlt := &dltPublisher{}
		msg := newMessage(test.ctx)
		if _, err := newPoison(t, dlt).Middleware(fails(classify.Permanent(errDown)))(msg); err != nil {
			t.Fatal(err)
		}
		dead, r := dlt.only(t)
		if r.TraceParent != test.want {
			t.Errorf("traceparent of the failure %q, want %q", r.TraceParent, test.want)
		}
		if got := dead.Metadata["traceparent"]; got != msg.Metadata["traceparent"] {
			t.Errorf("the message's own traceparent became %q", got)
		}
	}
}

func TestAPublisherThatPanicsIsAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dlt := &dltPublisher{}
		dlt.refuse = func(*message.Message) error {
			if dlt.tries == 1 {
				panic("driver bug")
			}
			return nil
		}
		msg := newMessage(t.Context())
		if _, err := newPoison(t, dlt).Middleware(fails(classify.Permanent(errDown)))(msg); err != nil || receipt(msg) != flight.DeadLettered {
			t.Errorf("error %v, receipt %v: want it dead-lettered at the second try", err, receipt(msg))
		}
	})
}

// cruelError has an Error method that panics.
type cruelError struct{}

func (*cruelError) Error() string { panic("no text") }

func TestAnErrorThatPanicsIsStillDeadLettered(t *testing.T) {
	dlt := &dltPublisher{}
	if _, err := newPoison(t, dlt).Middleware(fails(classify.Permanent((*cruelError)(nil))))(newMessage(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, r := dlt.only(t); !strings.Contains(r.Error, "no text") {
		t.Errorf("error %q, want what its method panicked with", r.Error)
	}
}

func TestConfigIsChecked(t *testing.T) {
	dlt := &dltPublisher{}
	tests := []struct {
		change func(*poison.Config)
		want   string // in the error; "": it is right
	}{
		{func(*poison.Config) {}, ""},
		{func(c *poison.Config) { c.MaxStackBytes = poison.NoStack }, ""},
		{func(c *poison.Config) { c.WriteDelay = time.Hour }, ""},
		{func(c *poison.Config) { c.Consumer = "" }, `Consumer is ""`},
		{func(c *poison.Config) { c.Consumer = "a\nb" }, `Consumer is "a\nb"`},
		{func(c *poison.Config) { c.Publisher = nil }, "Publisher is nil"},
		{func(c *poison.Config) { c.MaxMessageBytes = -1 }, "MaxMessageBytes is -1"},
		{func(c *poison.Config) { c.MaxStackBytes = -2 }, "MaxStackBytes is -2"},
		{func(c *poison.Config) { c.MaxHeaderBytes = 1023 }, "MaxHeaderBytes is 1023: want at least 1024"},
		{func(c *poison.Config) { c.WriteTimeout = -time.Second }, "WriteTimeout is -1s"},
		{func(c *poison.Config) { c.WriteDelay = -time.Second }, "WriteDelay is -1s"},
		{func(c *poison.Config) { c.MaxWriteDelay = -time.Second }, "MaxWriteDelay is -1s"},
		{func(c *poison.Config) { c.WriteDelay, c.MaxWriteDelay = time.Second, time.Millisecond }, "MaxWriteDelay is 1ms: want at least WriteDelay, 1s"},
	}
	for _, test := range tests {
		c := poison.Config{Consumer: "billing.orders", Publisher: dlt}
		test.change(&c)
		_, err := poison.New(c)
		switch {
		case test.want == "" && err != nil:
			t.Errorf("error %v, want none", err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), "poison.Config."+test.want)):
			t.Errorf("error %v, want one with %q", err, test.want)
		}
	}
}

// A poison message of nearly the broker's largest size could not be dead-lettered: with our headers it was too
// large, and its lane and the service's readiness were lost for ever.
func TestD7MessageOfTheLargestSizeIsReferredTo(t *testing.T) {
	errTooLarge := classify.Permanent(errors.New("maximum payload exceeded"))
	refusal := errTooLarge
	tooLarge := func(msg *message.Message) error {
		if len(msg.Payload) > 0 {
			return refusal
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		dlt := &dltPublisher{refuse: tooLarge}
		p := newPoison(t, dlt, func(c *poison.Config) { c.Refer = true })
		msg := newMessage(t.Context())
		if _, err := p.Middleware(fails(classify.Permanent(errDown)))(msg); err != nil {
			t.Fatalf("error %v, want none", err)
		}
		_, r := dlt.only(t)
		if !r.Reference || r.Payload != nil || r.Topic != "orders" || r.Partition != 3 || r.Offset != 41 || r.Incarnation != "inc-1" ||
			r.Consumer != "billing.orders" || r.Error == "" || r.MessageID == "" {
			t.Errorf("got %+v, want a reference to orders inc-1/3/41 that says why", r)
		}
		if p.Blocked() != 0 || receipt(msg) != flight.DeadLettered {
			t.Errorf("%d held, receipt %v; want none, dead_lettered", p.Blocked(), receipt(msg))
		}
	})
	// Where the broker would forget the original, it is held.
	for name, change := range map[string]func(*poison.Config, *flight.Flight){
		"not allowed": func(*poison.Config, *flight.Flight) {},
		"no offset": func(c *poison.Config, f *flight.Flight) {
			c.Refer = true
			f.Delivery = &brokers.Delivery{Topic: "orders", Partition: -1, Offset: -1}
		},
		"not for good": func(c *poison.Config, _ *flight.Flight) {
			c.Refer = true
			refusal = errRefuse
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refusal = errTooLarge
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				msg := newMessage(ctx)
				dlt := &dltPublisher{refuse: tooLarge}
				p := newPoison(t, dlt, func(c *poison.Config) { change(c, flight.From(msg.Context())) })
				if _, err := p.Middleware(fails(classify.Permanent(errDown)))(msg); err == nil || receipt(msg) != flight.NoReceipt {
					t.Errorf("error %v, receipt %v; want an error and none", err, receipt(msg))
				}
			})
		})
	}
}

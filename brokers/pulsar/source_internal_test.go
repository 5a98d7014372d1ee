package pulsar

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
)

// offering offers messages to a source that forwards, as the client does.
type offering struct {
	*source
	in    chan received
	log   lines
	taken chan string // payloads of what was taken
	cease func()      // ends the source
}

// lines are what was logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// offer has the source forward in this bubble, until the test ends.
func offer(t *testing.T) *offering {
	o := &offering{source: newSource("topic"), in: make(chan received), log: make(lines, 10), taken: make(chan string, 10)}
	go o.forward(o.in, slog.New(slog.NewTextHandler(o.log, nil)))
	o.cease = sync.OnceFunc(func() { close(o.end) })
	t.Cleanup(func() {
		o.cease()
		close(o.gone)
	})
	return o
}

// send offers one message. It does not wait.
func (o *offering) send(payload string) {
	go func() {
		o.offered <- pulsarclient.ConsumerMessage{Message: arrived{sent: &pulsarclient.ProducerMessage{Payload: []byte(payload)}}}
		o.taken <- payload
	}()
	synctest.Wait()
}

// The client offers a message of the lost connection until it has another: whoever takes it has what the server gives to others.
func TestNothingIsTakenUntilTheClientHasConnectedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := offer(t)
		o.mended <- struct{}{} // of an earlier time
		policy := o.breakUp()
		o.send("stale")
		if len(o.taken) > 0 {
			t.Fatal("it was taken while there was no connection")
		}
		o.breakUp() // nor after another try
		synctest.Wait()
		if len(o.taken) > 0 {
			t.Fatal("it was taken after the second loss of the connection")
		}
		if string((<-o.offered).Payload()) != "stale" { // the client drops it
			t.Fatal("another message was offered")
		}
		policy.Reset()
		o.send("new")
		if got := <-o.in; string(got.message.Payload()) != "new" || got.breaks != 2 || got.source != o.source {
			t.Errorf("got %q after %d breaks, want new after 2", got.message.Payload(), got.breaks)
		}
	})
}

// A message was taken, and there is no room for it, when the connection is lost.
func TestWhatWasTakenIsDroppedWhenTheConnectionIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := offer(t)
		o.send("stale")
		if len(o.taken) != 1 {
			t.Fatal("it was not taken")
		}
		policy := o.breakUp()
		o.send("stale as well")
		if len(o.taken) > 1 {
			t.Fatal("another was taken while there was no connection")
		}
		<-o.offered
		policy.Reset()
		o.send("new")
		if got := <-o.in; string(got.message.Payload()) != "new" || got.breaks != 1 {
			t.Errorf("got %q after %d breaks, want new after 1", got.message.Payload(), got.breaks)
		}
	})
}

// The client gives up, and tells nobody, when the topic was deleted.
func TestLongSilenceIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := offer(t)
		policy := o.breakUp()
		time.Sleep(silence - time.Second)
		synctest.Wait()
		if len(o.log) > 0 {
			t.Errorf("before its time: %s", <-o.log)
		}
		time.Sleep(2*silence + time.Second)
		synctest.Wait()
		policy.Reset()
		time.Sleep(2 * silence)
		if len(o.log) != 3 {
			t.Fatalf("%d lines in the 3 minutes without a connection and 2 with one, want 3", len(o.log))
		}
		if line := <-o.log; !strings.Contains(line, "the client has not connected again") || !strings.Contains(line, "level=ERROR") {
			t.Errorf("it logs %s", line)
		}
	})
}

// A source that has ended takes what is offered, and drops it: else the client would not read the server's answer to its last word.
func TestEndedSourceDropsWhatIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := offer(t)
		o.send("in its hand")
		o.cease()
		synctest.Wait() // else it may take the next before it looks whether it has ended
		o.send("later")
		if len(o.taken) != 2 {
			t.Errorf("%d of 2 messages were taken", len(o.taken))
		}
		o.breakUp() // it waits for nobody
	})
}

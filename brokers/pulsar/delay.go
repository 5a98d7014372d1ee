package pulsar

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	pulsarclient "github.com/apache/pulsar-client-go/pulsar"
)

// delayNote is what a delayed message has in the property headrace-delay, as JSON: where it was before, and how often it was delivered.
type delayNote struct {
	Partition int32 `json:"partition"`
	Offset    int64 `json:"offset"`
	Time      int64 `json:"time"` // stored, Unix ms
	Count     int   `json:"count"`
	Until     int64 `json:"until"` // not before, Unix ms
}

// readDelay returns the note of a message on a topic of delayed ones, or nil if somebody else has sent it.
func readDelay(m pulsarclient.Message) *delayNote {
	text, ok := m.Properties()[propertyDelay]
	if !ok {
		return nil
	}
	note := new(delayNote)
	if err := json.Unmarshal([]byte(text), note); err != nil || note.Count < 0 {
		return nil
	}
	return note
}

// delay sends e to the consumer's topic of delayed messages, and acks it when the server has it there. If that fails, it is kept here until
// its time.
func (s *subscription) delay(e *entry, until time.Time) {
	until = until.Add(time.Millisecond) // only whole ones count
	note := delayNote{e.source.partition, e.at.offset(), e.message.PublishTime().UnixMilli(), e.count, until.UnixMilli()}
	if e.note != nil {
		note.Partition, note.Offset, note.Time = e.note.Partition, e.note.Offset, e.note.Time
	}
	text, err := json.Marshal(note)
	if err == nil {
		properties := make(map[string]string, len(e.message.Properties())+1)
		maps.Copy(properties, e.message.Properties())
		properties[propertyDelay] = string(text)
		err = s.sendDelayed(&pulsarclient.ProducerMessage{
			Payload:     e.message.Payload(),
			Key:         e.message.Key(),
			OrderingKey: e.message.OrderingKey(),
			Properties:  properties,
			EventTime:   e.message.EventTime(),
			DeliverAt:   until,
		})
	}
	if err != nil {
		s.log.Warn("pulsar: a delayed message could not be stored; it waits here", "error", err)
		s.comeAgain(again{entry: e, at: until, counts: true})
		return
	}
	s.ack(e.source, []*entry{e})
}

func (s *subscription) sendDelayed(m *pulsarclient.ProducerMessage) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.PublishTimeout)
	defer cancel()
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	errs := make([]error, 1)
	s.broker.producers.send(ctx, s.config.DelayTopic(s.topic, s.consumer), []*pulsarclient.ProducerMessage{m}, errs)
	return errs[0]
}

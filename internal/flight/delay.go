package flight

import "time"

// Earlier is what earlier deliveries of a message came to that were put off and not lost.
type Earlier struct {
	Attempts     int       // runs of the handler
	FirstFailure time.Time // when the first of them had failed
}

// Delays says who acts on a delay that is too long for the lane.
type Delays uint8

// Who acts on delays.
const (
	DelaysByBroker Delays = iota // the broker, where it can delay one message
	DelaysOutside                // else a stage outside of the retries; later messages of the key go on
	DelaysInOrder                // a stage outside of the retries; later messages of the key wait
	DelaysNowhere                // nobody: the lane is held
)

// CanDelay tells whether the message can leave its lane and come again later, in order with its key if need be.
func (f *Flight) CanDelay(inOrder bool) bool {
	switch f.Delays {
	case DelaysInOrder:
		return true
	case DelaysOutside:
		return !inOrder
	case DelaysByBroker:
		return !inOrder && f.BrokerDelays()
	case DelaysNowhere:
	}
	return false
}

// BrokerDelays tells whether the broker can deliver the message again after a time.
func (f *Flight) BrokerDelays() bool { return f.Delivery != nil && f.Delivery.Delay != nil }

// Delay makes the broker deliver the message again after d. If it cannot, the delivery is released. It reports
// whether this call settled it.
func (f *Flight) Delay(d time.Duration) bool {
	if !f.BrokerDelays() {
		return f.Release()
	}
	if !f.settle(Delayed) {
		return false
	}
	if !f.Delivery.Delay(d) {
		f.settled.Store(uint32(Released))
		if f.Delivery.Release != nil {
			f.Delivery.Release()
		}
	}
	return true
}

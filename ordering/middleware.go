package ordering

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
)

// Middleware is a Watermill message.HandlerMiddleware, the other half of [Intake.Decorate]. Add it to
// the router as the first one: it has to return last.
//
// When h has returned and no stage has settled the delivery, Middleware does:
//
//   - without an error it is acked. If h returned messages, that waits until the router has published
//     them, and so does the lane; if it could not, the delivery is nacked.
//   - with an error it is nacked; or released if its context is done, since then nobody failed, or if
//     its subscription is stopped.
//   - after a panic or runtime.Goexit likewise. The panic goes on.
//
// Then its lane goes on; with Config.Successors, the caller's goroutine goes on with it. A delivery whose context was done before h is called is released, and h is not called.
func (in *Intake) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		d := deliveryOf(msg.Context())
		if d == nil || d.sub.intake != in {
			return nil, errNotDecorated(msg, in.cfg.Consumer)
		}
		if d.entered { // the middleware was added twice: the outer one does it all
			return h(msg)
		}
		return in.handle(d, msg, h)
	}
}

// handle runs d, and those that come after it in the same goroutine.
func (in *Intake) handle(d *delivery, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	router := msg.Context()
	for more := in.successors(); ; more-- {
		d.entered = true
		var next *delivery
		if d.ended() {
			d.Release()
			next = in.finish(d, more > 0)
		} else {
			outputs, err := in.run(d, msg, h)
			if err != nil || len(outputs) > 0 {
				return outputs, err
			}
			next = in.finish(d, more > 0)
		}
		if next == nil {
			return nil, nil
		}
		d, msg = next, &next.View
		d.router = router //nolint:fatcontext // each has a place of its own for the same one
	}
}

// run runs and settles d, which it has finished too if it returns messages or an error.
func (in *Intake) run(d *delivery, msg *message.Message, h message.HandlerFunc) (outputs []*message.Message, err error) {
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			d.fail()
			in.finish(d, false)
		}
	}()
	outputs, err = h(msg)
	returned = true

	if d.Settlement() == flight.Unsettled {
		switch {
		case err != nil:
			d.fail()
		case len(outputs) > 0:
			in.settleWithView(d, msg)
			return outputs, nil
		default:
			d.Ack()
		}
	}
	if err != nil || len(outputs) > 0 {
		in.finish(d, false)
	}
	return outputs, err
}

// settleWithView settles d as the router settles its view, after it has published the outputs.
func (in *Intake) settleWithView(d *delivery, msg *message.Message) {
	// A view is made without channels, which few need. The handler has returned and the router waits
	// for us: nobody else uses msg now. What the handler itself did to them has no meaning.
	ctx, metadata := msg.Context(), msg.Metadata
	*msg = *message.NewMessage(msg.UUID, msg.Payload)
	msg.Metadata = metadata
	msg.SetContext(ctx)
	acked, nacked := msg.Acked(), msg.Nacked()
	// The subscription holds d until this has ended, and its drain waits for that.
	go func() {
		select {
		case <-acked:
			d.Ack()
		case <-nacked:
			d.fail()
		}
		in.finish(d, false)
	}()
}

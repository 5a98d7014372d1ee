package ordering_test

import (
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/internal/flight"
	"github.com/headrace-go/headrace/ordering"
)

// A handler gave its message back before the broker's patience was over; the next of its key ran before it came again.
func TestI3WhatIsGivenBackTakesTheRestOfItsLaneAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, ordering.Config{Concurrency: 1})
		a, b := r.push("orders", "a", "a1", "a2", "a3"), r.push("orders", "b", "b1")
		gate := make(chan struct{})
		r.handler = func(msg *message.Message) ([]*message.Message, error) {
			r.note("+" + msg.UUID)
			if msg.UUID == "a1" {
				<-gate
				flight.From(msg.Context()).Release()
				return nil, errTest
			}
			return nil, nil
		}
		r.subscribe("orders")
		close(gate)
		r.wantEvents("+a1", "+b1")
		wantSettled(t, "released", a...)
		wantSettled(t, "acked", b...)
		r.push("orders", "a", "a4")
		r.wantEvents("+a4")
		r.close()
	})
}

package ordering

import "time"

// readPull is read for a subscription that is pulled from. Most messages are taken by whoever has finished one; this takes the rest.
func (s *subscription) readPull(cancelled <-chan struct{}) {
	defer s.sweepRest()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	ready := s.pull.Ready()
	for stopped := false; !stopped; {
		s.pullSome(false)
		select {
		case _, open := <-ready:
			if !open {
				return
			}
		case <-s.room:
		case <-sweep.C:
			if !s.checkRoom() {
				s.intake.dropEnded()
			}
		case <-s.stop:
			stopped = true
		}
	}
	// As read does: nothing is taken while handlers finish.
	<-cancelled
	for open := true; open; {
		_, open = <-ready
	}
}

// pullSome takes what there is, and there is room for, into the lanes. If its caller wants one, it returns the first that may run.
func (s *subscription) pullSome(want bool) (successor *delivery) {
	s.pulling.Lock()
	defer s.pulling.Unlock()
	for room := s.checkRoom(); room; {
		msg := s.pull.Next()
		if msg == nil {
			return successor
		}
		var (
			next     *delivery
			admitted bool
		)
		next, admitted, room = s.admit(msg, want)
		if !admitted { // it was stopped a moment ago: nobody pulls what this gives back
			s.release(msg)
			return successor
		}
		if next != nil {
			successor, want = next, false
		}
	}
	return successor
}

package flight

// A call of runtime.Goexit cannot be stopped: it ends the goroutine and with it every stage's frame. So the
// outermost middleware.Recover, the guard, runs the stages a second time while the goroutine ends, and the
// inner one answers that run with an error instead of calling the handler again. These methods are what
// the two say to each other.

// Guard makes the caller the guard, if there is none yet, and reports whether it did.
func (f *Flight) Guard() bool {
	if f.guarded {
		return false
	}
	f.guarded = true
	return true
}

// Unguard ends what Guard began, and forgets what was noted.
func (f *Flight) Unguard() { f.guarded, f.exit, f.exited = false, nil, nil }

// NoteExit tells the guard, if there is one and the goroutine does end, why it does.
func (f *Flight) NoteExit(err error) { f.exit = err }

// Resume makes the noted error the answer to the next run of the stages. It reports false if none was noted.
func (f *Flight) Resume() bool {
	f.exited, f.exit = f.exit, nil
	return f.exited != nil
}

// TakeExit returns the answer that Resume left, once, or nil.
func (f *Flight) TakeExit() error {
	err := f.exited
	f.exited = nil
	return err
}

package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// progress shows how far a run is: a line rewritten in place on a terminal, a line a second elsewhere.
type progress struct {
	w        io.Writer
	terminal bool
	last     time.Time
	shown    bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{w: w, last: time.Now()}
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) show(line string) {
	switch {
	case p.terminal && time.Since(p.last) > 50*time.Millisecond:
		fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	case !p.terminal && time.Since(p.last) > time.Second:
		fmt.Fprintln(p.w, line)
	default:
		return
	}
	p.last, p.shown = time.Now(), true
}

// end leaves the terminal's line.
func (p *progress) end() {
	if p.terminal && p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

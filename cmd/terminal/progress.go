package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress is shown only where the work is long enough to make a person wonder.
const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
	linesEvery    = 5 * time.Second
)

// Progress draws a bar where its output is a terminal, and prints a JSON line
// now and then where it is not. It is for one goroutine.
type Progress struct {
	out     io.Writer
	what    string
	bytes   bool
	bar     *progressbar.ProgressBar
	tty     bool
	started time.Time
	last    time.Time
	err     error
}

// NewProgress makes a bar of bytes or of events. what says what goes on:
// verifying, rebuilding.
func NewProgress(out io.Writer, what string, bytes bool) *Progress {
	f, ok := out.(*os.File)
	return &Progress{out: out, what: what, bytes: bytes, tty: ok && term.IsTerminal(int(f.Fd())), started: time.Now()}
}

// Step tells how much of the work is done.
func (p *Progress) Step(done, total int64) {
	now := time.Now()
	if p.err != nil || now.Sub(p.started) < progressAfter {
		return
	}
	if p.tty {
		p.draw(done, total)
		return
	}
	if now.Sub(p.last) >= linesEvery {
		p.last = now
		_, p.err = fmt.Fprintf(p.out, "{\"progress\":%q,\"done\":%d,\"total\":%d}\n", p.what, done, total)
	}
}

func (p *Progress) draw(done, total int64) {
	if p.bar == nil {
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(p.out), progressbar.OptionSetDescription(p.what),
			progressbar.OptionShowBytes(p.bytes), progressbar.OptionUseIECUnits(true), progressbar.OptionThrottle(progressEvery),
			progressbar.OptionSetPredictTime(true), progressbar.OptionClearOnFinish())
	}
	p.err = p.bar.Set64(done)
}

// Done takes the bar away.
func (p *Progress) Done() error {
	if p.bar == nil {
		return p.err
	}
	return errors.Join(p.err, p.bar.Finish())
}

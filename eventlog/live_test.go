package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
	"writegate/eventlog/frame/frametest"
)

// aLife goes once through what a log does: it is opened, takes groups through
// two rotations, is closed, opened again and verified. It tells what was tried and
// what was acknowledged, and ends at the first error that is told to anybody.
func aLife(o Options, tell func(format string, args ...any)) error {
	o.SegmentBytes = frame.HeaderSize + 300
	if err := stretchOfLife(o, "first", 6, tell); err != nil {
		return err
	}
	if _, err := Verify(context.Background(), o); err != nil {
		return err
	}
	return stretchOfLife(o, "second", 2, tell)
}

func stretchOfLife(o Options, name string, groups int, tell func(format string, args ...any)) error {
	l, rec, err := Open(context.Background(), o)
	if err != nil {
		return err
	}
	if err := l.Serving(); err != nil {
		return errors.Join(err, l.Close(context.Background()))
	}
	if len(rec.Tails) > 0 {
		d := draft("", 1)
		d.Type, d.Payload = event.TypeLogTailRecovered, (&event.LogTailRecovered{Tails: rec.Tails}).Fields()
		if _, err := l.Append(context.Background(), Group{Drafts: []event.Draft{d}}); err != nil {
			return errors.Join(err, l.Close(context.Background()))
		}
	}
	for i := range groups {
		group := fmt.Sprintf("%s-%d-%d", name, os.Getpid(), i)
		tell("try %s 2\n", group)
		c, err := l.Append(context.Background(), Group{Drafts: []event.Draft{draft(group+"/0", 100), draft(group+"/1", 100)}})
		if err != nil {
			return errors.Join(err, l.Close(context.Background()))
		}
		tell("ack %s %d\n", group, c.First)
	}
	return l.Close(context.Background())
}

// told adds what a life tells to the ledger.
func (k *ledger) told(t testing.TB, line string) {
	t.Helper()
	var verb, name string
	var n int
	_, err := fmt.Sscan(line, &verb, &name, &n)
	require.NoError(t, err, line)
	switch verb {
	case "try":
		k.sizes[name] = n
	case "ack":
		for i := range k.sizes[name] {
			k.acked[fmt.Sprintf("%s/%d", name, i)] = uint64(n + i)
		}
	}
}

// TestACallThatFailsOnceLosesNothing fails each call that a life makes of its
// file system, one life for each, and holds what is left against what was told.
// `make faults` does the same to the system calls below.
func TestACallThatFailsOnceLosesNothing(t *testing.T) {
	for _, cause := range []error{io.ErrUnexpectedEOF, io.ErrShortWrite} {
		for nth := 1; ; nth++ {
			mem, known, calls := newMem(t), newLedger(), newCounter(nth)
			o := memOptions(mem)
			o.PreallocateBytes = 4 << 10
			broken := o
			broken.FS = frametest.Inject(mem, func(op frametest.Op) error {
				if !calls.now() {
					return nil
				}
				if errors.Is(cause, io.ErrShortWrite) && op.Kind == frametest.Pwrite {
					return frametest.Short{N: op.Len / 2, Err: cause}
				}
				return cause
			})
			err := aLife(broken, func(format string, args ...any) { known.told(t, fmt.Sprintf(format, args...)) })
			if !calls.passed() {
				require.NoError(t, err, "no call failed")
				require.Greater(t, nth, 60)
				break
			}
			o.FS = frametest.Over(mem.VFS) // its process is over, and its locks with it
			known.reopen(t, o)
		}
	}
}

// counter tells which of many calls is the one.
type counter struct {
	left atomic.Int64
}

func newCounter(nth int) *counter {
	c := new(counter)
	c.left.Store(int64(nth))
	return c
}

func (c *counter) now() bool    { return c.left.Add(-1) == 0 }
func (c *counter) passed() bool { return c.left.Load() <= 0 }

package eventlog

import (
	"context"
	"fmt"
	"iter"

	"writegate/eventlog/frame"
)

// Frames gives the durable frames from first to last, both included, in order
// and checked as From checks them: what evidence bundles are written from. A
// record is valid until the next step of the loop. Errors are those of From,
// and ErrNotFound for a range that the log has not.
func (l *Log) Frames(ctx context.Context, first, last uint64) iter.Seq2[frame.Frame, error] {
	return func(yield func(frame.Frame, error) bool) {
		head := l.Head()
		if first == 0 || last > head.Seq || first > last {
			yield(frame.Frame{}, fmt.Errorf("%w: %d to %d, the log has 1 to %d", ErrNotFound, first, last, head.Seq))
			return
		}
		for p, err := range l.frames(ctx, first, head) {
			if err != nil {
				yield(frame.Frame{}, err)
				return
			}
			if !yield(p.Frame, nil) || p.Seq == last {
				return
			}
		}
	}
}

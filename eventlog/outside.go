package eventlog

import (
	"context"
	"iter"
	"math"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// Vouched reads the events of a log from outside, in order from seq on, as far
// as report found nothing wrong (VerifiedTo); report is frame.Verify's of the
// whole set. It takes no writer's lock and writes nothing: it is for a log that a
// gate is writing, and for one that a crash or an attacker left.
func Vouched(ctx context.Context, set *frame.Set, report *frame.Report, seq uint64) iter.Seq2[event.Envelope, error] {
	return vouched(ctx, set, report.VerifiedTo, seq)
}

// framesOf reads events that nobody has verified, for what is checked otherwise.
func framesOf(ctx context.Context, set *frame.Set) iter.Seq2[event.Envelope, error] {
	return vouched(ctx, set, math.MaxUint64, 1)
}

func vouched(ctx context.Context, set *frame.Set, last, seq uint64) iter.Seq2[event.Envelope, error] {
	return func(yield func(event.Envelope, error) bool) {
		for f, err := range set.Frames(ctx, last) {
			if err != nil {
				yield(event.Envelope{}, readError(err))
				return
			}
			if f.Seq < seq {
				continue
			}
			e, err := envelope(&f.Frame)
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

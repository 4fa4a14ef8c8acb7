package agentctl

import (
	"context"
	"errors"
	"iter"

	"writegate/eventlog"
	"writegate/projections"
)

// skipAfter is how many events a stream passes between two questions to the index.
const skipAfter = 1024

// skipping is a log without the long stretches in which, by the index, a filter finds
// nothing: to catch up costs as much as there is to tell, and not as the log is long.
type skipping struct {
	service *Service
	filter  projections.AuditFilter
	log     Follower
}

// stream gives the events from seq on, and may leave out such as the filter does not select.
func (s skipping) stream(ctx context.Context, seq uint64) iter.Seq2[eventlog.Batch, error] {
	return func(yield func(eventlog.Batch, error) bool) {
		for skipped := true; skipped; {
			next, err := s.next(ctx, seq)
			if err != nil {
				yield(eventlog.Batch{}, err)
				return
			}
			if seq, skipped, err = s.from(ctx, next, yield); err != nil {
				yield(eventlog.Batch{}, err)
				return
			}
		}
	}
}

// from streams the log until the index knows of a stretch to skip, before seq. An
// error is the index's.
func (s skipping) from(ctx context.Context, begin uint64, yield func(eventlog.Batch, error) bool) (seq uint64, skipped bool, err error) {
	asked := begin
	for batch, err := range s.log.Stream(ctx, begin) {
		if !yield(batch, err) || err != nil {
			return 0, false, nil
		}
		last := batch.Last()
		if last < asked+skipAfter {
			continue
		}
		next, err := s.next(ctx, last+1)
		if err != nil || next > last+skipAfter {
			return next, true, err
		}
		asked = last
	}
	return 0, false, nil
}

// next is the first event from seq on that the filter may select: behind what is
// indexed every event is one.
func (s skipping) next(ctx context.Context, seq uint64) (uint64, error) {
	f := s.filter
	f.FromSeq = max(f.FromSeq, seq)
	var found []uint64
	var applied uint64
	err := s.service.view(ctx, func(view *projections.View) (err error) {
		applied = view.Applied().Seq
		found, _, err = view.Audit(f, projections.Page{Limit: 1, Asc: true})
		return err
	})
	switch {
	case errors.Is(err, projections.ErrNotConnected):
		return seq, nil
	case err != nil:
		return 0, err
	case len(found) > 0:
		return found[0], nil
	}
	return max(seq, applied+1), nil
}

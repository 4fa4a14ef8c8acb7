package projections

import (
	"context"
	"errors"
	"fmt"

	"writegate/eventlog/event"
)

// A Recorded is a digest of the projections that the log itself carries.
type Recorded struct {
	Event      uint64 // that carries it
	AsOf       uint64 // the last event that was folded
	Digest     [32]byte
	Projectors int // their version
}

// RecordedIn gives the digest that an event carries. Logs of earlier programs have
// some that do not say as of which event they are: those can't be compared.
func RecordedIn(e *event.Envelope) (r Recorded, ok bool, err error) {
	r.Event = e.Seq
	switch e.Type {
	case event.TypeShutdown:
		var p event.Shutdown
		err = e.Parse(&p)
		r.AsOf, r.Digest, r.Projectors = p.DigestSeq, p.Digest, p.DigestProjectors
	case event.TypeCheckpointSigned:
		var p event.CheckpointSigned
		err = e.Parse(&p)
		r.AsOf, r.Digest, r.Projectors = p.Size, p.Digest, p.DigestProjectors
	}
	return r, err == nil && r.Digest != [32]byte{} && r.AsOf > 0 && r.AsOf < e.Seq && r.Projectors > 0, err
}

// A Divergence is a recorded digest that a replay does not reach. The log is
// right: its hashes are checked elsewhere. A projector is at fault, then or now.
type Divergence struct {
	Recorded
	Replayed [32]byte
}

// A Refolded is what a replay of the whole log has found.
type Refolded struct {
	Applied     Applied
	Digest      [32]byte // as of Applied
	Compared    int      // recorded digests that this program's projectors can be held against
	Skipped     int      // those of projectors in another version
	Divergences []Divergence
}

// Refold folds a log into an empty store in o.Dir, and on its way holds the
// projections against every digest that the log carries.
func Refold(ctx context.Context, o Options, src Source) (out Refolded, err error) {
	due, err := recordedDigests(ctx, src, &out)
	if err != nil {
		return out, err
	}
	o.Context = ctx
	s, err := Open(o)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if s.space.applied.Seq > 0 {
		return out, fmt.Errorf("the store in %s is not empty", o.Dir)
	}
	s.connected = true // nobody else has it
	if err := s.inherit(ctx, s.space, src); err != nil {
		return out, err
	}
	r := &replay{store: s, space: s.space, known: Applied{LogID: src.LogID()}, block: block{no: blockOf(1)}, growth: s.space.growth}
	r.taken = func(seq uint64) error {
		if len(due[seq]) == 0 {
			return nil
		}
		return errors.Join(r.settle(), s.compare(ctx, due[seq], &out))
	}
	if err := r.run(ctx, "replay the log", chunksOf(src, 1)); err != nil {
		return out, err
	}
	out.Applied = s.Applied()
	_, out.Digest, err = s.Digest(ctx)
	return out, err
}

// recordedDigests gives the digests of a log by the event they are as of.
func recordedDigests(ctx context.Context, src Source, out *Refolded) (map[uint64][]Recorded, error) {
	due := map[uint64][]Recorded{}
	for e, err := range src.From(ctx, 1) {
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		rec, ok, err := RecordedIn(&e)
		switch {
		case err != nil:
			return nil, fmt.Errorf("event %d: %w", e.Seq, err)
		case ok && rec.Projectors != ProjectorVersion:
			out.Skipped++
		case ok:
			due[rec.AsOf] = append(due[rec.AsOf], rec)
		}
	}
	return due, nil
}

func (s *Store) compare(ctx context.Context, due []Recorded, out *Refolded) error {
	_, digest, err := s.Digest(ctx)
	if err != nil {
		return err
	}
	for _, rec := range due {
		if out.Compared++; rec.Digest != digest {
			out.Divergences = append(out.Divergences, Divergence{Recorded: rec, Replayed: digest})
		}
	}
	return nil
}

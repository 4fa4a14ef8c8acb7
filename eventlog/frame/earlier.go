package frame

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
)

// RetiredLog is the name of the log's file in its folder of W.retired, whatever W was
// called.
const RetiredLog = "audit.wal"

// RetiredPath is where the log with an id lies after another one took its place at w.
func RetiredPath(w string, id [16]byte) string {
	return filepath.Join(w+RetiredSuffix, hex.EncodeToString(id[:]), RetiredLog)
}

// RetiredFrom is the W in whose W.retired the log at a path lies, beside those before
// it; ok is false, and w the path itself, where it lies in no such folder. It tells that
// from the text of the path, whatever the log's own folder there is called.
func RetiredFrom(path string) (w string, ok bool) {
	parts := strings.Split(path, "/")
	if n := len(parts); n >= 3 && parts[n-1] == RetiredLog && !slices.Contains([]string{"", ".", ".."}, parts[n-2]) {
		if w, ok = strings.CutSuffix(strings.Join(parts[:n-2], "/"), RetiredSuffix); ok {
			return w, true
		}
	}
	return path, false
}

// UpTo reads the events 1 to last of the log with an id, each checked against its hash
// and its predecessor, and the last one against hash, as the log that follows this one
// names them. What lies behind is of no interest. A record is valid until the next step
// of the loop; an error ends it.
func (s *Set) UpTo(ctx context.Context, id [16]byte, last uint64, hash [32]byte) iter.Seq2[Placed, error] {
	return func(yield func(Placed, error) bool) {
		fault := func(format string, args ...any) { yield(Placed{}, fmt.Errorf(format, args...)) }
		h, err := s.Genesis()
		switch {
		case err != nil && s.Active.File == nil && len(s.Sealed) == 0:
			fault("the folder %s is missing: %w", filepath.Dir(s.Path), fs.ErrNotExist)
			return
		case err != nil:
			fault("%s: %w", s.Path, err)
			return
		case h.LogID != id:
			fault("%s is log %x", s.Path, h.LogID)
			return
		}
		seq, link := uint64(0), h.Hash
		for p, err := range s.Frames(ctx, last) {
			switch {
			case ctx.Err() != nil:
				yield(Placed{}, ctx.Err())
				return
			case err != nil:
				fault("%s after event %d: %w", s.Path, seq, err)
				return
			case p.Seq != seq+1 || p.PreviousHash != link || !p.Intact():
				fault("%s: event %d does not continue the chain", s.Path, seq+1)
				return
			case p.Seq == last && p.Hash != hash:
				fault("%s: event %d has the hash %x, its successor says %x", s.Path, p.Seq, p.Hash, hash)
				return
			}
			if seq, link = p.Seq, p.Hash; !yield(p, nil) {
				return
			}
		}
		if seq != last {
			fault("%s ends with event %d, its successor goes on from event %d", s.Path, seq, last)
		}
	}
}

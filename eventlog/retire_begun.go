package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"writegate/eventlog/frame"
)

// ErrPlan says that what stands in W.retired/begun.json is not what an attempt to
// retire this log would have written down. Nothing more is done by it.
var ErrPlan = errors.New("the retirement that was begun is not one of this log")

// checkPlan holds what an earlier attempt wrote down against the log and the folder:
// its moves are those of this log's own files, which are of the log that it names, and
// what it carries over is what they hold. Files that are moved already are read where
// they are. store is nil where nothing is to be moved.
func (l *Log) checkPlan(ctx context.Context, r *retirement, store *string) error {
	if err := l.checkMoves(r, store); err != nil {
		return err
	}
	if there, err := l.exists(l.w); err != nil {
		return err
	} else if there && l.succeeded(move{From: l.w}, r) {
		if _, err := l.successor(ctx, r); err != nil { // it names what it follows
			return fmt.Errorf("%w: %w", ErrPlan, err)
		}
		return nil
	}
	var moved []string
	for _, suffix := range []string{frame.NextSuffix, frame.SegmentsSuffix, ""} {
		there, err := l.exists(filepath.Join(r.Folder, retiredLog+suffix))
		if err != nil {
			return err
		}
		if there {
			moved = append(moved, suffix)
		}
	}
	if len(moved) == 0 {
		return l.checkCarried(ctx, r, l.w)
	}
	for _, suffix := range moved { // a name that is left is of the same file
		left, err := l.exists(l.w + suffix)
		if err == nil && left {
			err = l.same(l.w+suffix, filepath.Join(r.Folder, retiredLog+suffix))
		}
		if err != nil {
			return err
		}
	}
	return nil // checkMoved follows when all is in the folder
}

// checkMoved judges what an earlier attempt has moved, where the new log is not begun.
func (l *Log) checkMoved(ctx context.Context, r *retirement) error {
	begun, err := l.exists(l.w)
	if err != nil || begun {
		return err
	}
	return l.checkCarried(ctx, r, RetiredLog(l.w, r.LogID))
}

// checkMoves allows the moves that an attempt plans for this log, and all of those that
// are left of its own files.
func (l *Log) checkMoves(r *retirement, store *string) error {
	own := map[string]string{}
	for _, suffix := range retiredSuffixes {
		own[retiredLog+suffix] = l.w + suffix
	}
	if l.o.JSONLPath != "" {
		own[retiredJSONL] = l.o.JSONLPath
	}
	if store != nil && *store != "" {
		own[retiredStore] = *store
	}
	planned := map[string]bool{}
	for _, m := range r.moves {
		from, known := own[m.To]
		if m.To == retiredStore && store == nil {
			from, known = m.From, true
		}
		if !known || !samePath(from, m.From) || planned[m.To] {
			return fmt.Errorf("%w: %s moves %q to %q, which is no file of the log %s with these settings", ErrPlan, l.planPath(), m.From, m.To, l.w)
		}
		planned[m.To] = true
	}
	for _, suffix := range retiredSuffixes {
		m := move{l.w + suffix, retiredLog + suffix}
		there, err := l.exists(m.From)
		if err != nil {
			return err
		}
		if there && !planned[m.To] && !l.succeeded(m, r) {
			return fmt.Errorf("%w: %s leaves %s where it is", ErrPlan, l.planPath(), m.From)
		}
	}
	return nil
}

func samePath(a, b string) bool {
	x, err1 := filepath.Abs(a)
	y, err2 := filepath.Abs(b)
	return err1 == nil && err2 == nil && x == y
}

// checkCarried judges the files at path once more.
func (l *Log) checkCarried(ctx context.Context, r *retirement, path string) (err error) {
	set, err := frame.DiscoverHeld(l.o.FS, path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := unopened(&set); err != nil {
		return err
	}
	if id := l.idOf(&set); id != r.LogID {
		return fmt.Errorf("%w: %s names log %x, and %s is log %x", ErrPlan, l.planPath(), r.LogID, path, id)
	}
	projection := l.o.Projection
	if projection != nil && projection.LogID != r.LogID {
		projection = nil
	}
	again := retirement{Retiring: Retiring{LogID: r.LogID}}
	if again.Report, err = frame.Verify(ctx, set, frame.Options{Anchors: anchors(projection)}); err != nil {
		return err
	}
	if err := again.judge(ctx, &set, projection); err != nil {
		return err
	}
	if again.Last != r.Last || again.Hash != r.Hash {
		return fmt.Errorf("%w: %s carries over events 1 to %d, the last one with the hash %x; of the files at %s these are 1 to %d and %x", ErrPlan, l.planPath(), r.Last, r.Hash, path, again.Last, again.Hash)
	}
	r.Known = max(r.Known, again.Known)
	return nil
}

// same tells two names of one file, or of one folder of files, from two files.
func (l *Log) same(a, b string) error {
	names, errA := l.o.FS.List(a)
	others, errB := l.o.FS.List(b)
	if errA == nil && errB == nil {
		if !slices.Equal(names, others) {
			return fmt.Errorf("%w: %s and %s hold different files", ErrPlan, a, b)
		}
		for _, name := range names {
			if err := l.same(filepath.Join(a, name), filepath.Join(b, name)); err != nil {
				return err
			}
		}
		return nil
	}
	f, err := l.o.FS.Open(a, frame.ReadOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	g, err := l.o.FS.Open(b, frame.ReadOnly)
	if err != nil {
		return err
	}
	defer g.Close()
	size, err := f.Size()
	if err != nil {
		return err
	}
	other, err := g.Size()
	if err != nil {
		return err
	}
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for off := int64(0); off < size && size == other; off += int64(len(x)) {
		n := min(int64(len(x)), size-off)
		if _, err := f.Pread(x[:n], off); err != nil {
			return err
		}
		if _, err := g.Pread(y[:n], off); err != nil {
			return err
		}
		if !bytes.Equal(x[:n], y[:n]) {
			other = -1
		}
	}
	if size != other {
		return fmt.Errorf("%w: %s and %s are different files", ErrPlan, a, b)
	}
	return nil
}

// RetiredStore is where an attempt that was begun and not finished has put the
// projections at store; "" where it has not.
func RetiredStore(o Options, store string) (string, error) {
	o, err := o.withDefaults()
	if err != nil {
		return "", err
	}
	l := newLog(o)
	if l.w, err = o.FS.RealPath(o.Path); err != nil {
		return "", err
	}
	r, err := l.readPlan()
	if err != nil || !r.Begun {
		return "", err
	}
	for _, path := range []string{filepath.Join(r.Folder, retiredStore), retiredBeside(store, r.LogID)} {
		there, err := l.exists(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || there {
			return path, err
		}
	}
	return "", nil
}

package eventlog

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

// copyChunk is how much of a tail is held in memory at once.
const copyChunk = 1 << 20

// recover deals with what an unclean end left behind the last complete batch,
// and makes that batch sure: no later one vouches for it, so it is written
// again in place and synced before anything follows it.
//
// Each step may be repeated: a crash between any two of them is found by the
// next open as the state before or after.
func (l *Log) recover(ctx context.Context, rec *Recovery) error {
	if rec.Clean {
		return nil
	}
	unlock, err := l.lockStructure(ctx)
	if err != nil {
		return err
	}
	return errors.Join(l.recoverLocked(ctx, rec), unlock())
}

func (l *Log) recoverLocked(ctx context.Context, rec *Recovery) error {
	if rec.Report.Status != frame.OK {
		if err := l.discardTail(ctx, rec); err != nil {
			return err
		}
	}
	if err := l.rewriteLastBatch(rec.Report.End); err != nil {
		return err
	}
	// A creation or a rotation that died before its last step leaves names that
	// are not durable, and the file that waited for a name.
	if rec.Report.End.Segment > 0 {
		if err := l.o.FS.SyncDir(l.w + frame.SegmentsSuffix); err != nil {
			return err
		}
	}
	if err := l.noOtherLog(l.w + frame.NextSuffix); err != nil {
		return err
	}
	if err := l.o.FS.Remove(l.w + frame.NextSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.o.FS.SyncDir(parent(l.w)); err != nil {
		return err
	}
	l.o.Step("recover.after_rewrite")
	return nil
}

// discardTail keeps the bytes behind the last complete batch in quarantine and
// zeroes them in place.
func (l *Log) discardTail(ctx context.Context, rec *Recovery) error {
	t := rec.Report.Tail
	from, to := t.Offset, t.Offset+t.Length
	if from != rec.Report.End.Offset || t.Length == 0 {
		return fmt.Errorf("the report's tail at %d does not follow the last batch, which ends at %d", from, rec.Report.End.Offset)
	}
	if err := l.quarantine(ctx, t); err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	l.o.Step("recover.after_quarantine")
	for from < to {
		if err := ctx.Err(); err != nil {
			return err
		}
		if from = l.file.NextData(from); from >= to { // what is no data is zeros already
			break
		}
		end := min((from/copyChunk+1)*copyChunk, to) // in the middle of a block all of it would become data
		if _, err := writeZeros(l.file, from, end); err != nil {
			return err
		}
		from = end
	}
	l.o.Step("recover.after_zero")
	return l.file.Datasync()
}

// rewriteLastBatch writes the bytes from the last batch's durable_off to its
// end again, as they are.
func (l *Log) rewriteLastBatch(end frame.End) error {
	from := max(int64(end.DurableOff), frame.HeaderSize)
	buf := make([]byte, min(copyChunk, max(end.Offset-from, 0)))
	for from < end.Offset {
		n := min(int64(len(buf)), end.Offset-from)
		if got, err := l.file.Pread(buf[:n], from); int64(got) < n {
			return fmt.Errorf("reading the last batch: %w", err)
		}
		if _, err := l.file.Pwrite(buf[:n], from); err != nil {
			return err
		}
		from += n
	}
	l.o.Step("recover.before_rewrite_sync")
	return l.file.Datasync()
}

// quarantined is the JSON file beside a discarded tail.
type quarantined struct {
	Format         string `json:"format"`
	LogID          string `json:"log_id"`
	File           string `json:"file"`
	Segment        uint32 `json:"segment"`
	Offset         int64  `json:"offset"`
	Length         int64  `json:"length"`
	SHA256         string `json:"sha256"`
	ReadableFrames int    `json:"readable_frames"`
	LastSeq        uint64 `json:"last_seq"`
	LastEventHash  string `json:"last_event_hash"`
	FoundAt        string `json:"found_at"`
	SHA256Bytes    int64  `json:"sha256_bytes,omitempty"` // as in the report
}

const quarantineFormat = "gate.quarantine.v1"

// quarantine copies [from, to) of the active segment into its folder, with a
// description, and syncs both files and the folders.
func (l *Log) quarantine(ctx context.Context, t frame.TailReport) error {
	from, to := t.Offset, t.Offset+t.Length
	dir := l.w + frame.QuarantineSuffix
	if err := l.o.FS.MkdirAll(dir); err != nil {
		return err
	}
	if err := l.o.FS.SyncDir(parent(l.w)); err != nil {
		return err
	}
	temp := filepath.Join(dir, "tail.tmp")
	kept, err := l.copyTail(ctx, temp, from, to)
	if err != nil {
		return err
	}
	sum := hex.EncodeToString(kept.SHA256[:])
	if sum != t.SHA256 { // the file system has said of data that there is none
		return fmt.Errorf("%s: the copy of the tail is not what was read of it", temp)
	}
	q := quarantined{
		Format: quarantineFormat, LogID: hex.EncodeToString(l.header.LogID[:]),
		File:    fmt.Sprintf("%d-%d-%s.bin", l.durable.Seq+1, from, sum[:16]),
		Segment: l.durable.Segment, Offset: from, Length: to - from, SHA256: sum, ReadableFrames: t.ReadableFrames,
		LastSeq: l.durable.Seq, LastEventHash: hex.EncodeToString(l.durable.Hash[:]),
		FoundAt: l.o.Now().UTC().Format(time.RFC3339Nano),
	}
	if q.Length > frame.MaxHashed {
		q.SHA256Bytes = frame.MaxHashed
	}
	about, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if err := l.o.FS.Rename(temp, filepath.Join(dir, q.File)); err != nil {
		return err
	}
	return replaceFile(l.o.FS, filepath.Join(dir, strings.TrimSuffix(q.File, ".bin")+".json"), append(about, '\n'), true)
}

// copyTail writes the tail under a temporary name, syncs it and tells what is in it.
func (l *Log) copyTail(ctx context.Context, name string, from, to int64) (t frame.Tail, err error) {
	out, err := l.o.FS.Create(name)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err = copyRange(ctx, out, l.file, from, to); err != nil {
		return t, err
	}
	if err = out.Sync(); err != nil {
		return t, err
	}
	t, err = frame.ScanTail(ctx, out, l.durable.Segment, 0, to-from)
	if err == nil && t.Length != to-from {
		err = fmt.Errorf("%s: the copy of the tail has %d bytes, not %d", name, t.Length, to-from)
	}
	return t, err
}

// copyRange copies the data and leaves holes as holes: a tail ends with data.
func copyRange(ctx context.Context, out, in frame.File, from, to int64) error {
	buf := make([]byte, min(copyChunk, to-from))
	for off := from; off < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if off = in.NextData(off); off >= to {
			return nil
		}
		n := min(int64(len(buf)), to-off)
		if got, err := in.Pread(buf[:n], off); int64(got) < n {
			return fmt.Errorf("reading the tail: %w", err)
		}
		if _, err := out.Pwrite(buf[:n], off-from); err != nil {
			return err
		}
		off += n
	}
	return nil
}

// unnamedTails gives the quarantined tails that no log_tail_recovered event
// names: this open's, and those of an earlier one that died before its event.
func (l *Log) unnamedTails(ctx context.Context) ([]event.Tail, error) {
	names, err := l.o.FS.List(l.w + frame.QuarantineSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var tails []event.Tail
	for _, name := range names {
		first, ok := quarantineSeq(name)
		if !ok {
			continue
		}
		named, err := l.tailNamed(ctx, name, first)
		if err != nil {
			return nil, err
		}
		if named {
			continue
		}
		t, err := l.describeTail(ctx, name)
		if err != nil {
			return nil, err
		}
		tails = append(tails, t)
	}
	return tails, nil
}

// quarantineSeq reads the sequence number that a tail's name begins with: that
// of the first event after it was put aside.
func quarantineSeq(name string) (uint64, bool) {
	seq, _, found := strings.Cut(strings.TrimSuffix(name, ".bin"), "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	return n, found && err == nil && strings.HasSuffix(name, ".bin")
}

// tailNamed looks for the event that names a tail. It is the first one after
// the tail was put aside, except where that event was lost in its turn.
func (l *Log) tailNamed(ctx context.Context, name string, first uint64) (bool, error) {
	for e, err := range l.From(ctx, first) {
		if err != nil {
			return false, err
		}
		var p event.LogTailRecovered
		if e.Type != event.TypeLogTailRecovered || e.Parse(&p) != nil {
			continue
		}
		for _, t := range p.Tails {
			if t.File == name {
				return true, nil
			}
		}
	}
	return false, nil
}

// describeTail reads what is known of a quarantined tail from the bytes kept:
// its description may be missing where a crash came between the two files.
func (l *Log) describeTail(ctx context.Context, name string) (event.Tail, error) {
	path := filepath.Join(l.w+frame.QuarantineSuffix, name)
	f, err := l.o.FS.Open(path, frame.ReadOnly)
	if err != nil {
		return event.Tail{}, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return event.Tail{}, err
	}
	kept, err := frame.ScanTail(ctx, f, l.durable.Segment, 0, size)
	if err != nil {
		return event.Tail{}, err
	}
	t := event.Tail{File: name, Length: size, Segment: int(l.durable.Segment), SHA256: kept.SHA256, ReadableFrames: kept.ReadableFrames}
	if parts := strings.Split(name, "-"); len(parts) == 3 {
		if t.Offset, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
			return event.Tail{}, fmt.Errorf("%s: the name has no offset", path)
		}
	}
	return t, nil
}

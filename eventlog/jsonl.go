package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"writegate/eventlog/event"
	"writegate/eventlog/frame"
)

const (
	jsonlLookEvery = time.Second     // how often the file is looked for while it is written
	jsonlRetry     = 5 * time.Second // pause after an error
	jsonlFlush     = 1 << 20         // bytes gathered before a write while catching up
	jsonlLineMax   = 16 << 20        // no event's line is longer: a record has at most 1 MiB
)

// errAgain says that the file now ends before the batch at hand, so the log has
// to be followed from an earlier event.
var errAgain = errors.New("follow again")

// errDisagrees says that a JSONL file tells another story than the log.
var errDisagrees = errors.New("the JSONL file disagrees with the log")

// jsonlWriter keeps the JSONL projection: a copy of the log for people and
// their tools, written after durability and without a sync. The log never waits
// for it and no error of it stops anything.
type jsonlWriter struct {
	l      *Log
	file   frame.File // nil while there is none
	off    int64
	next   uint64 // the event whose line comes next
	buf    []byte
	looked time.Time
}

// keepJSONL writes the projection until the log is closed.
func (l *Log) keepJSONL() {
	w := &jsonlWriter{l: l, next: 1}
	defer w.close()
	for {
		err := w.run(context.Background())
		if err == nil || errors.Is(err, ErrClosed) {
			return
		}
		if errors.Is(err, errAgain) {
			continue
		}
		l.o.Logger.Warn("the JSONL projection can't be written and will be tried again", "error", err)
		w.close()
		select {
		case <-l.stop:
			return
		case <-time.After(jsonlRetry):
		}
	}
}

func (w *jsonlWriter) close() {
	if w.file == nil {
		return
	}
	if err := w.file.Close(); err != nil {
		w.l.o.Logger.Warn("closing the JSONL projection", "error", err)
	}
	w.file = nil
}

// run takes the file up where it stands and follows the log.
func (w *jsonlWriter) run(ctx context.Context) error {
	if w.file == nil {
		if err := w.resume(); err != nil {
			return err
		}
	}
	for b, err := range w.l.Follow(ctx, w.next) {
		if err != nil {
			return err
		}
		first := b.Events[0].Seq
		if err := w.look(first); err != nil {
			return err
		}
		if w.next < first {
			return errAgain
		}
		if err := w.write(b.Events); err != nil {
			return err
		}
	}
	return nil
}

// write adds the lines of events the file does not have yet.
func (w *jsonlWriter) write(events []event.Envelope) error {
	return errors.Join(w.add(events), w.flush())
}

// add is write that may leave the last lines to the next flush.
func (w *jsonlWriter) add(events []event.Envelope) error {
	for i := range events {
		if events[i].Seq < w.next {
			continue
		}
		w.buf = append(event.AppendJSON(w.buf, &events[i]), '\n')
		w.next = events[i].Seq + 1
		if len(w.buf) >= jsonlFlush {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *jsonlWriter) flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	n, err := w.file.Pwrite(w.buf, w.off)
	w.off += int64(n)
	// A line without its end is written anew, also where the file is moved away first.
	w.next -= uint64(bytes.Count(w.buf[n:], []byte("\n")))
	w.buf = w.buf[:0]
	return err
}

// look finds out, now and then, whether the file is still the one at its path.
// A file that was moved away is begun anew with the event at hand; one that was
// cut or exchanged is judged as at the start.
func (w *jsonlWriter) look(next uint64) error {
	if now := time.Now(); now.Sub(w.looked) >= jsonlLookEvery {
		w.looked = now
	} else {
		return nil
	}
	there, err := w.l.o.FS.Open(w.l.o.JSONLPath, frame.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		w.close()
		w.next = next
		return w.create()
	}
	if err != nil {
		return err
	}
	size, err := there.Size()
	if err = errors.Join(err, there.Close()); err != nil {
		return err
	}
	if size != w.off {
		w.close()
		return w.resume()
	}
	return nil
}

func (w *jsonlWriter) create() (err error) {
	w.off = 0
	w.file, err = w.l.o.FS.Create(w.l.o.JSONLPath)
	return err
}

// resume opens the file behind its last whole line. A torn line is cut, a file
// that disagrees with the log is moved aside, and a new one begins at event 1,
// or where this run of the service has got to.
func (w *jsonlWriter) resume() error {
	path := w.l.o.JSONLPath
	file, err := w.l.o.FS.Open(path, frame.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return w.create()
	}
	if err != nil {
		return err
	}
	end, next, err := w.judge(file)
	if err == nil {
		w.file, w.off, w.next = file, end, next
		return file.Cut(end)
	}
	if err = errors.Join(err, file.Close()); !errors.Is(err, errDisagrees) {
		return err
	}
	if err := noLog(w.l.o.FS, path); err != nil {
		return err
	}
	aside := fmt.Sprintf("%s.disagrees-%d", path, w.l.o.Now().UnixNano())
	w.l.o.Logger.Error("the JSONL file disagrees with the log; it is moved aside and written anew", "moved_to", aside, "reason", err)
	if err := w.l.o.FS.Rename(path, aside); err != nil {
		return err
	}
	w.next = 1
	return w.create()
}

// judge gives the end of the last whole line and the event that comes next.
func (w *jsonlWriter) judge(file frame.File) (end int64, next uint64, err error) {
	line, end, err := lastLine(file)
	if err != nil {
		return 0, 0, err
	}
	if end == 0 {
		return 0, 1, tornFirst(file)
	}
	e, err := event.ParseJSON(line)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: the last line: %w", errDisagrees, err)
	}
	ours, err := w.l.At(context.Background(), e.Seq)
	if errors.Is(err, ErrNotFound) {
		return 0, 0, fmt.Errorf("%w: %w", errDisagrees, err)
	}
	if err != nil {
		return 0, 0, err
	}
	if !bytes.Equal(line, event.AppendJSON(nil, &ours)) {
		return 0, 0, fmt.Errorf("%w: event %d", errDisagrees, e.Seq)
	}
	return end, e.Seq + 1, nil
}

// jsonlBegins is how each line begins.
const jsonlBegins = `{"seq":`

// tornFirst reports whether what has no whole line is the beginning of one: only
// that may be cut.
func tornFirst(file frame.File) error {
	b := make([]byte, len(jsonlBegins))
	n, err := file.Pread(b, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if string(b[:n]) != jsonlBegins[:n] {
		return fmt.Errorf("%w: there is no line of an event in it", errDisagrees)
	}
	return nil
}

// lastLine gives the last line that has its newline, without it, and the offset
// behind it: 0 when there is no whole line.
func lastLine(file frame.File) (line []byte, end int64, err error) {
	size, err := file.Size()
	if err != nil {
		return nil, 0, err
	}
	var b []byte
	from := size
	for ask := int64(64 << 10); ; ask *= 4 {
		from = max(size-ask, 0)
		b = make([]byte, size-from)
		if n, err := file.Pread(b, from); err != nil && err != io.EOF {
			return nil, 0, err
		} else {
			b = b[:n]
		}
		last := bytes.LastIndexByte(b, '\n')
		start := bytes.LastIndexByte(b[:max(last, 0)], '\n')
		if last >= 0 && (start >= 0 || from == 0) {
			return b[start+1 : last], from + int64(last) + 1, nil
		}
		if from == 0 {
			return nil, 0, nil
		}
		if ask > 2*jsonlLineMax {
			return nil, 0, fmt.Errorf("%w: the last lines are longer than any event", errDisagrees)
		}
	}
}

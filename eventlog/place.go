package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"writegate/eventlog/frame"
)

// placeEvery is the distance of two looks at the log's files.
const placeEvery = time.Second

// sealedAtOnce is how many sealed segments one look asks the file system about; the
// next look goes on behind them.
const sealedAtOnce = 32

// keepPlace notices when the files of the log are taken from under it, or written over.
// A file without a name takes writes and syncs as before, and is gone with the process;
// one that was emptied takes them behind a hole.
func (l *Log) keepPlace() {
	tick := time.NewTicker(placeEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-tick.C:
			l.lookForFiles()
		}
	}
}

// lookForFiles stops the service of commands where a file of the log is not in its
// place any more, or not what was written. The process goes on, since its open file may
// be the only copy. A rotation moves names itself and is not waited for.
func (l *Log) lookForFiles() {
	l.mu.Lock()
	known := !l.writable || l.closing || l.poison != nil || l.unserved != nil
	l.mu.Unlock()
	if known || !l.looking.TryLock() {
		return
	}
	defer l.looking.Unlock()
	if !l.structure.TryRLock() {
		return
	}
	lost := l.lost()
	l.structure.RUnlock() // before the log is read, or an event is written: no rotation waits for a disk
	if lost == "" {
		lost = l.overwritten()
	}
	switch {
	case l.Serving() != nil:
	case lost != "":
		l.o.Logger.Error("a file of the event log was removed, moved, replaced or overwritten while it was written. New commands are refused. "+
			"Do not stop this process before its open files are copied, or you know that nothing is missing: they may be the only ones",
			"path", l.o.Path, "lost", lost, "copy_from", fmt.Sprintf("/proc/%d/fd", os.Getpid()))
		l.Accuse(frame.Fault{Check: frame.CheckExistence, Kind: frame.MissingLog, Detail: lost})
	case l.reread.Load():
		l.readAnew()
	}
}

// lost says which file of the log is not in its place; "" where all are, or nobody can
// tell. l.structure is held.
func (l *Log) lost() string {
	l.reading.RLock() // against the end of the log, which closes the files
	defer l.reading.RUnlock()
	if l.released {
		return ""
	}
	if named, err := l.file.Named(l.w); err == nil && !named {
		return l.w + " is not the file that is written"
	}
	l.mu.Lock()
	var sealed []*segment
	for _, s := range l.segments {
		if s != l.active {
			sealed = append(sealed, s)
		}
	}
	l.mu.Unlock()
	if lost := l.sealedLost(sealed); lost != "" {
		return lost
	}
	lock := l.w + frame.LockSuffix
	if named, err := l.lock.Named(lock); err == nil && !named {
		return lock + " is not the file that is locked: any process could take the log for its own"
	}
	return ""
}

// sealedLost says which sealed segment is gone or has another length. One that may be
// changed is marked, and only reading it tells.
func (l *Log) sealedLost(sealed []*segment) string {
	if len(sealed) == 0 {
		return ""
	}
	names, err := l.o.FS.List(l.w + frame.SegmentsSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, s := range sealed {
		if _, there := slices.BinarySearch(names, filepath.Base(s.path)); err == nil && !there {
			return s.path + " is gone"
		}
	}
	for range min(len(sealed), sealedAtOnce) {
		l.turn++
		s := sealed[l.turn%len(sealed)]
		info, err := l.o.FS.Stat(s.path)
		if err != nil {
			continue
		}
		if !l.keepsInodes {
			info.Dev, info.Ino = 0, 0
		}
		if s.info != (frame.Info{}) && info.Size != s.info.Size {
			return fmt.Sprintf("%s has %d bytes, and had %d when it was sealed", s.path, info.Size, s.info.Size)
		}
		if s.info != (frame.Info{}) && info != s.info {
			l.o.Logger.Warn("a sealed segment was replaced or touched; the log is read anew", "file", s.path)
			l.reread.Store(true)
		}
		s.info = info
	}
	return ""
}

// remember takes the file of a sealed segment, as it is now, for what belongs there.
func (l *Log) remember(s *segment) {
	info, err := l.o.FS.Stat(s.path)
	if err != nil {
		return // the next look asks again
	}
	if !l.keepsInodes {
		info.Dev, info.Ino = 0, 0
	}
	s.info = info
}

// readAnew starts a verification of the whole log, unless one runs: that may have
// passed by already.
func (l *Log) readAnew() {
	l.verifying.mu.Lock()
	runs := l.verifying.run != nil
	l.verifying.mu.Unlock()
	if runs {
		return
	}
	l.reread.Store(false)
	_, _ = l.startVerify() // it fails only while the log is closing
}

// A mark is a place where the log ended, and the segment that it lies in.
type mark struct {
	at Head
	s  *segment
}

// overwritten says what the open file does not hold any more of what was written: its
// header, the end of the log, and where that was at the last look. A file that was
// emptied and written on is long enough, and has a hole. "" also where nobody can tell.
// l.looking is held.
func (l *Log) overwritten() string {
	l.reading.RLock()
	defer l.reading.RUnlock()
	if l.released {
		return ""
	}
	l.mu.Lock()
	now := mark{l.durable, l.active}
	l.mu.Unlock()
	b := make([]byte, frame.HeaderSize)
	_, err := now.s.file.Pread(b, 0)
	if err != nil && err != io.EOF {
		return ""
	}
	h, err := frame.ParseHeader(b)
	if err != nil || h.LogID != l.header.LogID || h.Segment != now.s.number || h.FirstSeq != now.s.first {
		return l.w + " was overwritten or cut: its header is another one"
	}
	for _, m := range []mark{l.seen, now} {
		if m.s == nil || m.at.Offset <= frame.HeaderSize {
			continue
		}
		end := make([]byte, len(m.at.Hash)+frame.Align) // a frame ends with its hash and up to 7 zeros
		_, err := m.s.file.Pread(end, m.at.Offset-int64(len(end)))
		if err != nil && err != io.EOF {
			return ""
		}
		if !bytes.Contains(end, m.at.Hash[:]) {
			return fmt.Sprintf("%s was overwritten or cut: event %d is not where it was written", l.w, m.at.Seq)
		}
	}
	l.seen = now
	return ""
}

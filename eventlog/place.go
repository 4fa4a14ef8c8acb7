package eventlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"writegate/eventlog/frame"
)

// placeEvery is the distance of two looks at the names of the log's files.
const placeEvery = time.Second

// keepPlace notices when the files of the log are taken from under it. A file without
// a name takes writes and syncs as before, and is gone with the process.
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
// place any more. The process goes on, since its open file may be the only copy. A
// rotation moves names itself and is not waited for.
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
	l.structure.RUnlock() // before an event is written, which may wait for a rotation
	if lost == "" || l.Serving() != nil {
		return
	}
	l.o.Logger.Error("a file of the event log was removed, moved or replaced while it was written. New commands are refused. "+
		"Do not stop this process before its open files are copied: they may be the only ones",
		"path", l.o.Path, "lost", lost, "copy_from", fmt.Sprintf("/proc/%d/fd", os.Getpid()))
	l.Accuse(frame.Fault{Check: frame.CheckExistence, Kind: frame.MissingLog, Detail: lost})
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
	var sealed []string
	for _, s := range l.segments {
		if s != l.active {
			sealed = append(sealed, s.path)
		}
	}
	l.mu.Unlock()
	if len(sealed) == 0 {
		return ""
	}
	names, err := l.o.FS.List(l.w + frame.SegmentsSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, path := range sealed {
		if _, there := slices.BinarySearch(names, filepath.Base(path)); err == nil && !there {
			return path + " is gone"
		}
	}
	return ""
}

package projections

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"writegate/eventlog"
)

// damageMark is a file in the store's folder that says: this store was found
// unreadable while it was in use, or is on its way aside. Its content is the reason.
const damageMark = "DAMAGED"

// Open opens the store in o.Dir, or makes an empty one. A store that can't be
// read, or that another version of the projectors wrote, is renamed and an
// empty one begun: see Aside. Nothing is applied before Connect.
//
// Errors: the store is in use by another process, o.Dir is no folder (ENOTDIR), or the
// file system refuses.
func Open(o Options) (*Store, error) {
	o.complete()
	reason, err := strange(&o)
	if err == nil && reason == "" {
		reason, err = damageOf(&o)
	}
	if err != nil {
		return nil, err
	}
	if reason == "" {
		s, err := open(o)
		if err == nil || !unusable(err) {
			return s, err
		}
		reason = err.Error()
	}
	return begunAnew(o, reason)
}

// maxReason bounds why a store was put aside, in bytes: a start says it in an event.
const maxReason = 1024

// begunAnew puts the store's folder aside and begins an empty one. The reason may hold
// what was found there, and an event holds text.
func begunAnew(o Options, reason string) (*Store, error) {
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "?")
	path, err := moveAside(&o, reason)
	if err != nil {
		return nil, err
	}
	o.Logger.Warn("projections were put aside and are rebuilt from the log", "path", path, "reason", reason)
	s, err := open(o)
	if err != nil {
		return nil, err
	}
	s.aside = &Aside{Path: path, Reason: reason}
	return s, nil
}

// errVersion says that another version of the projectors wrote the store.
var errVersion = errors.New("written by another version of the projectors")

// unreadable are errors of Pebble about what is in the folder, which it marks by words
// alone: a table of another size than it wrote, the format of another Pebble, names and
// options that no store of ours has.
var unreadable = []string{"object size mismatch", "format major version", "invalid marker filename", "comparer name from file"}

// unusable tells errors that a rebuild cures from those that it doesn't.
func unusable(err error) bool {
	return slices.ContainsFunc(unreadable, func(words string) bool { return strings.Contains(err.Error(), words) }) || pebble.IsCorruptionError(err) ||
		slices.ContainsFunc([]error{errRecord, errVersion, os.ErrNotExist, syscall.EISDIR, pebble.ErrDBNotPristine}, func(cause error) bool { return errors.Is(err, cause) })
}

// newStore is a store that nothing is open of.
func newStore(o Options) *Store {
	s := &Store{o: o, limits: replayLimits, stopped: make(chan struct{}), fatal: make(chan error, 1), gaveUp: make(chan error, 1)}
	s.stop = sync.OnceFunc(func() { close(s.stopped) })
	s.room.full.Store(newFullVolume())
	return s
}

// openingTakes is how long an opening waits for a volume that takes nothing: Pebble tries
// again for ever.
var openingTakes = 10 * time.Second

// whilePebble does not wait for a Pebble that has given up: its goroutine stays in Fatalf.
// Nor for one that waits for a volume which takes nothing, or longer than it is allowed to.
func (s *Store) whilePebble(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	look := time.NewTicker(openingTakes / 10)
	defer look.Stop()
	var err error
	for late := (<-chan time.Time)(nil); err == nil; { // behind a look that found that something could not be written
		select {
		case err := <-done:
			return err
		case err = <-s.gaveUp:
		case <-s.o.Context.Done():
			err = context.Cause(s.o.Context)
		case <-look.C:
			if late == nil && s.room.failed.Load() != nil {
				late = time.After(openingTakes)
			}
		case <-late:
			err = fmt.Errorf("%w: %w", ErrFull, s.room.failed.Load().err)
		}
	}
	go func() { // where there is room later, what was opened is not left open
		if <-done == nil && s.db != nil {
			_ = s.db.Close() // nobody has it
		}
	}()
	return fmt.Errorf("open projections: %w", err)
}

func open(o Options) (*Store, error) {
	s := newStore(o)
	if err := s.whilePebble(s.open); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) open() error {
	o, options := s.o, s.pebbleOptions()
	db, err := pebble.Open(o.Dir, options)
	if err != nil {
		return fmt.Errorf("open projections: %w", err)
	}
	s.db = db
	options.EnsureDefaults()
	s.tables = options.MakeWriterOptions(0, db.TableFormat())
	if err := o.FS.RemoveAll(s.loading()); err != nil {
		return errors.Join(fmt.Errorf("open projections: %w", err), db.Close())
	}
	if s.space, err = currentSpace(db); err != nil {
		return errors.Join(fmt.Errorf("open projections: %w", err), db.Close())
	}
	if err := dropOtherSpaces(db, s.space.id); err != nil {
		return errors.Join(fmt.Errorf("open projections: %w", err), db.Close())
	}
	s.seq.Store(s.space.applied.Seq)
	return nil
}

// Peek reads how far a store has got that nobody has open, and changes nothing. A
// store that is not there has got nowhere. A gate that starts meanwhile is not kept
// waiting: what is then read may be an error, and is never more than its log has.
func Peek(dir string) (Applied, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Applied{}, fmt.Errorf("open projections: %w", err)
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return !eventlog.StaysInside(e.Name()) }) {
		return Applied{}, nil
	}
	o := Options{Dir: dir}
	o.complete()
	quiet := newStore(o)
	reason, err := strange(&quiet.o)
	if err == nil && reason != "" {
		err = fmt.Errorf("open projections: %s", reason)
	}
	if err != nil {
		return Applied{}, err
	}
	sp := new(space)
	err = quiet.whilePebble(func() error {
		db, err := pebble.Open(dir, &pebble.Options{FS: unlocked{quiet.o.FS}, ReadOnly: true, Logger: &logger{store: quiet}})
		if err != nil {
			return fmt.Errorf("open projections: %w", err)
		}
		found := sp
		if id, idErr := get(db, spaceKey); idErr != nil || id != nil { // else nothing was ever applied
			found, err = currentSpace(db)
		}
		if err = errors.Join(err, db.Close()); err == nil {
			sp = found
		}
		return err
	})
	if err != nil {
		return Applied{}, err
	}
	return sp.applied, nil
}

// bloomBits a key make one look in a hundred for a missing key go to a table
// in vain: the first event of each execution looks for a record that is not there.
const bloomBits = 10

// sayAgain is the time between two lines about work of Pebble's that failed.
const sayAgain = 10 * time.Second

func (s *Store) pebbleOptions() *pebble.Options {
	var failed atomic.Int64 // since the last line
	var said atomic.Bool    // a line stands, and its time is not over
	log := &logger{store: s}
	o := &pebble.Options{
		FS:                 &storeFS{s.o.FS, s},
		DisableWAL:         true,                // the event log is the only one
		FormatMajorVersion: pebble.FormatNewest, // the default is the oldest
		MemTableSize:       memTableSize,
		CacheSize:          32 << 20,
		// The store waits for room itself: see waitForRoom.
		MemTableStopWritesThreshold: 4 * memTables,
		L0StopWritesThreshold:       4 * sublevels,
		Logger:                      log,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				s.tableFailed(err)
				failed.Add(1)
				if said.CompareAndSwap(false, true) {
					s.o.Logger.Error("projections: work in the background failed and is tried again", "error", err, "times", failed.Swap(0))
					time.AfterFunc(sayAgain, func() { said.Store(false) })
				}
			},
			// The default is a fatal message. A compaction that finds damage has
			// nobody else to tell it to.
			DataCorruption: func(info pebble.DataCorruptionInfo) { s.spoiled(info.Details) },
		},
	}
	// A load must not wait in memory, as one that overlaps a memtable would: a
	// later one that does not could then outlive it, and the prefix have a hole.
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBits)
	}
	return o
}

// currentSpace finds the key space in use and what it holds. A new store
// begins with space 1.
func currentSpace(db *pebble.DB) (*space, error) {
	id, err := get(db, spaceKey)
	if err != nil {
		return nil, err
	}
	if id == nil {
		// Flushed, because a replay may put tables into the space right away.
		return newSpace(1), errors.Join(db.Set(spaceKey, []byte{1}, pebble.NoSync), db.Flush())
	}
	if len(id) != 1 || id[0] == 0 {
		return nil, fmt.Errorf("key space %x: %w", id, errRecord)
	}
	sp := newSpace(id[0])
	applied, err := get(db, physical(sp.id, []byte(keyApplied)))
	if err != nil || applied == nil {
		return sp, err
	}
	var version uint32
	if sp.applied, version, err = decodeApplied(applied); err != nil {
		return nil, err
	}
	if version != ProjectorVersion {
		return nil, fmt.Errorf("%w: %d, this program has %d", errVersion, version, ProjectorVersion)
	}
	if sp.lineage, err = lineageOf(db, sp.id); err != nil {
		return nil, err
	}
	if sp.newest, err = newestExecution(db, sp.id); err != nil {
		return nil, err
	}
	counters, err := get(db, physical(sp.id, []byte(keyCounters)))
	if err != nil || counters == nil {
		return sp, err
	}
	return sp, unmarshal(counters, &sp.counters)
}

// lineageOf reads which logs were folded before the one at hand.
func lineageOf(db *pebble.DB, id byte) (lineage []Applied, err error) {
	for {
		b, err := get(db, physical(id, lineageKey(len(lineage))))
		if err != nil || b == nil {
			return lineage, err
		}
		a, err := decodeAncestor(b)
		if err != nil {
			return nil, err
		}
		lineage = append(lineage, a)
	}
}

// get copies a value; nil is none.
func get(db *pebble.DB, key []byte) ([]byte, error) {
	b, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append([]byte{}, b...), closer.Close()
}

// dropOtherSpaces removes what a rebuild that did not end has left.
func dropOtherSpaces(db *pebble.DB, current byte) error {
	for _, r := range [][2][]byte{{{1}, {current}}, {{current + 1}, {0xff, 0xff}}} {
		it, err := db.NewIter(&pebble.IterOptions{LowerBound: r[0], UpperBound: r[1]})
		if err != nil {
			return err
		}
		some := it.First()
		if err := errors.Join(it.Error(), it.Close()); err != nil {
			return err
		}
		if !some {
			continue
		}
		if err := db.DeleteRange(r[0], r[1], pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}

// nextSpace is the number of the space that a rebuild fills. 0 is the space
// key's own, and 255 would have no end.
func nextSpace(id byte) byte { return id%0xfe + 1 }

func markPath(o *Options) string { return o.FS.PathJoin(o.Dir, damageMark) }

// strange finds what no store makes, since whoever opens a pipe waits for its
// other end; "" is that there is none.
func strange(o *Options) (string, error) {
	if info, err := o.FS.Stat(o.Dir); err == nil && !info.IsDir() {
		return "", fmt.Errorf("open projections: %s is no folder: %w", o.Dir, syscall.ENOTDIR)
	}
	names, err := o.FS.List(o.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open projections: %w", err)
	}
	for _, name := range names {
		info, err := o.FS.Stat(o.FS.PathJoin(o.Dir, name))
		if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			return name + " is no regular file", nil
		}
	}
	return "", nil
}

// damageOf reads the mark of the run before; "" is none. Whatever has its name marks the
// store, and of a long one only the beginning is read.
func damageOf(o *Options) (string, error) {
	info, err := o.FS.Stat(markPath(o))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("open projections: %w", err)
	}
	if !info.Mode().IsRegular() {
		return damageMark + " is no regular file", nil
	}
	f, err := o.FS.Open(markPath(o))
	if err != nil {
		return "", fmt.Errorf("open projections: %w", err)
	}
	reason, err := io.ReadAll(io.LimitReader(f, maxReason))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("open projections: %w", err)
	}
	return "marked as not to be used: " + string(reason), nil
}

func markDamaged(o *Options, reason string) error {
	f, err := o.FS.Create(markPath(o), "projections")
	if err != nil {
		return err
	}
	_, err = f.Write([]byte(reason))
	return errors.Join(err, f.Sync(), f.Close(), syncFolders(o, o.Dir))
}

func syncFolders(o *Options, dirs ...string) error {
	for _, dir := range dirs {
		d, err := o.FS.OpenDir(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}

// moveAside renames the store's folder to the first free name beside it. Where the
// folder can't be renamed, as the mount point of a volume can't, what is in it moves.
func moveAside(o *Options, reason string) (string, error) {
	for n := 1; ; n++ {
		path := fmt.Sprintf("%s.aside-%d", o.Dir, n)
		if _, err := o.FS.Stat(path); errors.Is(err, os.ErrNotExist) {
			err := o.FS.Rename(o.Dir, path)
			if !eventlog.CannotMove(err) {
				return path, err
			}
			inside, insideErr := moveInside(o, reason)
			if insideErr != nil {
				return "", fmt.Errorf("put projections aside: %w", errors.Join(err, insideErr))
			}
			return inside, nil
		} else if err != nil {
			return "", fmt.Errorf("put projections aside: %w", err)
		}
	}
}

// moveInside moves what is in the store's folder into a folder in it. The mark is there
// before anything moves, and moves last: until then no start takes what is left for a
// store, and the next one goes on.
func moveInside(o *Options, reason string) (path string, err error) {
	if _, err := o.FS.Stat(markPath(o)); errors.Is(err, os.ErrNotExist) {
		err = markDamaged(o, reason)
		if err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	names, err := o.FS.List(o.Dir)
	if err != nil {
		return "", err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return eventlog.StaysInside(name) || name == damageMark })
	for n := 1; ; n++ { // one that has the mark is complete; one with a name that is still to come is somebody's
		path = o.FS.PathJoin(o.Dir, fmt.Sprintf("%s%d", eventlog.AsidePrefix, n))
		there, err := o.FS.List(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if !slices.ContainsFunc(there, func(name string) bool { return name == damageMark || slices.Contains(names, name) }) {
			break
		}
	}
	if err := o.FS.MkdirAll(path, dirPerm); err != nil {
		return "", err
	}
	for _, moving := range [][]string{names, {damageMark}} {
		for _, name := range moving {
			if err := o.FS.Rename(o.FS.PathJoin(o.Dir, name), o.FS.PathJoin(path, name)); err != nil {
				return "", err
			}
		}
		if err := syncFolders(o, path, o.Dir); err != nil {
			return "", err
		}
	}
	return path, nil
}

// A logger takes Pebble's messages. Pebble's own would end the process on a
// fatal one, without letting anybody write down why.
type logger struct{ store *Store }

func (l *logger) Infof(format string, args ...any) {
	l.store.o.Logger.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (l *logger) Errorf(format string, args ...any) {
	l.store.o.Logger.Error("pebble: " + fmt.Sprintf(format, args...))
}

// Fatalf must not return: Pebble would go on in a state that it does not trust.
// The goroutine stays here, perhaps with Pebble's locks, until the process ends.
func (l *logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf("pebble: "+format, args...)
	l.store.parked.Store(true)
	select {
	case l.store.gaveUp <- err:
	default: // it has said so before
	}
	l.store.fail(err)
	select {}
}

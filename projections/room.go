package projections

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrFull says that what is folded can't be shown: the volume of the store takes
// nothing more, and the memory for what waits to be written there is used up.
var ErrFull = errors.New("the volume of the projections takes nothing more")

const (
	memTableSize = 16 << 20
	// memTables are in memory until the store waits for its volume. Pebble would wait
	// at as many by itself, with locks held that whoever reads needs; it is told of more.
	memTables = 2
	// sublevels of level 0 are where reads become slow: the store waits for compactions.
	sublevels = 12
	// roomEvery bytes are written between two looks at what is in memory.
	roomEvery = 1 << 20
)

// slowWrites is how long the store waits for its volume before that is called full.
var slowWrites = 5 * time.Second

// tryAgain is the least time between two tries at a file that could not be written.
// Pebble takes none.
var tryAgain = time.Second

// room is what a store knows of the space on its volume.
type room struct {
	unlooked atomic.Int64 // bytes committed since the last look
	failed   atomic.Pointer[failedWrite]
	looking  sync.Mutex                 // held by the one who looks and waits
	full     atomic.Pointer[fullVolume] // never nil
}

type failedWrite struct {
	err   error
	again chan struct{} // closed when it may be tried again
}

// A fullVolume is closed while the volume is full. Its err is set before that.
type fullVolume struct {
	closed chan struct{}
	err    error
}

func newFullVolume() *fullVolume { return &fullVolume{closed: make(chan struct{})} }

// Full gives ErrFull, with what the volume said last, while nothing new can be shown for
// want of space; nil otherwise.
func (s *Store) Full() error {
	full := s.room.full.Load()
	select {
	case <-full.closed:
		return full.err
	default:
		return nil
	}
}

// waitForRoom returns when size bytes more can be committed and Pebble does not wait
// inside, or when Run or the store is to end.
func (s *Store) waitForRoom(size int) error {
	if s.room.unlooked.Add(int64(size)) < roomEvery {
		return nil
	}
	s.room.looking.Lock()
	defer s.room.looking.Unlock()
	s.room.unlooked.Store(0)
	var ended <-chan struct{}
	if f := s.follows.Load(); f != nil {
		ended = f.ctx.Done()
	}
	full, failed, slow := s.room.full.Load(), s.room.failed.Load(), time.After(slowWrites)
	for told := false; ; {
		m := s.db.Metrics()
		used := m.MemTable.Size >= memTables*memTableSize
		if !used && m.Levels[0].Sublevels < sublevels {
			if told {
				s.room.full.Store(newFullVolume())
				s.o.Logger.Info("projections: the volume takes more again")
			}
			return nil
		}
		select {
		case <-s.stopped:
			return s.stopReason()
		case <-ended:
			return context.Canceled
		case <-slow:
			last := s.room.failed.Load()
			if !used && last == failed { // compactions take their time, and go on
				slow = time.After(slowWrites)
				continue
			}
			told, full.err = true, ErrFull
			if last != nil {
				full.err = fmt.Errorf("%w: %w", ErrFull, last.err)
			}
			s.o.Logger.Error("projections: what waits for the volume fills the memory for it; statements are refused until the volume takes more", "error", full.err)
			close(full.closed)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// tableFailed is told by Pebble, which holds its locks.
func (s *Store) tableFailed(err error) {
	f := &failedWrite{err, make(chan struct{})}
	s.room.failed.Store(f)
	time.AfterFunc(tryAgain, func() { close(f.again) })
}

// pause waits, where something could not be written a moment ago, until it may be tried
// again.
func (s *Store) pause() {
	if f := s.room.failed.Load(); f != nil {
		select {
		case <-s.stopped:
		case <-f.again:
		}
	}
}
